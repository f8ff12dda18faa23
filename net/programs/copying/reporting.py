"""How a program tells the cluster of itself while it runs. What it tells is in `net/client/positions/reports.py`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.positions.reports import encoded_report
from barnabas.net.client.producer.producer import Producer

LAST_LIMIT_S: Final = 10.0  # for the report at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSender:
    """Writes to the topic of one kind of reports. It makes the topic if it is missing."""

    topic: str
    configs: Mapping[str, str]
    client_id: str
    bootstrap: str
    security: Mapping[str, Any]

    async def send(self, key: str, report: msgspec.Struct) -> None:
        """With connections of their own: a few requests a minute are cheaper than ones that stay open.

        Raises BarnabasError, OSError.
        """
        async with Admin(self.bootstrap, **self.security) as admin:
            if self.topic not in await admin.list_topics():  # then no permission to create topics is needed
                await admin.create_topic(self.topic, partitions=1, configs=dict(self.configs), if_not_exists=True)
        async with Producer(self.bootstrap, client_id=self.client_id, **self.security) as producer:
            await producer.send(self.topic, encoded_report(report), key=key.encode(), partition=0)


@asynccontextmanager
async def reporting(run: Coroutine[Any, Any, None], last: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """`run` while the context is open, then `last`, for LAST_LIMIT_S at most. Neither may raise."""
    try:
        async with beside(run):
            yield
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_LIMIT_S):
                await last()


@asynccontextmanager
async def beside(run: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """`run`, which must not raise, while the context is open."""
    task = asyncio.create_task(run)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])

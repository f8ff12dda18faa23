"""The SDK behind the ports of `sdk`: the one place of the command line that knows how the client's classes are called.

The client is imported when the first connection is opened, never before.
"""

import importlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from barnabas.log.topic_partition import TopicPartition

from .exit_codes import CommandError
from .sdk import AdminPort, ConsumedRecord, ConsumerPort, PartitionLag, ProducerPort

_START_POLICIES = {"start": "earliest", "end": "latest"}


def _class(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"barnabas.net.client.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise CommandError(f"the client cannot be loaded ({error}); install barnabas again") from error


class SdkConnector:
    """Opens the SDK's own classes."""

    @asynccontextmanager
    async def admin(self, bootstrap: str) -> AsyncIterator[AdminPort]:
        async with _class("admin", "Admin")(bootstrap=bootstrap) as admin:
            yield _Admin(admin)

    @asynccontextmanager
    async def producer(self, bootstrap: str, *, acks: str) -> AsyncIterator[ProducerPort]:
        wanted = acks if acks == "all" else int(acks)
        async with _class("producer", "Producer")(bootstrap=bootstrap, acks=wanted) as producer:
            yield _Producer(producer)

    @asynccontextmanager
    async def consumer(
        self, bootstrap: str, *, topics: Sequence[str], group: str | None, start: str
    ) -> AsyncIterator[ConsumerPort]:
        # Without a group the caller assigns partitions and offsets itself; a subscription would fight with that.
        subscribed = topics if group else ()
        made = _class("consumer", "Consumer")(
            *subscribed, bootstrap=bootstrap, group=group, auto_offset_reset=_START_POLICIES.get(start, start)
        )
        async with made as consumer:
            yield _Consumer(consumer)


class _Producer:
    def __init__(self, producer: Any) -> None:
        self._producer = producer

    async def send_many(
        self, topic: str, values: Sequence[bytes], keys: Sequence[bytes | None] | None
    ) -> Awaitable[object]:
        handles: Awaitable[object] = await self._producer.send_many(topic, values, keys)
        return handles

    async def flush(self) -> None:
        await self._producer.flush()


class _Consumer:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign(list(offsets))
        for place, offset in offsets.items():
            self._consumer.seek(place, offset)

    def positions(self) -> Mapping[TopicPartition, int]:
        return {place: self._consumer.position(place) for place in self._consumer.assignment()}

    async def poll(self, max_wait_ms: int) -> Iterable[ConsumedRecord]:
        records: Iterable[ConsumedRecord] = await self._consumer.poll(max_wait_ms)
        return records

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._consumer.commit(dict(offsets))


class _Admin:
    """Most calls have the same name and the same shape on both sides; `__getattr__` passes them through."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    async def group_offsets(self, group: str) -> Sequence[PartitionLag]:
        return [
            PartitionLag(
                topic=item.topic,
                partition=item.partition,
                committed=item.committed,
                log_start_offset=item.log_start_offset,
                log_end_offset=item.log_end_offset,
            )
            for item in await self._admin.group_offsets(group)
        ]

"""`Ask`: where a request of `Admin` goes, and how long it is repeated."""

from typing import Any

from barnabas.net.wire.protocol import requests as q

from ..connection.client import Client
from ..connection.errors import BarnabasError, UnknownTopicOrPartitionError


class Ask:
    """Each call retries retriable errors within `timeout_ms`, and raises the error of the answer."""

    def __init__(self, client: Client, timeout_ms: int) -> None:
        self._client = client
        self._timeout_ms = timeout_ms

    async def controller(self, request: q.Request, *, done_already: tuple[type[BarnabasError], ...] = ()) -> Any:
        """In general the metadata may not show a new topic yet, so that error is retried; the controller knows all topics."""
        final = (UnknownTopicOrPartitionError,)
        return await self._client.call_controller(
            request, timeout_ms=self._timeout_ms, final=final, done_already=done_already
        )

    async def coordinator(self, group_id: str, request: q.Request) -> Any:
        return await self._client.coordinators.call(group_id, request, timeout_ms=self._timeout_ms)

    async def broker(self, node_id: int, request: q.Request) -> Any:
        return await self._client.retrying(lambda: self._client.call(node_id, request), timeout_ms=self._timeout_ms)

    async def anywhere(self, request: q.Request) -> Any:
        return await self._client.retrying(lambda: self._client.call_any(request), timeout_ms=self._timeout_ms)

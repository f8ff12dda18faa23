"""A follower's connection to the leader's broker: found by node id, opened on demand, and not shared."""

import asyncio
from collections.abc import Callable

from barnabas.net.wire.protocol.requests import Request
from barnabas.net.wire.protocol.responses import Response

from ...wire.rpc import RpcPool


class LeaderConnection:
    """The connection that `replica_fetcher` uses. The leader's address may change with its next registration."""

    def __init__(self, leader: int, pool: RpcPool, address_of: Callable[[int], tuple[str, int]]) -> None:
        self._leader = leader
        self._pool = pool
        self._address_of = address_of

    async def send(self, request: Request, timeout_ms: int) -> "asyncio.Future[Response]":
        """Raises NetworkError, BrokerNotAvailableError, RequestTimedOutError."""
        connection = self._pool.peek(*self._address_of(self._leader))
        if connection is None:
            connection = await self._pool.get(*self._address_of(self._leader))
        return connection.send(request, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """The pool owns the connection and closes it with the broker."""

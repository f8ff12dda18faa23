"""The ports for connections of the SDK: `net.wire.rpc` implements them, tests use scripted ones."""

import asyncio
from typing import Any, Protocol

from barnabas.net.wire.protocol.requests import Request
from barnabas.net.wire.protocol.responses import Response


class Connection(Protocol):
    """One connection to one broker, such as `net.wire.rpc.RpcConnection`."""

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""

    def send(self, request: Request, *, timeout_ms: int) -> asyncio.Future[Response]:
        """Send in the order of the calls, without a task. An ErrorResponse is a result, a lost or late answer an
        exception.

        Raises NetworkError when the connection is closed, BufferExhaustedError when too much is in flight.
        """

    def send_oneway(self, request: Request) -> None:
        """Send a request that has no answer (produce with acks=0). Raises as `send` does."""

    async def call(self, request: Request, *, timeout_ms: int) -> Any:
        """Send and return the answer; raises the error in the answer."""


class Pool(Protocol):
    """One connection per address, such as `net.wire.rpc.RpcPool`: capped back-off with jitter after failures."""

    def peek(self, host: str, port: int) -> Connection | None:
        """Return the open connection, if there is one."""

    async def get(self, host: str, port: int) -> Connection:
        """Return the connection, opening it if necessary. Raises NetworkError or UnsupportedVersionError."""

    async def close(self) -> None: ...

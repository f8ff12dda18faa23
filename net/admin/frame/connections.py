"""The bounded pool of connections to the admin API: a full pool closes silent connections to accept new ones.

The API has no authentication, so the pool cannot reserve connections for operators. But an operator's client sends its request
at once and disconnects. Therefore many clients that send nothing, never complete a request, or send one that takes long can
neither lock operators out nor exhaust the descriptors that logs, the quorum and the other brokers need.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast

log = logging.getLogger("barnabas.admin")

MAX_CONNECTIONS: Final = 64  # enough for browsers, a scraper and a few operators with several connections each
FIRST_REQUEST_S: Final = 10.0  # limit from accepting the connection to the end of its first request
IDLE_S: Final = 75.0  # limit between two requests; a scraper with an interval of one minute keeps its connection
BUSY_S: Final = 5.0  # a request that takes longer makes room, too: it waits for events, or its client takes no answer
SWEEP_S: Final = 1.0  # how long after its limit a connection may be closed
LOG_AGAIN_S: Final = 60.0  # a flood of connections must not fill the disk with log lines


class AdminConnection(asyncio.Protocol):
    """One connection: passes all events to aiohttp's handler, and tracks the requests of its client."""

    def __init__(self, pool: "AdminConnections", handler: asyncio.Protocol) -> None:
        self._pool = pool
        self._handler = handler
        self._transport: asyncio.Transport | None = None  # None if the pool refused the connection, and after its end
        self.has_spoken = False
        self.requests = 0  # complete requests received
        self.in_progress = 0  # complete requests that are not answered yet
        self.busy_since_s = 0.0  # when the last complete request arrived
        self.quiet_since_s = 0.0  # when the connection was opened, or its last request was answered

    @property
    def usefulness(self) -> tuple[bool, bool, float]:
        """Sort key: the pool closes the smallest first. Silent connections come first, then those that have begun a request,
        then those that have completed one; within each class the oldest comes first."""
        return self.requests > 0, self.has_spoken, self.quiet_since_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # Its class is the loop's own business.
        if not self._pool.opened(self, stream):
            stream.abort()
            return
        self._transport = stream
        self._handler.connection_made(stream)

    def data_received(self, data: bytes) -> None:
        self.has_spoken = True
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            self._pool.closed(self, transport)
            self._handler.connection_lost(exc)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class AdminConnections:
    """All connections of one admin port. `clock` is the loop's, in seconds."""

    def __init__(self, clock: Callable[[], float], max_connections: int = MAX_CONNECTIONS) -> None:
        self._clock = clock
        self._max_connections = max_connections
        self._open: dict[
            asyncio.BaseTransport, AdminConnection
        ] = {}  # at most `max_connections`, and those being aborted
        self._leaving: set[AdminConnection] = set()
        self._logged_at_s = -LOG_AGAIN_S
        self.refused = 0

    def __len__(self) -> int:
        return len(self._open) - len(self._leaving)

    def accept(self, handler: asyncio.Protocol) -> AdminConnection:
        return AdminConnection(self, handler)

    def opened(self, connection: AdminConnection, transport: asyncio.Transport) -> bool:
        """Return whether the pool accepts the connection."""
        if len(self) >= self._max_connections and not self._make_room():
            return False
        connection.quiet_since_s = self._clock()
        self._open[transport] = connection
        return True

    def closed(self, connection: AdminConnection, transport: asyncio.Transport) -> None:
        self._open.pop(transport, None)
        self._leaving.discard(connection)

    @contextmanager
    def serving(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """A complete request arrived from this client: keep its connection."""
        connection = None if transport is None else self._open.get(transport)
        if connection is None:
            yield
            return
        connection.requests += 1
        connection.in_progress += 1
        connection.busy_since_s = self._clock()
        try:
            yield
        finally:
            connection.in_progress -= 1
            connection.quiet_since_s = self._clock()

    def sweep(self) -> None:
        """Close connections that have not completed a request in time, even if they have sent a part of it."""
        now_s = self._clock()
        for connection in self._waiting():
            limit_s = IDLE_S if connection.requests else FIRST_REQUEST_S
            if now_s - connection.quiet_since_s > limit_s:
                self._leave(connection)

    def _waiting(self) -> list[AdminConnection]:
        return [one for one in self._open.values() if not one.in_progress and one not in self._leaving]

    def _make_room(self) -> bool:
        self.refused += 1
        self._log()
        waiting = self._waiting()
        if waiting:
            self._leave(min(waiting, key=lambda one: one.usefulness))
            return True
        busy = [one for one in self._open.values() if one not in self._leaving]
        longest = min(busy, key=lambda one: one.busy_since_s, default=None)
        if longest is None or self._clock() - longest.busy_since_s < BUSY_S:
            return False
        self._leave(longest)
        return True

    def _leave(self, connection: AdminConnection) -> None:
        self._leaving.add(connection)
        connection.abort()

    def _log(self) -> None:
        now_s = self._clock()
        if now_s - self._logged_at_s >= LOG_AGAIN_S:
            self._logged_at_s = now_s
            log.warning(
                "too many connections to the admin API limit=%d; closing idle ones; check which clients connect to its port",
                self._max_connections,
            )

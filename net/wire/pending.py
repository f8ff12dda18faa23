"""The requests of a connection that wait for their responses: by correlation id, with one timer for the earliest deadline."""

import asyncio
import heapq
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError, RequestTimedOutError

from .protocol.requests import Request
from .protocol.responses import Response

_MIN_HEAP_TO_REBUILD: Final = 1024  # Deadlines of answered requests are removed when they outnumber the others.

Waiting = tuple["asyncio.Future[Response]", type[Request], float]  # the deadline in the loop's time


class PendingRequests:
    """Belongs to the loop's thread."""

    __slots__ = ("_loop", "_room", "_timer", "_timer_at", "_where", "by_id", "deadlines", "max_requests")

    def __init__(self, where: str, *, max_requests: int, loop: asyncio.AbstractEventLoop) -> None:
        self.by_id: dict[int, Waiting] = {}
        self.deadlines: list[tuple[float, int]] = []  # A heap of (deadline, id); may contain answered requests.
        self.max_requests = max_requests
        self._where = where
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._room: asyncio.Event | None = None  # Created by the first caller that has to wait for room.

    def add(self, correlation_id: int, request_type: type[Request], timeout_ms: int) -> "asyncio.Future[Response]":
        future: asyncio.Future[Response] = self._loop.create_future()
        deadline = self._loop.time() + timeout_ms / 1000
        self.by_id[correlation_id] = (future, request_type, deadline)
        deadlines = self.deadlines
        if len(deadlines) > _MIN_HEAP_TO_REBUILD and len(deadlines) > 2 * len(self.by_id):
            deadlines[:] = [(waiting[2], pending_id) for pending_id, waiting in self.by_id.items()]
            heapq.heapify(deadlines)
        else:
            heapq.heappush(deadlines, (deadline, correlation_id))
        if self._timer is None or deadline < self._timer_at:
            self._arm()
        return future

    def take(self, correlation_id: int) -> Waiting | None:
        """The response has arrived. None if the request is not waiting (any more)."""
        waiting = self.by_id.pop(correlation_id, None)
        if waiting is not None and self._room is not None:
            self._room.set()
        return waiting

    def fail(self, error: BarnabasError) -> None:
        """The connection is lost: none of them will get a response."""
        pending, self.by_id = self.by_id, {}
        self.deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future, _, _ in pending.values():
            if not future.done():
                # A separate exception for each: they accumulate tracebacks.
                future.set_exception(type(error)(error.message))
        if self._room is not None:
            self._room.set()

    async def room(self, timeout_ms: int | None) -> None:
        """Wait until there is room for another request. Raises RequestTimedOutError."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while len(self.by_id) >= self.max_requests:
                    if self._room is None:
                        self._room = asyncio.Event()
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError as error:
            raise RequestTimedOutError(f"no room for another request to {self._where} in {timeout_ms} ms") from error

    def _arm(self) -> None:
        """Set the one timer to the earliest deadline of a request that is still unanswered."""
        deadlines = self.deadlines
        while deadlines and deadlines[0][1] not in self.by_id:
            heapq.heappop(deadlines)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadlines:
            self._timer_at = deadlines[0][0]
            self._timer = self._loop.call_at(self._timer_at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self.deadlines and self.deadlines[0][0] <= now:
            _, correlation_id = heapq.heappop(self.deadlines)
            waiting = self.by_id.pop(correlation_id, None)
            if waiting is not None and not waiting[0].done():
                message = (
                    f"{self._where} did not answer {waiting[1].__name__} in time; whether it was done is not known"
                )
                waiting[0].set_exception(RequestTimedOutError(message))
        if self._room is not None:
            self._room.set()
        self._arm()

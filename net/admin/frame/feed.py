"""`Feed`: the newest state of something, for many readers of server-sent events. One computation serves all of them.

Nothing is computed while nobody reads. A reader gets the newest state and may miss those between two: it is never behind, and
nothing queues up for a slow one.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final

from .places import Places

TICK_S: Final = 0.5  # A loss of a replica is on the screen within a second.
CHECK_S: Final = 1.0  # A reader that has gone or may read no more is noticed within this time.
HEARTBEAT_S: Final = 15.0  # Proxies close connections that are silent for a minute.
MAX_STREAM_S: Final = 300.0  # Browsers connect again by themselves; permissions are then checked again.
MAX_READERS: Final = 16  # of one broker: a quarter of the connections of its admin port
EVENTS: Final = "text/event-stream"
HEARTBEAT: Final = ": still here\n\n"

State = dict[str, Any]


def event_of(state: State, kind: str = "", event_id: str = "") -> str:
    """As the format of server-sent events has it: JSON has no line breaks of its own.

    `event_id`: a browser that connects again sends that of the last event which it has.
    """
    named = f"event: {kind}\n" if kind else ""
    numbered = f"id: {event_id}\n" if event_id else ""
    return f"{named}{numbered}data: {json.dumps(state, separators=(',', ':'))}\n\n"


class Follower:
    """The events of one reader. It has its place from the beginning, also if nothing is ever read, until it is closed."""

    def __init__(self, events: AsyncGenerator[str, None], on_close: Callable[[], None]) -> None:
        self._events = events
        self._on_close: Callable[[], None] | None = on_close

    def __aiter__(self) -> AsyncIterator[str]:
        return self._events

    async def aclose(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
        await self._events.aclose()


class Feed:
    def __init__(self, source: Callable[[], object], compute: Callable[[], Awaitable[State]]) -> None:
        """`compute` is called for every new object that `source` returns, at most once a tick."""
        self._source = source
        self._compute = compute
        self._places = Places(
            MAX_READERS,
            f"{MAX_READERS} readers follow this broker already: close a page of the console, or use another broker",
        )
        self._state: State = {}
        self._version = 0
        self._event: tuple[int, str] = -1, ""  # of the whole state in that version: most readers may see all of it
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def follow(self, view: Callable[[State], State], user: str = "") -> "Follower":
        """Events, until the stream is old; close it. `view`: the part of the state that the reader may see. An event "" only asks
        whether the reader is there, and may still read. `user`: see `Places.take`. Raises ApiError."""
        leave = self._places.take(user)
        return Follower(self._events(view), lambda: self._left(leave))

    def _left(self, leave: Callable[[], None]) -> None:
        leave()
        if not self._places.taken and self._task is not None:
            self._task.cancel()

    async def _events(self, view: Callable[[State], State]) -> AsyncGenerator[str, None]:
        loop = asyncio.get_running_loop()
        ends_s, beats_s = loop.time() + MAX_STREAM_S, loop.time() + HEARTBEAT_S
        sent, version = "", -1
        if self._task is None or self._task.done() or self._task.cancelling():
            self._task = loop.create_task(self._keep_current())
        while (now_s := loop.time()) < ends_s:
            if version != self._version:
                version = self._version
                event = self._event_for(view) if self._state else ""
                if event != sent:
                    sent = event
                    yield event
                    continue
            try:
                async with asyncio.timeout(min(CHECK_S, ends_s - now_s)):
                    await self._changed.wait()
            except TimeoutError:
                is_due = loop.time() >= beats_s
                beats_s = loop.time() + HEARTBEAT_S if is_due else beats_s
                yield HEARTBEAT if is_due else ""

    def _event_for(self, view: Callable[[State], State]) -> str:
        seen = view(self._state)
        if seen is not self._state:
            return event_of(seen)
        if self._event[0] != self._version:
            self._event = self._version, event_of(seen)
        return self._event[1]

    async def _keep_current(self) -> None:
        seen: object = None
        while True:
            source = self._source()
            if source is not seen:
                seen = source
                state = await self._compute()
                if state != self._state:
                    self._state = state
                    self._version += 1
                    changed, self._changed = self._changed, asyncio.Event()
                    changed.set()
            await asyncio.sleep(TICK_S)

"""The clock as a port: monotonic time for deadlines, wall time for timestamps. In simulation, both are virtual."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Monotonic time; comparable only with other values of the same clock."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as in record timestamps. May jump."""


class SystemClock:
    """The real clock. Monotonic time is the event loop's, so that deadlines and timers agree."""

    __slots__ = ("_time",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._time = (loop or asyncio.get_running_loop()).time

    def now_ms(self) -> int:
        return int(self._time() * 1000)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SimulatedClock:
    """Both times are derived from the loop's virtual time. `skew_ms` makes one node's wall clock run ahead or behind."""

    __slots__ = ("_epoch_ms", "_time", "skew_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, epoch_ms: int = 1_700_000_000_000, skew_ms: int = 0) -> None:
        self._time = loop.time
        self._epoch_ms = epoch_ms
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return int(self._time() * 1000)

    def wall_ms(self) -> int:
        return self._epoch_ms + self.now_ms() + self.skew_ms

"""How late an event loop runs what is due. Everything else on the loop waits as long, so this is what clients notice of a stall.

The delays of regular checks are counted, because a stall that no check meets is short; `measure` makes the checks.
"""

import asyncio
from typing import Final

from .histogram import Histogram

CHECK_INTERVAL_S: Final = 0.1  # ten wake-ups a second cost an idle broker a thousandth of a core
BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
WINDOW_S: Final = 60.0  # `longest_s` looks back over one to two of these: longer than the pause between two scrapes


class LoopDelays:
    """Pure. `histogram` has all delays."""

    def __init__(self) -> None:
        self.histogram = Histogram(BOUNDS_S)
        self._longest_s = 0.0  # in this window
        self._longest_before_s = 0.0  # in the window before it
        self._window_ends_s = 0.0

    def note(self, delay_s: float, now_s: float) -> None:
        self.histogram.note(delay_s)
        self._turn_window(now_s)
        self._longest_s = max(self._longest_s, delay_s)

    def later_than(self, bound_s: float) -> int:
        """The number of checks that were later than this bound of BOUNDS_S."""
        return sum(self.histogram.counts[BOUNDS_S.index(bound_s) + 1 :])

    @property
    def checks(self) -> int:
        return self.histogram.count

    @property
    def longest_s(self) -> float:
        return max(self._longest_s, self._longest_before_s)

    def _turn_window(self, now_s: float) -> None:
        if now_s >= self._window_ends_s:
            is_next = now_s < self._window_ends_s + WINDOW_S
            self._longest_before_s = self._longest_s if is_next else 0.0
            self._longest_s = 0.0
            self._window_ends_s = now_s + WINDOW_S


async def measure(delays: LoopDelays) -> None:
    """Check the running loop until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + CHECK_INTERVAL_S
        await asyncio.sleep(CHECK_INTERVAL_S)
        now_s = loop.time()
        delays.note(max(0.0, now_s - due_s), now_s)

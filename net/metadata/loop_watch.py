"""Whether the broker's loop still answers, as its quorum sees it from another thread. Pure.

A voter whose loop stands still (a disk that hangs in a write, a computation without an end) is a voter that serves nobody:
as leader of the quorum it would keep a controller that takes no heartbeat and fences nobody. So it does not lead. And while
it is deaf, no session of a broker ends: the heartbeats wait in front of its port.
"""

from typing import Final

ASK_INTERVAL_MS: Final = 100  # short beside the limit, and nothing beside what a loop does in that time
# A tick of the quorum's own loop never counts for more than this: after SIGCONT, or when the machine was asleep, both stood
# still, and the broker's loop must first have had the time to answer.
MAX_COUNTED_MS: Final = 2 * ASK_INTERVAL_MS
# A busy loop answers late all the time. Up to this part of the limit (a sixth of a session) a heartbeat may come late without
# harm, and the clock goes on: if it stood still in each of these moments, a broker that has died would not be missed for minutes.
ORDINARY_PART: Final = 4


class LoopWatch:
    """One question is open at a time. Invariant: `silent_ms` is 0 while none is open."""

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._ordinary_ms = limit_ms // ORDINARY_PART
        self._is_open = False
        self._ticked_ms = 0
        self._deaf_ms = 0  # in all silences that are over, as far as the clock stood still
        self.silent_ms = 0

    @property
    def is_silent(self) -> bool:
        """No answer for longer than the limit."""
        return self.silent_ms >= self._limit_ms

    def tick(self, now_ms: int) -> bool:
        """Call it every ASK_INTERVAL_MS. True: put a question to the loop now, and `answered` when it has answered."""
        if self._is_open:
            self.silent_ms += min(max(now_ms - self._ticked_ms, 0), MAX_COUNTED_MS)
        asks, self._is_open, self._ticked_ms = not self._is_open, True, now_ms
        return asks

    def answered(self) -> None:
        self._is_open = False
        self._deaf_ms += self._too_long_ms
        self.silent_ms = 0

    @property
    def _too_long_ms(self) -> int:
        """Of the silence, what is more than a busy loop may take."""
        return max(0, self.silent_ms - self._ordinary_ms)

    def heard_ms(self, now_ms: int) -> int:
        """A clock that stands still while the loop is silent for longer than busy loops are. It never goes back."""
        return now_ms - self._deaf_ms - self._too_long_ms

"""Monitors from the quorum's thread whether the broker's loop still answers. Pure.

A voter whose loop is blocked (a disk that hangs in a write, an endless computation) serves no requests: as leader of the quorum,
it would have a controller that receives no heartbeats and fences no broker. Therefore, it does not lead. While its loop is
blocked, no session of a broker ends: the heartbeats wait at its port.
"""

from typing import Final

ASK_INTERVAL_MS: Final = 100  # short compared with the limit, and a negligible load for the loop
# A tick of the quorum's own loop never counts for more than this: after SIGCONT, or when the machine was suspended, both loops
# were stopped, and the broker's loop must first have time to answer.
MAX_COUNTED_MS: Final = 2 * ASK_INTERVAL_MS
# A busy loop often answers late. Up to this fraction of the limit (a sixth of a session), a late heartbeat does no harm, and the
# clock continues: if it stopped for each of these moments, a dead broker would not be detected for minutes.
ORDINARY_PART: Final = 4


class LoopWatch:
    """At most one question is open. Invariant: `silent_ms` is 0 while no question is open."""

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._ordinary_ms = limit_ms // ORDINARY_PART
        self._is_open = False
        self._ticked_ms = 0
        self._deaf_ms = 0  # of all past silences, the time for which the clock was stopped
        self.silent_ms = 0

    @property
    def is_silent(self) -> bool:
        """Return whether there was no answer for longer than the limit."""
        return self.silent_ms >= self._limit_ms

    def tick(self, now_ms: int) -> bool:
        """Call it every ASK_INTERVAL_MS. If it returns True, ask the loop now, and call `answered` when the loop answers."""
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
        """The part of the silence beyond that of a busy loop."""
        return max(0, self.silent_ms - self._ordinary_ms)

    def heard_ms(self, now_ms: int) -> int:
        """A clock that stops while the loop is silent for longer than a busy loop may be. It never goes back."""
        return now_ms - self._deaf_ms - self._too_long_ms

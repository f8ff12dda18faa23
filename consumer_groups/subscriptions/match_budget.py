"""The time that an event loop spends on matching patterns: a token bucket, which all coordinators of a broker share. Pure.

A match costs its worst-case time (`NamePattern.worst_ns`), not its measured time, so that a decision depends only on its input.
"""

from typing import Final

# New patterns and topics are matched in the same decision if this suffices: a usual pattern and some thousand topics.
BURST_NS: Final = 10_000_000
NS_PER_MS: Final = 250_000  # a quarter of the loop's time, however many patterns wait: the rest is for other work


class MatchBudget:
    """The remaining budget is at most `burst_ns`; it may fall below 0 by the cost of one compilation and one match."""

    def __init__(self, now_ms: int, *, burst_ns: int = BURST_NS, ns_per_ms: int = NS_PER_MS) -> None:
        self._burst_ns = burst_ns
        self._ns_per_ms = ns_per_ms
        self._left_ns = burst_ns
        self._at_ms = now_ms

    def refill(self, now_ms: int) -> None:
        passed_ms = max(0, now_ms - self._at_ms)
        self._left_ns = min(self._burst_ns, self._left_ns + passed_ms * self._ns_per_ms)
        self._at_ms = max(now_ms, self._at_ms)

    @property
    def left_ns(self) -> int:
        return self._left_ns

    @property
    def is_left(self) -> bool:
        return self._left_ns > 0

    def spend(self, cost_ns: int) -> None:
        self._left_ns -= cost_ns

    def next_ms(self) -> int:
        """When to continue: later than the last refill."""
        return self._at_ms + max(1, -self._left_ns // self._ns_per_ms + 1)

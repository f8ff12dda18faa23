"""How much time an event loop gives to patterns: a token bucket, which all coordinators of a broker share. Pure.

Time is what a match takes at worst (`NamePattern.worst_ns`), not what it took, so that a decision depends on its input alone.
"""

from typing import Final

# What is new is matched in the same decision where this suffices: a usual pattern and some thousand topics.
BURST_NS: Final = 10_000_000
NS_PER_MS: Final = 250_000  # a quarter of the loop, however many patterns wait: the rest is for everybody else


class MatchBudget:
    """What is left is at most `burst_ns`; it is negative by the cost of one compilation and one match at most."""

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
        """When to come back: later than the last refill."""
        return self._at_ms + max(1, -self._left_ns // self._ns_per_ms + 1)

"""A histogram of durations as Prometheus has it: how many were within each bound, and their sum."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

# Of requests and commits: from a request of one record on an idle broker to a request that times out.
LATENCY_BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


class Histogram:
    """Pure. `counts` are by the smallest bound that was kept; the last one: by none. One thread notes, others may read."""

    __slots__ = ("bounds_s", "counts", "total_s")

    def __init__(self, bounds_s: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds_s = tuple(bounds_s)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.total_s = 0.0

    def note(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += times
        self.total_s += seconds * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def within(self) -> Iterator[tuple[float, int]]:
        """Each bound with the number of durations that kept it."""
        found = 0
        for bound_s, count in zip(self.bounds_s, self.counts, strict=False):
            found += count
            yield bound_s, found


def note_each(histograms: Sequence[Histogram], seconds: Sequence[float], times: int) -> None:
    """A duration in each histogram, as `note` does it, but in one call: of the hot path."""
    for histogram, duration_s in zip(histograms, seconds, strict=False):
        histogram.counts[bisect_left(histogram.bounds_s, duration_s)] += times
        histogram.total_s += duration_s * times

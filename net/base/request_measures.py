"""What a broker measures of its requests: how long they take, in parts, and the errors that they end with.

The recording of a request is part of its hot path: one call, three or four searches in a short table, and no allocation.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from .histogram import LATENCY_BOUNDS_S, Histogram

PRODUCE: Final = 0  # the keys of both protocols
FETCH: Final = 1
FOLLOWER_FETCH: Final = -1  # FETCH by a replica: it waits for records that a consumer may not see yet
TOTAL: Final = "total"
QUEUE: Final = "queue"
LOG: Final = "log"
# The part that is no work of this broker: what a request waits for once it has been handled.
WAITS: Final = {PRODUCE: "followers", FETCH: "records", FOLLOWER_FETCH: "records"}


class RequestMeasures:
    """One per broker, for all its ports; belongs to the loop's thread. Bounded by the number of APIs and errors in the protocols.

    Times are seconds of one monotonic clock. `group_appends` are the appends of group coordinators to the quorum, `commits` those
    of the controller here: from the decision to the commit by a majority.
    """

    def __init__(self) -> None:
        self._totals: dict[int, Histogram] = {}
        self._parts: dict[int, tuple[Histogram, Histogram, Histogram]] = {  # queue, log, wait
            api: (Histogram(), Histogram(), Histogram()) for api in WAITS
        }
        self.errors: dict[tuple[int, int], int] = {}  # by API and code; of each partition that is refused
        self.group_appends = Histogram()
        self.commits = Histogram()  # noted by the quorum's thread

    def answered(self, api: int, arrived_s: float, handed_s: float, waits_since_s: float, now_s: float) -> None:
        """`handed_s`: when the handler got it. `waits_since_s`: when it began to wait; 0.0: it never did."""
        total = self._totals.get(api)
        if total is None:
            total = self._totals[api] = Histogram()
        took_s = now_s - arrived_s
        total.counts[bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
        total.total_s += took_s
        parts = self._parts.get(api)
        if parts is None:
            return
        queue, log, wait = parts
        took_s = handed_s - arrived_s
        queue.counts[bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
        queue.total_s += took_s
        if waits_since_s:
            took_s = now_s - waits_since_s
            wait.counts[bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
            wait.total_s += took_s
            now_s = waits_since_s
        took_s = now_s - handed_s
        log.counts[bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
        log.total_s += took_s

    def failed(self, api: int, code: int) -> None:
        key = (api, code)
        self.errors[key] = self.errors.get(key, 0) + 1

    def histograms(self) -> Iterator[tuple[int, str, Histogram]]:
        """API, part, and its durations; of APIs that were used."""
        for api, total in sorted(self._totals.items()):
            yield api, TOTAL, total
            if api in self._parts:
                yield from zip((api,) * 3, (QUEUE, LOG, WAITS[api]), self._parts[api], strict=True)

"""What a broker measures of its requests: how long they take, in parts, and the errors that they end with.

The recording is part of the hot path: requests that are handled in one wake-up and do not wait are recorded together.
"""

from collections.abc import Iterator
from typing import Final

from .histogram import Histogram, note_each

PRODUCE: Final = 0  # the keys of both protocols
FETCH: Final = 1
FOLLOWER_FETCH: Final = -1  # FETCH by a replica: it waits for records that a consumer may not see yet
MAX_SOFTWARE: Final = 100
MAX_TEXT: Final = 50
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
        # Those of the hot paths are there before they are used: a metric must exist before it is needed.
        self._totals = {api: Histogram() for api in WAITS}
        self._parts: dict[int, tuple[Histogram, Histogram, Histogram]] = {  # queue, log, wait
            api: (Histogram(), Histogram(), Histogram()) for api in WAITS
        }
        # by API: total, and queue and log where these are measured
        self._at_once: dict[int, tuple[Histogram, ...]] = {}
        self.errors: dict[tuple[int, int], int] = {}  # by API and code; of each partition that is refused
        self.software: dict[tuple[str, str], int] = {}  # name and version of clients: how often they have said so
        self.group_appends = Histogram()
        self.commits = Histogram()  # noted by the quorum's thread

    def answered(self, api: int, times_s: tuple[float, float], waits_since_s: float, now_s: float) -> None:
        """`times_s`: its arrival, and when its handling began. `waits_since_s`: when it began to wait; 0.0: it never did."""
        arrived_s, began_s = times_s
        self._total(api).note(now_s - arrived_s)
        parts = self._parts.get(api)
        if parts is None:
            return
        queue, log, wait = parts
        queue.note(began_s - arrived_s)
        if waits_since_s:
            wait.note(now_s - waits_since_s)
            now_s = waits_since_s
        log.note(now_s - began_s)

    def answered_at_once(self, counts: dict[int, int], times_s: tuple[float, float], now_s: float) -> None:
        """Requests that arrived together, by API, and did not wait: their answers leave together. Empties `counts`."""
        arrived_s, began_s = times_s
        seconds = (now_s - arrived_s, began_s - arrived_s, now_s - began_s)
        for api, count in counts.items():
            histograms = self._at_once.get(api)
            if histograms is None:
                histograms = self._at_once[api] = (self._total(api), *self._parts.get(api, ())[:2])
            note_each(histograms, seconds, count)
        counts.clear()

    def _total(self, api: int) -> Histogram:
        return self._totals.get(api) or self._totals.setdefault(api, Histogram())

    def failed(self, api: int, code: int) -> None:
        key = (api, code)
        self.errors[key] = self.errors.get(key, 0) + 1

    def greeted(self, name: str, version: str) -> None:
        """Clients choose these texts, so they are cut, and of too many only the first ones are kept."""
        key = (name[:MAX_TEXT], version[:MAX_TEXT])
        if key in self.software or len(self.software) < MAX_SOFTWARE:
            self.software[key] = self.software.get(key, 0) + 1

    def histograms(self) -> Iterator[tuple[int, str, Histogram]]:
        """API, part, and its durations; of the APIs that were used, and of produce and fetch."""
        for api, total in sorted(self._totals.items()):
            yield api, TOTAL, total
            if api in self._parts:
                yield from zip((api,) * 3, (QUEUE, LOG, WAITS[api]), self._parts[api], strict=True)

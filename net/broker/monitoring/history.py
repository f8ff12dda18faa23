"""The last hour of a broker's latencies and load, for those who have no Prometheus. Pure; `figures` reads the clocks."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.net.base.figures.histogram import Histogram
from barnabas.net.base.figures.request_measures import FETCH, LOG, PRODUCE, QUEUE, TOTAL, WAITS, RequestMeasures
from barnabas.net.wire.protocol.broker_figures import HistoryPoint

POINTS: Final = 360  # an hour: about 250 KB
UNKNOWN: Final = -1.0
LOOP: Final = "loop"
COMMITS: Final = "commits"
GROUPS: Final = "groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What has been counted until a time. `buckets` are the counts of histograms by their names, `bounds_s` their bounds."""

    at_s: float  # monotonic
    wall_ms: int
    requests: int
    errors: int
    bytes_in: int
    bytes_out: int
    connections: int
    memory_bytes: int
    buckets: Mapping[str, tuple[int, ...]]
    bounds_s: Mapping[str, tuple[float, ...]]


def buckets_of(measures: RequestMeasures, loop: Histogram) -> dict[str, Histogram]:
    """The histograms that the history is about, by name."""
    found = {LOOP: loop, COMMITS: measures.commits, GROUPS: measures.group_appends}
    for api, part, histogram in measures.histograms():
        if api in (PRODUCE, FETCH):
            found[f"{api}.{part}"] = histogram
    return found


def quantile_ms(bounds_s: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Milliseconds within which this share of the durations was, interpolated as Prometheus does; -1: there were none.

    Durations beyond the last bound count as that bound.
    """
    total = sum(counts)
    if total <= 0:
        return UNKNOWN
    rank, seen, lower_s = share * total, 0, 0.0
    for bound_s, count in zip(bounds_s, counts, strict=False):
        if count and seen + count >= rank:
            return 1000 * (lower_s + (bound_s - lower_s) * (rank - seen) / count)
        seen += count
        lower_s = bound_s
    return 1000 * bounds_s[-1]


class History:
    """Differences of readings, the oldest first."""

    def __init__(self) -> None:
        self.points: deque[HistoryPoint] = deque(maxlen=POINTS)
        self._before: Reading | None = None

    def note(self, now: Reading) -> None:
        before, self._before = self._before, now
        if before is not None and now.at_s > before.at_s:
            self.points.append(_point(before, now))


def _point(before: Reading, now: Reading) -> HistoryPoint:
    passed_s = now.at_s - before.at_s

    def latency(name: str, share: float) -> float:
        counts = now.buckets.get(name, ())
        old = before.buckets.get(name, (0,) * len(counts))
        return quantile_ms(now.bounds_s.get(name, ()), [new - was for new, was in zip(counts, old, strict=True)], share)

    return HistoryPoint(
        at_ms=now.wall_ms,
        produce_p50_ms=latency(f"{PRODUCE}.{TOTAL}", 0.5),
        produce_p99_ms=latency(f"{PRODUCE}.{TOTAL}", 0.99),
        produce_queue_p99_ms=latency(f"{PRODUCE}.{QUEUE}", 0.99),
        produce_log_p99_ms=latency(f"{PRODUCE}.{LOG}", 0.99),
        produce_followers_p99_ms=latency(f"{PRODUCE}.{WAITS[PRODUCE]}", 0.99),
        fetch_log_p99_ms=latency(f"{FETCH}.{LOG}", 0.99),
        commit_p99_ms=latency(COMMITS, 0.99),
        group_append_p99_ms=latency(GROUPS, 0.99),
        loop_p99_ms=latency(LOOP, 0.99),
        requests_per_s=(now.requests - before.requests) / passed_s,
        errors_per_s=(now.errors - before.errors) / passed_s,
        in_per_s=int((now.bytes_in - before.bytes_in) / passed_s),
        out_per_s=int((now.bytes_out - before.bytes_out) / passed_s),
        connections=now.connections,
        memory_bytes=now.memory_bytes,
    )

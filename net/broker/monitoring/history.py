"""The last hour of a broker's latencies and load and of its groups' lag, for those who have no Prometheus.

Pure; `figures` and `group_lags` read the clocks.
"""

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...base.histogram import Histogram
from ...base.request_measures import FETCH, LOG, PRODUCE, QUEUE, TOTAL, WAITS, RequestMeasures
from ...protocol.broker_figures import HistoryPoint
from ...protocol.group_responses import LAG_STEP_MS, LagPoint

POINTS: Final = 360  # an hour: about 250 KB
LAG_POINTS: Final = 3_600_000 // LAG_STEP_MS  # of a group
MAX_GROUPS: Final = 500  # whose lag is remembered: 24 bytes for each point
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """The lag of a group at a time. `unread` and `lag_ms`: -1: unknown."""

    unread: int  # records
    lag_ms: int
    topics: tuple[str, ...]


class _GroupLag:
    """Columns of numbers: points as objects would take five times as much."""

    __slots__ = ("columns", "topics")

    def __init__(self) -> None:
        self.columns = (array("q"), array("q"), array("q"))
        self.topics: dict[str, int] = {}  # of any of the points: when it was last among those of the group

    def add(self, at_ms: int, reading: GroupReading) -> None:
        self.topics |= dict.fromkeys(reading.topics, at_ms)
        for column, value in zip(self.columns, (at_ms, reading.unread, reading.lag_ms), strict=True):
            column.append(value)
            del column[:-LAG_POINTS]
        if len(self.topics) > len(reading.topics):
            oldest_ms = self.columns[0][0]
            self.topics = {topic: seen_ms for topic, seen_ms in self.topics.items() if seen_ms >= oldest_ms}


class GroupLags:
    """The lag of the groups that this broker coordinates, in the last hour.

    A coordinator that is new has nothing of the time before it, and the one that was forgets.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _GroupLag] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def chosen(self, listed: Sequence[str]) -> list[str]:
        """Which of these groups to look at, at most MAX_GROUPS: known ones first. All that are not listed are forgotten."""
        self._groups = {name: self._groups[name] for name in listed if name in self._groups}
        new = [name for name in listed if name not in self._groups]
        return [*self._groups, *new][:MAX_GROUPS]

    def note(self, at_ms: int, readings: Mapping[str, GroupReading]) -> None:
        """Readings of groups that were chosen. `at_ms`: wall clock."""
        for name, reading in readings.items():
            self._groups.setdefault(name, _GroupLag()).add(at_ms, reading)
        assert len(self._groups) <= MAX_GROUPS

    def of(self, group_id: str) -> tuple[tuple[LagPoint, ...], tuple[str, ...]]:
        """Points, the oldest first, and the topics that they are about."""
        found = self._groups.get(group_id)
        if found is None:
            return (), ()
        points = zip(*found.columns, strict=True)
        return tuple(LagPoint(at_ms=at, unread=unread, lag_ms=ms) for at, unread, ms in points), tuple(found.topics)

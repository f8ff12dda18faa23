"""The lag of groups in the last hour: of those that this broker coordinates, and copies of what other brokers have measured.

Pure; `group_lags` looks at the lags, and `lag_copies` exchanges the copies.
"""

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from barnabas.log.settings.kinds import MAX_INT64
from barnabas.net.wire.protocol.group_responses import LAG_STEP_MS, LagPoint
from barnabas.net.wire.protocol.lag import GroupLagHistory

HOUR_MS: Final = 3_600_000
LAG_POINTS: Final = HOUR_MS // LAG_STEP_MS  # of a group
MAX_GROUPS: Final = 500  # that this broker coordinates and remembers: 24 bytes for each point
MAX_COPIES: Final = 500  # groups of which it keeps what others have measured
MAX_AHEAD_MS: Final = 300_000  # Clocks of brokers may differ so much; a point of later is of a clock that was wrong.
MAX_TOPICS: Final = 1_000  # of a group of which other brokers keep a copy: all of them must be in one message
MAX_GROUP_CHARS: Final = 32_767  # of its name, as Kafka's protocol has it
MAX_TOPIC_CHARS: Final = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """The lag of a group at a time. `unread` and `lag_ms`: -1: unknown."""

    unread: int  # records
    lag_ms: int
    topics: tuple[str, ...]


class _GroupLag:
    """Columns of numbers: points as objects would take five times as much. Sorted by time, with one point at a time."""

    __slots__ = ("columns", "topics")

    def __init__(self) -> None:
        self.columns = (array("q"), array("q"), array("q"))
        self.topics: dict[str, int] = {}  # of any of the points: when it was last among those of the group

    @property
    def newest_ms(self) -> int:
        """Wall clock of the last point; -1: there is none."""
        times = self.columns[0]
        return times[-1] if times else -1

    def forget_future(self, now_ms: int) -> None:
        """Points of a clock that was wrong: each later one would be older than an hour beside them."""
        if self.newest_ms <= now_ms + MAX_AHEAD_MS:
            return
        first = bisect_right(self.columns[0], now_ms + MAX_AHEAD_MS)
        for column in self.columns:
            del column[first:]
        self.topics = {topic: min(seen_ms, now_ms) for topic, seen_ms in self.topics.items()} if first else {}

    def add(self, at_ms: int, reading: GroupReading) -> None:
        if at_ms <= self.newest_ms:  # a copy of a broker whose clock is ahead
            self._merge({at_ms: (reading.unread, reading.lag_ms)})
        else:
            for column, value in zip(self.columns, (at_ms, reading.unread, reading.lag_ms), strict=True):
                column.append(value)
        self._know(reading.topics, at_ms)

    def merge(self, history: GroupLagHistory) -> None:
        """Points that are here already stay."""
        times = history.times_ms
        is_sorted = all(one < other for one, other in pairwise(times))
        if is_sorted and times[0] > self.newest_ms:  # the usual one: a new point
            for column, some in zip(self.columns, (times, history.unread_counts, history.lags_ms), strict=True):
                column.extend(some)
        else:
            self._merge(dict(zip(times, zip(history.unread_counts, history.lags_ms, strict=True), strict=True)))
        self._know(history.topics, times[-1])

    def after(self, group_id: str, at_ms: int) -> GroupLagHistory | None:
        """Points that are newer than that. None: a copy that lacked a topic would tell too much to some."""
        if len(self.topics) > MAX_TOPICS:
            return None
        first = bisect_right(self.columns[0], at_ms)
        times, unread, lags = (tuple(column[first:]) for column in self.columns)
        return GroupLagHistory(
            group_id=group_id, times_ms=times, unread_counts=unread, lags_ms=lags, topics=tuple(self.topics)
        )

    def _merge(self, points: dict[int, tuple[int, int]]) -> None:
        for at_ms, unread, lag_ms in zip(*self.columns, strict=True):
            points[at_ms] = unread, lag_ms
        rows = sorted((at_ms, *values) for at_ms, values in points.items())
        for number, column in enumerate(self.columns):
            column[:] = array("q", [row[number] for row in rows])

    def _know(self, topics: Sequence[str], at_ms: int) -> None:
        """Also forgets what is older than an hour."""
        times = self.columns[0]
        too_old = bisect_right(times, times[-1] - HOUR_MS)
        if (surplus := max(too_old, len(times) - LAG_POINTS)) > 0:
            for column in self.columns:
                del column[:surplus]
        for topic in topics:
            self.topics[topic] = max(at_ms, self.topics.get(topic, at_ms))
        if len(self.topics) > len(topics):
            self.topics = {topic: seen_ms for topic, seen_ms in self.topics.items() if seen_ms >= times[0]}


class GroupLags:
    """The lag of groups in the last hour."""

    def __init__(self) -> None:
        self._groups: dict[str, _GroupLag] = {}  # that this broker coordinates
        self._copies: dict[str, _GroupLag] = {}  # of other groups; the longest unchanged one first

    def __len__(self) -> int:
        return len(self._groups)

    def chosen(self, listed: Sequence[str]) -> list[str]:
        """Which of these groups, all that this broker coordinates, to look at: at most MAX_GROUPS, known ones first.

        What it knows of others becomes a copy: another coordinator may ask for it.
        """
        names = dict.fromkeys(listed)
        for name in [name for name in self._groups if name not in names]:
            self._copy(name, self._groups.pop(name))
        new = [name for name in names if name not in self._groups]
        return [*self._groups, *new][:MAX_GROUPS]

    def note(self, at_ms: int, readings: Mapping[str, GroupReading]) -> None:
        """Readings of groups that were chosen. `at_ms`: wall clock."""
        for name, reading in readings.items():
            if name not in self._groups:
                self._groups[name] = self._taken(name)
            self._groups[name].forget_future(at_ms)
            self._groups[name].add(at_ms, reading)
        assert len(self._groups) <= MAX_GROUPS

    def keep(self, history: GroupLagHistory, *, now_ms: int) -> None:
        """What another broker remembers of a group. Raises ValueError if its columns do not belong together."""
        _check(history)
        history = _without_future(history, now_ms)
        if not history.times_ms:
            return
        known = self._groups.get(history.group_id) or self._copies.get(history.group_id)
        if len(set(history.topics).union(known.topics if known else ())) > MAX_TOPICS:
            self._copies.pop(history.group_id, None)
            return
        if (own := self._groups.get(history.group_id)) is not None:
            own.forget_future(now_ms)
            own.merge(history)
            return
        found = self._taken(history.group_id)
        found.forget_future(now_ms)
        found.merge(history)
        self._copy(history.group_id, found)

    def forget_old(self, now_ms: int) -> None:
        """Copies without a point in the last hour."""
        for found in self._copies.values():
            found.forget_future(now_ms)
        old = [name for name, found in self._copies.items() if found.newest_ms <= now_ms - HOUR_MS]
        for name in old:
            del self._copies[name]

    def newest_of_own(self) -> dict[str, int]:
        """The time of the last point of each group that this broker coordinates."""
        return {name: found.newest_ms for name, found in self._groups.items()}

    def after(self, group_id: str, at_ms: int) -> GroupLagHistory | None:
        """What other brokers may know of a group and is newer than that; None: nothing."""
        found = self._groups.get(group_id) or self._copies.get(group_id)
        return None if found is None else found.after(group_id, at_ms)

    def of(self, group_id: str) -> tuple[tuple[LagPoint, ...], tuple[str, ...]]:
        """Points, the oldest first, and the topics that they are about."""
        found = self._groups.get(group_id) or self._copies.get(group_id)
        if found is None:
            return (), ()
        points = zip(*found.columns, strict=True)
        return tuple(LagPoint(at_ms=at, unread=unread, lag_ms=ms) for at, unread, ms in points), tuple(found.topics)

    def _taken(self, name: str) -> _GroupLag:
        """A copy, which it gives up, or nothing yet."""
        return self._copies.pop(name) if name in self._copies else _GroupLag()

    def _copy(self, name: str, found: _GroupLag) -> None:
        self._copies[name] = found
        while len(self._copies) > MAX_COPIES:
            del self._copies[next(iter(self._copies))]


def _check(history: GroupLagHistory) -> None:
    columns = history.times_ms, history.unread_counts, history.lags_ms
    if not len(columns[0]) == len(columns[1]) == len(columns[2]):
        raise ValueError("columns of different length")
    if any(not -1 <= number <= MAX_INT64 for column in columns for number in column):
        raise ValueError(f"a number is not from -1 to {MAX_INT64}")
    if len(history.group_id) > MAX_GROUP_CHARS or any(len(topic) > MAX_TOPIC_CHARS for topic in history.topics):
        raise ValueError(
            f"the name of a group has more than {MAX_GROUP_CHARS} characters, or that of a topic more than {MAX_TOPIC_CHARS}"
        )


def _without_future(history: GroupLagHistory, now_ms: int) -> GroupLagHistory:
    newest_ms = now_ms + MAX_AHEAD_MS
    if all(at_ms <= newest_ms for at_ms in history.times_ms):
        return history
    columns = history.times_ms, history.unread_counts, history.lags_ms
    kept = [row for row in zip(*columns, strict=True) if row[0] <= newest_ms]
    times, unread, lags = (tuple(row[number] for row in kept) for number in range(3))
    return replace(history, times_ms=times, unread_counts=unread, lags_ms=lags)

"""Which records of a topic a table has: from where to where in each partition. Fixed once, before the first record is read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import READ_UNCOMMITTED

from ..connection.client import Client
from ..connection.errors import InvalidRequestError
from ..connection.records import OffsetAndTimestamp
from ..positions.offset_lookup import EARLIEST, LATEST, list_offsets, topic_id_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
TIMEOUT_MS = 60_000  # Longer than any election, and than a cluster that is just starting needs.
Offsets = Mapping[TopicPartition, int]
# An offset, a time, "start", "end", "@" and milliseconds since 1970, or an offset for each partition.
Position = int | datetime | str | Mapping[int, int]


class RecordRange(NamedTuple):
    """The records from `start` on and before `end`."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: str  # of the topic that these offsets are of


class _Asked(NamedTuple):
    """A position; one of the fields is not None."""

    offsets: Mapping[int, int] | None  # by partition
    offset: int | None  # of all partitions
    time_ms: int | None  # or EARLIEST, LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuery:
    """Raises InvalidRequestError for positions that are none."""

    topic: str
    start: Position = "start"
    end: Position = "end"
    partitions: tuple[int, ...] | None = None  # None: all
    isolation_level: int = READ_UNCOMMITTED
    timeout_ms: int = TIMEOUT_MS

    def __post_init__(self) -> None:
        _asked(self.start, "start")
        _asked(self.end, "end")

    async def ranges(self, client: Client) -> list[RecordRange]:
        """Of each partition, within what its log has now. Raises InvalidRequestError, UnknownTopicOrPartitionError, and
        TopicRecreatedError if the topic was created again between two of these questions."""
        await client.wait_for_topic(self.topic, timeout_ms=self.timeout_ms)
        count = client.metadata.partition_count(self.topic)
        chosen = _chosen(self.topic, count, self.partitions)
        for position in (self.start, self.end):
            if isinstance(position, Mapping):
                _chosen(self.topic, count, position)
        found: dict[int, dict[TopicPartition, OffsetAndTimestamp]] = {}
        for time_ms in self._times_ms():
            found[time_ms] = await self._offsets(client, chosen, time_ms)
        topic_id = topic_id_of(self.topic, found.values())
        offsets = {time_ms: {place: at.offset for place, at in each.items()} for time_ms, each in found.items()}
        earliest, latest = offsets[EARLIEST], offsets[LATEST]
        starts = self._at(_asked(self.start, "start"), offsets)
        ends = self._at(_asked(self.end, "end"), offsets)
        return [
            RecordRange(
                partition,
                first := max(starts.get(partition, 0), earliest[partition]),
                max(first, min(ends.get(partition, latest[partition]), latest[partition])),
                topic_id,
            )
            for partition in chosen
        ]

    def _times_ms(self) -> list[int]:
        """What the leaders are asked for, each once."""
        asked = (_asked(self.start, "start").time_ms, _asked(self.end, "end").time_ms)
        return list(dict.fromkeys((EARLIEST, LATEST, *(time_ms for time_ms in asked if time_ms is not None))))

    def _at(self, asked: _Asked, found: Mapping[int, Offsets]) -> Offsets:
        """Where the position is, of the partitions that it names. `found`: offsets by time."""
        latest = found[LATEST]
        if asked.offsets is not None:
            return {TopicPartition(self.topic, number): offset for number, offset in asked.offsets.items()}
        if asked.offset is not None:
            return dict.fromkeys(latest, asked.offset)
        assert asked.time_ms is not None
        return {place: offset if offset >= 0 else latest[place] for place, offset in found[asked.time_ms].items()}

    async def _offsets(
        self, client: Client, partitions: Iterable[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(
            client,
            dict.fromkeys(partitions, time_ms),
            timeout_ms=self.timeout_ms,
            isolation_level=self.isolation_level,
        )


def _chosen(topic: str, count: int, partitions: Iterable[int] | None) -> list[TopicPartition]:
    numbers = sorted(set(range(count) if partitions is None else partitions))
    for number in numbers:
        if not 0 <= number < count:
            raise InvalidRequestError(f"{topic} has no partition {number}; its partitions are 0 to {count - 1}")
    return [TopicPartition(topic, number) for number in numbers]


def _first_ms(time: datetime) -> int:
    """The first millisecond that is not before the time; before 1970, which is before all timestamps, the start of the log."""
    since_ms = -((_EPOCH - time) // _MILLISECOND)
    return since_ms if since_ms >= 0 else EARLIEST


def _asked(position: Position, what: str) -> _Asked:
    match position:
        case bool():
            pass
        case int() if position >= 0:
            return _Asked(None, position, None)
        case datetime() if position.tzinfo is not None:
            return _Asked(None, None, _first_ms(position))
        case datetime():
            raise InvalidRequestError(f"{what} is {position} without a time zone; use datetime(..., tzinfo=UTC)")
        case "start":
            return _Asked(None, None, EARLIEST)
        case "end":
            return _Asked(None, None, LATEST)
        case str() if position.startswith("@") and position[1:].isdigit():
            return _Asked(None, None, int(position[1:]))
        case Mapping() if all(isinstance(offset, int) and offset >= 0 for offset in position.values()):
            return _Asked(position, None, None)
    raise InvalidRequestError(
        f"{what} is {position!r}; give an offset, a datetime, 'start', 'end', '@milliseconds' or offsets by partition"
    )

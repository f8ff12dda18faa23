"""The values that users get: records, columns of records, and what is known of a record that was sent. Pure.

`ConsumerRecord` is made by the million, so it is a tuple, which is made in C. Its topic and partition are the same for all
records of a partition, so they are attributes of a class made per partition (`record_class`): a quarter cheaper than seven
fields. It derives from tuple directly, since a NamedTuple's constructor is a Python function; it only borrows the fast
readers of a NamedTuple's fields.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from barnabas.log.vocabulary.topic_partition import TopicPartition

Headers = Sequence[tuple[str, bytes | None]]
MAX_CACHED_PARTITIONS = 4096  # Classes kept; far more partitions than one consumer has.


class RecordMetadata(NamedTuple):
    """Where a record that was sent now lies. `offset` is -1 with acks=0: nobody said."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OffsetAndMetadata(NamedTuple):
    """What a group commits for a partition: the offset of the next record to read, a text of the application's own (up to
    4,096 bytes unless the operator says otherwise), the leader epoch of the record before it (-1: not known), and the id of the
    topic that the offset is of ("": not known). A group takes no offset of a topic that was deleted."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: str = ""


class _Fields(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class ConsumerRecord(tuple[Any, ...]):
    """One record: topic, partition, offset, timestamp_ms, key, value (None is a tombstone), headers."""

    __slots__ = ()
    topic: str = ""
    partition: int = -1
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return (self.topic, self.partition) == (other.topic, other.partition) and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other  # A tuple has its own, which would look at the fields only.

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return consumer_record, (self.topic, self.partition, *self)


for _name in _Fields._fields:
    setattr(ConsumerRecord, _name, _Fields.__dict__[_name])


@lru_cache(MAX_CACHED_PARTITIONS)
def record_class(topic: str, partition: int) -> Callable[[Iterable[Any]], ConsumerRecord]:
    """Return what turns (offset, timestamp_ms, key, value, headers) into a record of this partition, in C."""
    return type("ConsumerRecord", (ConsumerRecord,), {"__slots__": (), "topic": topic, "partition": partition})


def consumer_record(
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers = (),
) -> ConsumerRecord:
    """Make one record by hand, as tests of applications do."""
    return record_class(topic, partition)((offset, timestamp_ms, key, value, headers))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """One batch of one partition as columns of equal length. `keys` and `values` hold None where a record has none."""

    topic: str
    partition: int
    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]

    def __len__(self) -> int:
        return len(self.offsets)


class ReadingOrigin(NamedTuple):
    """Since when a consumer reads a partition without a jump: equal values mean that nothing was left out between."""

    offset: int  # where the last jump went; -1 while that is looked up
    topic_id: str  # of the topic that the offset is of; "" while that is looked up
    version: int  # of the last jump: no two have the same

    @property
    def is_known(self) -> bool:
        return self.offset >= 0 and bool(self.topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """An answer to "which offset has this time": `offset` -1 where no record is that young."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1
    topic_id: str = ""  # of the topic that was asked

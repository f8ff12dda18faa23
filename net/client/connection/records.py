"""Values for users: records, columns of records, and metadata of sent records. Pure.

`ConsumerRecord` is created by the million, so it is a view (`log.records`): key, value and headers are decoded when they are
read, and the garbage collector has nothing to walk. Topic and partition are the same for all records of a partition, so they are
attributes of a class made per partition (`record_class`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.log.records.codec import RecordView
from barnabas.log.vocabulary.topic_partition import TopicPartition

Headers = Sequence[tuple[str, bytes | None]]
HEADER_OVERHEAD = 4  # Bytes: an estimate of the two lengths. Batches count the real bytes.
MAX_CACHED_PARTITIONS = 4096  # Classes kept; far more than the partitions of one consumer.


class RecordMetadata(NamedTuple):
    """The position of a sent record. `offset` is -1 with acks=0, because no broker reports it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OffsetAndMetadata(NamedTuple):
    """A group's commit for a partition: the offset of the next record to read, metadata text of the application (up to 4,096
    bytes by default), the leader epoch of the record before it (-1: not known), and the id of the topic that the offset belongs
    to ("": not known). A group refuses offsets of a deleted topic."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: str = ""


class ConsumerRecord(RecordView):
    """One record: topic, partition, offset, timestamp_ms, key, value (None is a tombstone), headers.

    It keeps the records of its batch in memory: to keep a few records of many, keep their values. `tuple(record)` has the five
    fields from `offset` on.
    """

    __slots__ = ()
    topic: str = ""
    partition: int = -1
    if TYPE_CHECKING:
        # Bytes or None, or what the consumer's deserializers have made of them.
        key: Any
        value: Any

    @property
    def raw(self) -> "ConsumerRecord":
        """The record as it was stored: itself, or what a deserializer has read it from."""
        return self

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and partition in one."""
        return TopicPartition(self.topic, self.partition)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return (self.topic, self.partition) == (other.topic, other.partition) and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other  # The tuple's own __ne__ would compare only the fields.

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return consumer_record, (self.topic, self.partition, *self)


@lru_cache(MAX_CACHED_PARTITIONS)
def record_class(topic: str, partition: int) -> type[ConsumerRecord]:
    """The records of this partition; its constructor takes (offset, timestamp_ms, key, value, headers)."""
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
    """Create a single record, for tests of applications."""
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
    """The last jump of a consumer in a partition: between two equal values no record was skipped."""

    offset: int  # the target of the last jump; -1 while it is looked up
    topic_id: str  # the topic of the offset; "" while it is looked up
    version: int  # of the last jump: no two have the same

    @property
    def is_known(self) -> bool:
        return self.offset >= 0 and bool(self.topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """An answer to "which offset has this time": `offset` is -1 if no record is that recent."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1
    topic_id: str = ""  # the topic that was queried

"""The ports of replication to the layers below: a partition's log, and the set of all logs.

`log.partition.partition_log.PartitionLog` and `log.folders.log_manager.LogManager` implement them; tests have twins in memory.
"""

from typing import Any, Protocol

from ..format.record_batch import Buffer
from ..format.record_codec import LookIntoBatch
from ..segment.append_times import AppendTime
from ..segment.producer_state import ProducerState
from ..segment.transaction_index import AbortedTransaction
from ..vocabulary.topic_partition import TopicPartition


class FileRegion(Protocol):
    """Bytes that are still in a segment file (the same shape as net.wire.protocol.responses.FileRegion)."""

    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def fileno(self) -> int | None: ...
    def read(self) -> bytes: ...


RecordSlice = bytes | FileRegion


def slice_size(records: RecordSlice) -> int:
    return len(records) if isinstance(records, bytes) else records.size_bytes


class AppendInfo(Protocol):
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def log_append_time_ms(self) -> int:
        """-1 unless message.timestamp.type is LogAppendTime."""

    @property
    def duplicate(self) -> bool:
        """The batch had been appended before (idempotence): the offsets are those of the first append."""


class LogRead(Protocol):
    @property
    def slice(self) -> RecordSlice: ...


class ReplicatedLogConfig(Protocol):
    @property
    def min_insync_replicas(self) -> int: ...
    @property
    def flush_messages(self) -> int:
        """Flush after this many records; with 1, a record counts as replicated only when it is on the disk."""

    @property
    def compression_type(self) -> str: ...
    @property
    def compression_level(self) -> int:
        """The level of the codec of `compression_type`."""

    @property
    def is_compacted(self) -> bool: ...
    @property
    def takes_batches_as_sent(self) -> bool:
        """Uncompressed batches are stored without a look at their records."""

    @property
    def max_message_bytes(self) -> int: ...
    @property
    def is_deleted_by_retention(self) -> bool:
        """cleanup.policy has "delete": old segments are deleted."""


class KnownDamage(Protocol):
    """Batches of a log that changed on the disk (bit rot). Reads of them are refused."""

    @property
    def is_known(self) -> bool: ...
    def verify(self, offset: int, *, max_bytes: int) -> bool:
        """Check the bytes that a read of `offset` returns; False if there is damage that was not known."""


class KnownAborted(Protocol):
    """The aborted transactions of a log."""

    def in_read(self, read: Any, offset: int, /) -> tuple[AbortedTransaction, ...]:
        """What a read_committed consumer must know of these batches, which were read from `offset` on."""


class ReplicatedLog(Protocol):
    """A partition's log as its replica needs it. Every method may raise StorageError."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def config(self) -> ReplicatedLogConfig: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def damage(self) -> KnownDamage: ...
    @property
    def aborted(self) -> KnownAborted: ...
    @property
    def recovery_point(self) -> int:
        """Everything before it is on the disk."""

    @property
    def failed(self) -> bool:
        """A write failed so that memory and disk may differ. After a write refused by a full disk, the log stays usable."""

    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def producers(self) -> ProducerState: ...
    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log or assigned to its end; -1 if there is none."""

    def set_high_watermark(self, offset: int, /) -> object:
        """Clamped between log start and log end."""

    def append_as_leader(
        self, buffer: Buffer, *, leader_epoch: int, now_ms: int, from_coordinator: bool, transaction_version: int
    ) -> AppendInfo:
        """`from_coordinator`: markers of a transaction coordinator, for transactions of that version (KIP-890)."""

    def append_as_follower(self, buffer: Buffer, /, *, now_ms: int, is_fresh: bool) -> AppendInfo | None:
        """`is_fresh`: the leader has appended it just now, as far as that is known."""

    def append_time_of(self, offset: int, /) -> AppendTime | None:
        """When the record at this offset was appended here; None when that is not known."""

    def read(self, offset: int, *, max_bytes: int, up_to_offset: int, at_least_one_batch: bool = True) -> LogRead: ...
    def end_offset_for_epoch(self, leader_epoch: int, /) -> tuple[int, int]:
        """(largest epoch <= the one asked for, its end offset); (-1, -1) if the log cannot tell."""

    def epoch_at(self, offset: int, /) -> int: ...
    def assign_epoch_start(self, leader_epoch: int, offset: int, /) -> object: ...
    def truncate_to(self, offset: int, /) -> object:
        """Also with offset == log end: it must drop epochs that start there and have no record (KIP-101: otherwise a leader that
        was deposed before it appended would claim an epoch that no other replica knows)."""

    def begin_change(self) -> object:
        """From now on another thread truncates the log or starts it over; until `end_change`, all others must not use it."""

    def end_change(self) -> object: ...
    def begins_inside(self, buffer: Buffer, /) -> bool:
        """Does this empty log end inside the first batch? Then call `start_over_before`, and append it."""

    def start_over_before(self, buffer: Buffer, /) -> object: ...
    def set_damage_aside(self) -> object:
        """Cut the log before the first known damage."""

    def truncate_fully_and_start_at(self, offset: int, /) -> object: ...
    def offset_for_timestamp(self, timestamp_ms: int, look: LookIntoBatch, /) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the first record at or after that time."""

    def max_timestamp(self, look: LookIntoBatch, /) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of a record with the largest timestamp."""

    def delete_records_before(self, offset: int, /) -> object:
        """Raise the log start offset."""


class Logs(Protocol):
    """The logs of this broker. Every method may raise StorageError."""

    def create_log(self, topic_partition: TopicPartition, topic_id: str, /, *, is_new: bool) -> ReplicatedLog:
        """Opens it when it exists. `is_new` False: it may exist in a folder that is offline; then StorageError is raised."""

    def forget(self, topic_partition: TopicPartition, /) -> object:
        """A log that could not be opened is not needed any more; an unknown partition is not an error."""

    def get(self, topic_partition: TopicPartition, /) -> ReplicatedLog | None: ...
    def delete(self, topic_partition: TopicPartition, /) -> object: ...

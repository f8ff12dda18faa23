"""A partition's log in memory, for the ISR simulation and for unit tests: batches are fixed records of 24 bytes.

It keeps a hash of every prefix, so that two logs are compared in O(1), and it knows what a power cut would leave.
"""

import struct
from dataclasses import dataclass

from barnabas.log.format.record_batch import Buffer
from barnabas.log.replication.effects import ChangeLog, Effect
from barnabas.log.replication.partition import Partition
from barnabas.log.segment.producer_state import ProducerState
from barnabas.log.segment.transaction_index import AbortedTransaction
from barnabas.log.vocabulary.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition

BAD_CRC = -9  # instead of the producer
RECORD = struct.Struct(">qiiq")  # offset, leader epoch, producer, sequence
_MODULUS = (1 << 61) - 1

Value = tuple[int, int]  # producer, sequence


def chain(prefix: int, epoch: int, value: Value) -> int:
    return (prefix * 1_000_003 + epoch * 7_919 + value[0] * 104_729 + value[1] * 31 + 12_345) % _MODULUS


def batch(*values: Value) -> bytes:
    return b"".join(RECORD.pack(-1, -1, *value) for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAppendInfo:
    first_offset: int
    last_offset: int
    duplicate: bool = False
    log_append_time_ms: int = -1
    size_bytes: int = RECORD.size


@dataclass(frozen=True, slots=True)
class MemoryRead:
    slice: bytes


@dataclass(slots=True)
class MemoryConfig:
    min_insync_replicas: int = 1
    flush_messages: int = 2**63 - 1
    compression_type: str = "producer"
    compression_level: int = 0
    is_compacted: bool = False
    takes_batches_as_sent: bool = True
    max_message_bytes: int = 1 << 20
    is_deleted_by_retention: bool = True


class MemoryDamage:
    """Bit rot of a MemoryLog. Batches are single records here; undetected damage is served, with a bad CRC."""

    def __init__(self) -> None:
        self.rotten: set[int] = set()  # offsets
        self.found: set[int] = set()  # a subset

    @property
    def is_known(self) -> bool:
        return bool(self.found)

    def verify(self, offset: int, *, max_bytes: int) -> bool:
        known = len(self.found)
        self.found |= {rotten for rotten in self.rotten if offset <= rotten <= offset + max_bytes // RECORD.size}
        return len(self.found) == known

    def truncated_to(self, offset: int) -> None:
        self.rotten = {rotten for rotten in self.rotten if rotten < offset}
        self.found &= self.rotten


def changed(partition: Partition, effects: list[Effect]) -> list[Effect]:
    """The effects, with those that follow where one of them is a change of the log, which is performed at once."""
    others: list[Effect] = [effect for effect in effects if not isinstance(effect, ChangeLog)]
    for effect in effects:
        if isinstance(effect, ChangeLog):
            effect.change.perform()
            others += changed(partition, partition.log_changed(effect.change, now_ms=0, wall_ms=0))
    return others


class NothingAborted:
    """Of a log without transactions."""

    def in_read(self, read: MemoryRead, offset: int) -> tuple[AbortedTransaction, ...]:
        return ()


class MemoryLog:
    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: str = "t1",
        *,
        min_insync_replicas: int = 1,
        flush_messages: int = 2**63 - 1,
    ) -> None:
        self.topic_partition, self.topic_id = topic_partition, topic_id
        self.config = MemoryConfig(min_insync_replicas, flush_messages)
        self.first = 0  # offset of records[0]
        self.records: list[tuple[int, Value]] = []  # (leader epoch, value)
        self.hashes = [0]
        self.epochs: list[tuple[int, int]] = []  # (epoch, start offset), both rising
        self.log_start_offset = self.high_watermark = self.recovery_point = 0
        self.truncations = 0
        self.damage = MemoryDamage()
        self.aborted = NothingAborted()
        self.producers = ProducerState()  # of those that are described; these batches have none
        self.sequences: dict[int, tuple[int, int]] = {}  # last sequence and its offset
        self.open_transaction_at: int | None = None
        self.failed = False
        self.is_changing = False
        self.appended_hashes: dict[tuple[int, int], int] | None = None  # (offset, epoch) -> prefix hash, over all logs
        self.fail_next: StorageError | None = None

    @property
    def log_end_offset(self) -> int:
        return self.first + len(self.records)

    @property
    def size_bytes(self) -> int:
        return len(self.records)

    @property
    def last_stable_offset(self) -> int:
        open_at = self.open_transaction_at
        return self.high_watermark if open_at is None else min(open_at, self.high_watermark)

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def hash_at(self, offset: int) -> int:
        return self.hashes[offset - self.first]

    def set_high_watermark(self, offset: int) -> None:
        self.high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))

    def _disk(self) -> None:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error

    def _add(self, epoch: int, value: Value) -> None:
        assert epoch >= (self.records[-1][0] if self.records else -1), "epochs go back"
        if epoch > self.latest_epoch:
            self.assign_epoch_start(epoch, self.log_end_offset)
        offset = self.log_end_offset
        self.records.append((epoch, value))
        self.hashes.append(chain(self.hashes[-1], epoch, value))
        self.sequences[value[0]] = (value[1], offset)
        if self.appended_hashes is not None:
            known = self.appended_hashes.setdefault((offset, epoch), self.hashes[-1])
            assert known == self.hashes[-1], f"log matching broken at offset {offset} epoch {epoch}"

    def append_as_leader(
        self,
        buffer: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        from_coordinator: bool = False,
        transaction_version: int = 1,
    ) -> MemoryAppendInfo:
        self._disk()
        values = [(producer, sequence) for _, _, producer, sequence in RECORD.iter_unpack(buffer)]
        last_sequence, last_offset = self.sequences.get(values[-1][0], (-1, -1))
        if values[-1][1] <= last_sequence:
            return MemoryAppendInfo(first_offset=last_offset, last_offset=last_offset, duplicate=True)
        first = self.log_end_offset
        for value in values:
            self._add(leader_epoch, value)
        return MemoryAppendInfo(first_offset=first, last_offset=self.log_end_offset - 1)

    def append_as_follower(self, buffer: Buffer, *, now_ms: int, is_fresh: bool) -> MemoryAppendInfo | None:
        self._disk()
        first = self.log_end_offset
        for offset, epoch, producer, sequence in RECORD.iter_unpack(bytes(buffer)):
            if producer == BAD_CRC:
                raise CorruptRecordError(f"batch {offset} fails its CRC")
            if offset != self.log_end_offset:
                raise OffsetOutOfRangeError(f"ends at {self.log_end_offset}, got {offset}")
            self._add(epoch, (producer, sequence))
        return MemoryAppendInfo(first_offset=first, last_offset=self.log_end_offset - 1)

    def append_time_of(self, offset: int) -> None:
        """Lag in seconds is tested with the real log."""

    def read(self, offset: int, *, max_bytes: int, up_to_offset: int, at_least_one_batch: bool = True) -> MemoryRead:
        count = max(1 if at_least_one_batch else 0, max_bytes // RECORD.size)
        end = min(up_to_offset, self.log_end_offset, offset + count)
        if offset in self.damage.found:
            raise CorruptRecordError(f"offset {offset} is damaged")
        end = min([end, *(found for found in self.damage.found if found > offset)])
        found = self.records[offset - self.first : end - self.first]
        return MemoryRead(b"".join(self._packed(offset + i, *record) for i, record in enumerate(found)))

    def _packed(self, offset: int, epoch: int, value: Value) -> bytes:
        return RECORD.pack(offset, epoch, BAD_CRC if offset in self.damage.rotten else value[0], value[1])

    def begin_change(self) -> None:
        assert not self.is_changing
        self.is_changing = True
        self.truncations += 1

    def end_change(self) -> None:
        self.is_changing = False

    def begins_inside(self, buffer: Buffer) -> bool:
        return False  # one record is a batch

    def start_over_before(self, buffer: Buffer) -> None:
        raise AssertionError("no log begins inside of a record")

    def set_damage_aside(self) -> None:
        self.truncate_to(min(self.damage.found))

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        if not self.epochs or leader_epoch < 0 or leader_epoch > self.latest_epoch:
            return -1, -1
        if leader_epoch == self.latest_epoch:
            return leader_epoch, self.log_end_offset
        known = leader_epoch
        for epoch, start in self.epochs:
            if epoch > leader_epoch:
                return known, start
            known = epoch
        raise AssertionError

    def epoch_at(self, offset: int) -> int:
        return self.records[offset - self.first][0]

    def assign_epoch_start(self, leader_epoch: int, offset: int) -> None:
        if leader_epoch > self.latest_epoch:
            self._cut_epochs(offset)
            self.epochs.append((leader_epoch, offset))

    def _cut_epochs(self, offset: int) -> None:
        while self.epochs and self.epochs[-1][1] >= offset:
            self.epochs.pop()

    def truncate_to(self, offset: int) -> None:
        self._cut_epochs(offset)
        self.damage.truncated_to(offset)
        if offset < self.log_end_offset:
            del self.records[offset - self.first :]
            del self.hashes[offset - self.first + 1 :]
            self.recovery_point = min(self.recovery_point, offset)
            self.truncations += 1
            self.set_high_watermark(self.high_watermark)
            self.sequences = {}
            for position, (_, (producer, sequence)) in enumerate(self.records):
                self.sequences[producer] = (sequence, self.first + position)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.first = self.log_start_offset = self.high_watermark = self.recovery_point = offset
        self.truncations += 1
        self.records, self.hashes, self.epochs, self.sequences = [], [0], [], {}
        self.damage.truncated_to(0)

    def offset_for_timestamp(self, timestamp_ms: int, _look: object = None) -> tuple[int, int] | None:
        """The sequence of a record stands for its time."""
        for position, (_, (_, sequence)) in enumerate(self.records):
            if sequence >= timestamp_ms:
                return self.first + position, sequence
        return None

    def max_timestamp(self, _look: object = None) -> tuple[int, int] | None:
        return max(((self.first + i, v[1]) for i, (_, v) in enumerate(self.records)), key=lambda x: x[1], default=None)

    def delete_records_before(self, offset: int) -> None:
        assert offset <= self.high_watermark
        self.log_start_offset = max(self.log_start_offset, offset)

    def flush(self) -> None:
        self.recovery_point = self.log_end_offset

    def power_cut(self, survivors: int) -> None:
        """Only what was flushed is sure to be there."""
        assert survivors >= self.recovery_point
        self.truncate_to(survivors)
        self.flush()

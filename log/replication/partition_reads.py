"""The reads that a replica of a partition serves: records for consumers and followers, offsets by time, ends of leader epochs.

`PartitionReads` holds the log and the role; it never changes the role, nor appends: its subclass `Partition` does. A read by a
follower moves the high watermark, because the fetch acknowledges everything before its offset.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from ..format.record_codec import LookIntoBatch, first_record_at_or_after
from ..vocabulary.errors import (
    CorruptRecordError,
    ErrorCode,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    StaleBrokerEpochError,
    StorageError,
    UnknownLeaderEpochError,
)
from ..vocabulary.topic_partition import TopicPartition
from .effects import NO_LEADER, Effect, HighWatermarkAdvanced
from .follower import UNDEFINED, FetchedState, FollowerState
from .leader import LeaderState
from .log_change import LogChange
from .ports import RecordSlice, ReplicatedLog, slice_size
from .replica import UNKNOWN_OFFSET

ANY_EPOCH: Final = -1
ANY_SIZE_BYTES: Final = 1 << 62
FLUSH_FIRST: Final = 1  # flush.messages: every record must be on the disk before it counts
READ_COMMITTED: Final = 1  # as on the wire; 0 is READ_UNCOMMITTED
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3  # KIP-734
EARLIEST_LOCAL_TIMESTAMP: Final = -4  # KIP-405: the part that is not in a remote store, which is everything here


class PartitionRead(FetchedState, frozen=True, kw_only=True):
    """The result of a read: records that may still be in a file."""

    records: RecordSlice = b""
    last_stable_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """An offset in a partition's log. The client's OffsetAndTimestamp is a public value of the SDK, with the topic id."""

    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = -1


StorageTrouble = Callable[["PartitionReads", StorageError], None]


class _StorageGuard:
    """Surrounds every access to the log. A class, not a generator, because it is entered for every request."""

    __slots__ = ("_partition",)

    def __init__(self, partition: "PartitionReads") -> None:
        self._partition = partition

    def __enter__(self) -> None:
        if self._partition.storage_error is not None:
            raise StorageError(str(self._partition.storage_error))
        if self._partition.change is not None:
            raise self._partition.is_busy()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, StorageError):
            partition = self._partition
            if partition.log.failed:
                partition.storage_error = error
            if partition.storage_trouble is not None:
                partition.storage_trouble(partition, error)


class PartitionReads:
    """The half of a `Partition` that others read from."""

    def __init__(self, log: ReplicatedLog, node_id: int) -> None:
        self.log = log
        self.node_id = node_id
        self.topic_partition: TopicPartition = log.topic_partition
        self.leader = NO_LEADER
        self.leader_epoch = -1  # never falls
        self.storage_error: StorageError | None = None
        self.storage_trouble: StorageTrouble | None = None  # called at once, only as a notification
        self.change: LogChange | None = None  # pending: another thread uses the log, and no role may access it
        self.disk_hangs = False  # the disk of the log does not respond
        self._leading: LeaderState | None = None  # at most one of the two
        self._following: FollowerState | None = None
        self._storage = _StorageGuard(self)

    def is_busy(self) -> NotLeaderOrFollowerError:
        """The refusal while the log is changed: all clients retry after this error."""
        assert self.change is not None
        return NotLeaderOrFollowerError(
            f"broker {self.node_id} must first complete a change of its log of {self.topic_partition} "
            f"({self.change.what}); refresh the metadata and try again"
        )

    # --- what others may read ----------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self._leading is not None

    @property
    def is_follower(self) -> bool:
        return self._following is not None

    @property
    def leader_state(self) -> LeaderState | None:
        """For metrics, descriptions and tests, which must not change it."""
        return self._leading

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def durable_end_offset(self) -> int:
        """Up to where the own log counts: its end, or, with flush.messages=1, the end of its flushed part."""
        log = self.log
        return log.recovery_point if log.config.flush_messages == FLUSH_FIRST else log.log_end_offset

    @property
    def awaits_flush(self) -> bool:
        """Are there records that do not count before they are flushed, and that can be flushed?"""
        is_well = self.storage_error is None and self.change is None
        return is_well and self.durable_end_offset < self.log.log_end_offset

    @property
    def holds_lane(self) -> bool:
        """Must the partitions that are fetched together with this one wait for its flush? Not if its disk hangs."""
        return self.awaits_flush and not self.disk_hangs

    @property
    def flushes_first(self) -> bool:
        return self.log.config.flush_messages == FLUSH_FIRST

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset

    @property
    def has_enough_replicas(self) -> bool:
        leading = self._leading
        if leading is None:
            return False
        leading.min_insync_replicas = self.log.config.min_insync_replicas
        return not leading.is_under_min_isr

    def _current_leader(self) -> LeaderState:
        leading = self._leading
        if leading is None:
            raise NotLeaderOrFollowerError(
                f"broker {self.node_id} does not lead {self.topic_partition}; its leader is {self.leader}"
            )
        leading.min_insync_replicas = self.log.config.min_insync_replicas
        return leading

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if type(effect) is HighWatermarkAdvanced:
                self.log.set_high_watermark(effect.high_watermark)
        return effects

    # --- reading -----------------------------------------------------------------------------------------------------

    def read_for_consumer(
        self,
        offset: int,
        *,
        max_bytes: int,
        isolation_level: int = 0,
        current_leader_epoch: int = ANY_EPOCH,
        last_fetched_epoch: int = ANY_EPOCH,
        at_least_one_batch: bool = True,
        allow_follower: bool = False,
    ) -> PartitionRead:
        """Serve committed records to a consumer. `allow_follower`: it was sent here on purpose (KIP-392).

        Raises OffsetNotAvailableError for an offset that may be committed although this replica does not know it yet: right after
        an election (KIP-207), or on a follower.
        """
        with self._storage:
            self._check_role(allow_follower)
            self._check_epoch(current_leader_epoch)
            refused = self._refusal(offset, last_fetched_epoch, self.log.log_end_offset)
            if refused is not None:
                return self._out_of_a_followers_range(refused, offset)
            visible_end = self._visible_end(isolation_level)
            if offset > visible_end:
                self._check_end_is_known()
                return self._read_nothing()
            return self._read(offset, max_bytes, visible_end, at_least_one_batch)

    def _out_of_a_followers_range(self, refused: PartitionRead, offset: int) -> PartitionRead:
        """A follower does not know the end of the leader's log, so an offset after its own end may be valid."""
        if self._leading is None and refused.error and offset > self.log.log_end_offset:
            raise OffsetNotAvailableError(f"offset {offset} of {self.topic_partition} has not reached this follower")
        return refused

    def _visible_end(self, isolation_level: int) -> int:
        log = self.log
        return log.last_stable_offset if isolation_level == READ_COMMITTED else log.high_watermark

    def _check_end_is_known(self) -> None:
        if self._leading is None or not self._leading.knows_earlier_epochs_end:
            raise OffsetNotAvailableError(
                f"the end of {self.topic_partition} is not known for certain yet after a change of leader; try again"
            )

    # --- followers ---------------------------------------------------------------------------------------------------

    def read_for_follower(
        self,
        replica_id: int,
        *,
        broker_epoch: int,
        offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
        now_ms: int,
        is_first_read: bool = True,
        at_least_one_batch: bool = True,
    ) -> tuple[PartitionRead, list[Effect]]:
        """Serve a follower. Its offset acknowledges everything before it.

        It counts only if the follower is in the same epoch and its log agrees with the leader's up to the offset. A parked fetch
        is read again with `is_first_read` False: its acknowledgement is as old as its arrival. Raises for unknown replicas,
        former incarnations and wrong epochs.
        """
        with self._storage:
            leading = self._current_leader()
            self._check_epoch(current_leader_epoch, must_be_known=True)
            self._check_replica(leading, replica_id, broker_epoch)
            log = self.log
            refused = self._refusal(offset, last_fetched_epoch, log.log_end_offset)
            if refused is not None:
                return refused, []
            effects: list[Effect] = []
            if is_first_read:
                effects = self._perform(
                    leading.follower_fetched(replica_id, broker_epoch=broker_epoch, fetch_offset=offset, now_ms=now_ms)
                )
            replica = leading.replicas[replica_id]
            if replica.offset_served == offset:
                self._verify(offset, max_bytes)
            read = self._read(offset, max_bytes, log.log_end_offset, at_least_one_batch)
            replica.offset_served = offset if slice_size(read.records) else UNKNOWN_OFFSET
            return read, effects

    def _verify(self, offset: int, max_bytes: int) -> None:
        """A follower checks the CRC of the records that it gets. If it fetches the same records again, either the response was
        lost or the records were refused: then the leader checks its own file before it sends them again."""
        self.log.damage.verify(offset, max_bytes=max_bytes)

    def _check_replica(self, leading: LeaderState, replica_id: int, broker_epoch: int) -> None:
        if replica_id not in leading.replicas:
            raise NotLeaderOrFollowerError(
                f"broker {replica_id} has no replica of {self.topic_partition} as far as its leader knows"
            )
        if leading.is_stale(replica_id, broker_epoch):
            raise StaleBrokerEpochError(f"broker {replica_id} has registered again since broker epoch {broker_epoch}")

    # --- offsets and epochs ------------------------------------------------------------------------------------------

    def list_offset(
        self,
        timestamp_ms: int,
        *,
        isolation_level: int = 0,
        current_leader_epoch: int = ANY_EPOCH,
        for_replica: bool = False,
        look: LookIntoBatch = first_record_at_or_after,
    ) -> ListedOffset:
        """The first offset at or after a time, or EARLIEST_TIMESTAMP, LATEST_TIMESTAMP; offset -1: there is none. `look` finds
        the record in a batch; its exceptions pass."""
        with self._storage:
            self._current_leader()
            self._check_epoch(current_leader_epoch)
            log = self.log
            if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
                return self._listed(log.log_start_offset)
            if for_replica and timestamp_ms == LATEST_TIMESTAMP:
                return self._listed(log.log_end_offset)
            if timestamp_ms == LATEST_TIMESTAMP:
                self._check_end_is_known()
                return self._listed(self._visible_end(isolation_level))
            is_newest = timestamp_ms == MAX_TIMESTAMP
            found = log.max_timestamp(look) if is_newest else log.offset_for_timestamp(timestamp_ms, look)
            return self._visible(found, self._visible_end(isolation_level))

    def _visible(self, found: tuple[int, int] | None, visible_end: int) -> ListedOffset:
        if found is None:
            return ListedOffset(offset=-1)
        offset, timestamp_ms = found
        if offset >= visible_end:
            self._check_end_is_known()
            return ListedOffset(offset=-1)
        # The epoch in which the record was written: clients use it to detect truncations (KIP-320).
        return ListedOffset(offset=offset, timestamp_ms=timestamp_ms, leader_epoch=self.log.epoch_at(offset))

    def _listed(self, offset: int) -> ListedOffset:
        return ListedOffset(offset=offset, timestamp_ms=-1, leader_epoch=self.leader_epoch)

    def end_offset_for_epoch(self, leader_epoch: int, *, current_leader_epoch: int = ANY_EPOCH) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (largest epoch <= the one asked for, its end offset), (-1, -1) when not known."""
        with self._storage:
            self._current_leader()
            self._check_epoch(current_leader_epoch)
            return self.log.end_offset_for_epoch(leader_epoch)

    def readable_bytes(self, offset: int, *, end_offset: int, max_bytes: int) -> int:
        """How many bytes a fetch could get now, up to `max_bytes`; no record is read for that.

        A read with that limit would end with the last whole batch below it, so it would rarely have that many bytes.
        """
        if not self.log.log_start_offset <= offset < end_offset:
            return 0
        with self._storage:
            available = self.log.read(offset, max_bytes=ANY_SIZE_BYTES, up_to_offset=end_offset).slice
        return min(slice_size(available), max_bytes)

    # --- refusals ----------------------------------------------------------------------------------------------------

    def check_topic_id(self, topic_id: str) -> None:
        """Offsets and leader epochs of a topic have no meaning in another one of its name. "": the client sent no id."""
        if topic_id not in ("", self.log.topic_id):
            raise InconsistentTopicIdError(
                f"{self.topic_partition} belongs to topic id {self.log.topic_id} on broker {self.node_id}, not to {topic_id}: the"
                " topic was deleted and created again; refresh the metadata"
            )

    def _check_role(self, allow_follower: bool) -> None:
        if self._leading is not None or (allow_follower and self._following is not None):
            return
        raise NotLeaderOrFollowerError(
            f"broker {self.node_id} does not lead {self.topic_partition}; its leader is {self.leader}"
        )

    def _check_epoch(self, current_leader_epoch: int, *, must_be_known: bool = False) -> None:
        """KIP-320: both sides must refer to the same leadership."""
        if current_leader_epoch == self.leader_epoch or (current_leader_epoch == ANY_EPOCH and not must_be_known):
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.topic_partition} is in leader epoch {self.leader_epoch}, the request in "
                f"{current_leader_epoch}; refresh the metadata"
            )
        raise UnknownLeaderEpochError(
            f"{self.topic_partition} is in leader epoch {self.leader_epoch} here, the request in "
            f"{current_leader_epoch}; this broker does not know it yet; try again"
        )

    def _refusal(self, offset: int, last_fetched_epoch: int, end_offset: int) -> PartitionRead | None:
        """A result without records: the logs diverge before the offset, or the offset is not in this log."""
        log = self.log
        if last_fetched_epoch >= 0:
            epoch, epoch_end = log.end_offset_for_epoch(last_fetched_epoch)
            if epoch == UNDEFINED or epoch_end == UNDEFINED:
                return self._read_nothing(error=ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < last_fetched_epoch or epoch_end < offset:
                return self._read_nothing(diverging_epoch=epoch, diverging_end_offset=epoch_end)
        if not log.log_start_offset <= offset <= end_offset:
            return self._read_nothing(error=ErrorCode.OFFSET_OUT_OF_RANGE)
        return None

    def _read(self, offset: int, max_bytes: int, end_offset: int, at_least_one_batch: bool) -> PartitionRead:
        log = self.log
        records: RecordSlice = b""
        if offset < end_offset:
            try:
                records = log.read(
                    offset, max_bytes=max_bytes, up_to_offset=end_offset, at_least_one_batch=at_least_one_batch
                ).slice
            except CorruptRecordError:
                log.damage.verify(offset, max_bytes=max_bytes)  # so that the range of the damage is known
                raise
        return PartitionRead(
            records=records,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
        )

    def _read_nothing(
        self, *, error: int = ErrorCode.NONE, diverging_epoch: int = UNDEFINED, diverging_end_offset: int = UNDEFINED
    ) -> PartitionRead:
        log = self.log
        return PartitionRead(
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            error=error,
            diverging_epoch=diverging_epoch,
            diverging_end_offset=diverging_end_offset,
        )

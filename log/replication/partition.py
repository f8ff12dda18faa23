"""One partition on this broker: its log and the role that it plays for it, leader, follower or neither.

Every method is synchronous. What a role decides about the log is done here at once; the rest is returned as effects.
When the log has failed (memory and disk may differ), the partition answers nothing but StorageError from then on, and
the broker learns of it through `storage_error`. A write that a full disk refused cleanly does not end it.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Final

from ..errors import (
    ErrorCode,
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StaleBrokerEpochError,
    StorageError,
    UnknownLeaderEpochError,
)
from ..quick_init import quick_init
from ..record_batch import Buffer
from ..topic_partition import TopicPartition
from .effects import (
    NO_LEADER,
    AppendFetched,
    Effect,
    HighWatermarkAdvanced,
    IsrAnswer,
    LeadershipGained,
    LeadershipLost,
    LogEffect,
    LogEndAdvanced,
    PartitionAssignment,
    ProposeIsr,
    StartFetching,
    StartOver,
    StopFetching,
    Truncate,
)
from .follower import UNDEFINED, FetchAnswer, FetchPosition, FollowerState
from .leader import DEFAULT_REPLICA_LAG_TIME_MAX_MS, LeaderState
from .ports import AppendInfo, RecordSlice, ReplicatedLog, slice_size

ACKS_ALL: Final = -1
ANY_EPOCH: Final = -1
ANY_SIZE_BYTES: Final = 1 << 62
READ_COMMITTED: Final = 1  # as on the wire; 0 is READ_UNCOMMITTED
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3  # KIP-734
BEFORE_HIGH_WATERMARK: Final = -1  # DeleteRecords


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRead:
    """What a fetch gets of one partition. OFFSET_OUT_OF_RANGE is an `error` here and not raised, because its answer
    carries the offsets too; a diverging epoch (KIP-595) comes with no records."""

    records: RecordSlice = b""
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    error: int = ErrorCode.NONE
    diverging_epoch: int = UNDEFINED
    diverging_end_offset: int = UNDEFINED


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = -1


class _StorageGuard:
    """Stands round everything that touches the log. A class, not a generator: it is entered for every request."""

    __slots__ = ("_partition",)

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition

    def __enter__(self) -> None:
        if self._partition.storage_error is not None:
            raise StorageError(str(self._partition.storage_error))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, StorageError) and self._partition.log.failed:
            self._partition.storage_error = error


class Partition:
    """A replica of a partition. `leadership` is the leader epoch in which the present unbroken leadership began (-1:
    we do not lead): as long as it is the same, nothing that was appended here has been truncated."""

    def __init__(
        self, log: ReplicatedLog, node_id: int, *, replica_lag_time_max_ms: int = DEFAULT_REPLICA_LAG_TIME_MAX_MS
    ) -> None:
        self.log = log
        self.node_id = node_id
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id = log.topic_id
        self.leader = NO_LEADER
        self.leader_epoch = -1  # never falls
        self.partition_epoch = -1  # never falls
        self.leadership = -1
        self.storage_error: StorageError | None = None
        self._replica_lag_time_max_ms = replica_lag_time_max_ms
        self._leading: LeaderState | None = None  # at most one of the two
        self._following: FollowerState | None = None
        self._fetch_sequence = 0
        self._storage = _StorageGuard(self)

    # --- metadata ----------------------------------------------------------------------------------------------------

    def make_leader(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        """Lead as the metadata says. Older metadata than ours is ignored; only the broker epochs may change under the
        same partition epoch."""
        if self._is_old(assignment):
            return self._same_epochs(assignment, now_ms)
        is_new_epoch = assignment.leader_epoch > self.leader_epoch
        self._remember(assignment)
        with self._storage:
            if self._leading is not None and not is_new_epoch:
                return self._perform(self._current_leader().metadata_changed(assignment, now_ms=now_ms))
            return self._begin_leading(assignment, now_ms)

    def _begin_leading(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if self._following is not None:
            effects.append(StopFetching(topic_partition=self.topic_partition))
            self._stop_following()
        if self._leading is None:
            self.leadership = assignment.leader_epoch
        self._leading = LeaderState(self.node_id, replica_lag_time_max_ms=self._replica_lag_time_max_ms)
        log = self.log
        # The epoch begins here even before its first record: who asks for its end must not be told an older epoch
        # (KIP-101).
        log.assign_epoch_start(assignment.leader_epoch, log.log_end_offset)
        effects.append(LeadershipGained(topic_partition=self.topic_partition, leader_epoch=assignment.leader_epoch))
        effects += self._perform(
            self._current_leader().become_leader(
                assignment, log_end_offset=log.log_end_offset, high_watermark=log.high_watermark, now_ms=now_ms
            )
        )
        return effects

    def make_follower(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        """Follow as the metadata says; with no leader, wait."""
        if self._is_old(assignment):
            return []
        is_new_epoch = assignment.leader_epoch > self.leader_epoch
        self._remember(assignment)
        if not is_new_epoch and self._following is not None:
            return []
        effects: list[Effect] = []
        if self._leading is not None:
            effects.append(LeadershipLost(topic_partition=self.topic_partition))
            self._leading, self.leadership = None, -1
        self._stop_following()
        self._following = FollowerState(
            leader=assignment.leader, leader_epoch=assignment.leader_epoch, first_sequence=self._fetch_sequence
        )
        effects.append(self._start_or_stop_fetching())
        return effects

    def _start_or_stop_fetching(self) -> Effect:
        if self.leader == NO_LEADER:
            return StopFetching(topic_partition=self.topic_partition)
        return StartFetching(topic_partition=self.topic_partition, leader=self.leader, leader_epoch=self.leader_epoch)

    def stop(self) -> list[Effect]:
        """The replica is deleted, moved away, broken, or its broker stops: it plays no role any more."""
        effects: list[Effect] = []
        if self._leading is not None:
            effects.append(LeadershipLost(topic_partition=self.topic_partition))
        if self._following is not None:
            effects.append(StopFetching(topic_partition=self.topic_partition))
        self._leading, self.leadership = None, -1
        self._stop_following()
        return effects

    def brokers_changed(self, broker_epochs: dict[int, int], now_ms: int) -> list[Effect]:
        """Which brokers are active, and in which incarnation, without a change of this partition."""
        if self._leading is None:
            return []
        with self._storage:
            return self._perform(self._current_leader().brokers_changed(broker_epochs, now_ms=now_ms))

    def _is_old(self, assignment: PartitionAssignment) -> bool:
        """Also older than our log: then a former incarnation has seen newer metadata, and appending under an old epoch
        would put epochs out of order."""
        if assignment.leader_epoch < max(self.leader_epoch, self.log.latest_epoch):
            return True
        return assignment.partition_epoch <= self.partition_epoch and assignment.leader_epoch == self.leader_epoch

    def _same_epochs(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        known = (self.leader_epoch, self.partition_epoch)
        if (assignment.leader_epoch, assignment.partition_epoch) != known:
            return []
        return self.brokers_changed(assignment.broker_epochs, now_ms)

    def _remember(self, assignment: PartitionAssignment) -> None:
        assert assignment.topic_partition == self.topic_partition and assignment.topic_id == self.topic_id
        self.leader = assignment.leader
        self.leader_epoch = assignment.leader_epoch
        self.partition_epoch = max(self.partition_epoch, assignment.partition_epoch)

    def _stop_following(self) -> None:
        if self._following is not None:
            self._fetch_sequence = self._following.sequence
        self._following = None

    # --- what others may see -----------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self._leading is not None

    @property
    def is_follower(self) -> bool:
        return self._following is not None

    @property
    def leader_state(self) -> LeaderState | None:
        """For metrics, descriptions and tests; nobody else changes it."""
        return self._leading

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

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

    # --- leading -----------------------------------------------------------------------------------------------------

    def append_as_leader(
        self, buffer: Buffer, *, acks: int, now_ms: int, leader_epoch: int | None = None
    ) -> tuple[AppendInfo, int, list[Effect]]:
        """Append batches of a client. The second value is the offset that the high watermark must reach for acks=all.

        Raises what refuses the batch before it is in the log: NotLeaderOrFollowerError, FencedLeaderEpochError,
        NotEnoughReplicasError (acks=all), or what the log says about it.
        """
        with self._storage:
            leading = self._current_leader()
            if leader_epoch is not None:
                self._check_epoch(leader_epoch)
            if acks == ACKS_ALL and leading.is_under_min_isr:
                raise NotEnoughReplicasError(
                    f"{self.topic_partition} has {len(leading.isr.isr)} in-sync replicas where min.insync.replicas "
                    f"asks for {leading.effective_min_isr}; bring brokers back, or lower the setting"
                )
            info = self.log.append_as_leader(buffer, leader_epoch=self.leader_epoch, now_ms=now_ms)
            if info.duplicate:
                return info, info.last_offset + 1, []
            return (
                info,
                info.last_offset + 1,
                self._perform(leading.appended(self.log.log_end_offset, now_ms=now_ms)),
            )

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
        """Serve a follower, and take its offset as the acknowledgement of everything before it.

        It counts only when the follower is in our epoch and its log agrees with ours up to the offset. A parked fetch
        is read again with `is_first_read` False: its word is as old as its arrival. Raises for strangers, ghosts and
        epochs.
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
            return self._read(offset, max_bytes, log.log_end_offset, at_least_one_batch), effects

    def _check_replica(self, leading: LeaderState, replica_id: int, broker_epoch: int) -> None:
        if replica_id not in leading.replicas:
            raise NotLeaderOrFollowerError(
                f"broker {replica_id} holds no replica of {self.topic_partition} as far as its leader knows"
            )
        if leading.is_stale(replica_id, broker_epoch):
            raise StaleBrokerEpochError(f"broker {replica_id} has registered again since broker epoch {broker_epoch}")

    def check_isr(self, now_ms: int) -> list[Effect]:
        if self._leading is None or self.storage_error is not None:
            return []
        with self._storage:
            return self._perform(self._current_leader().check_isr(now_ms))

    def isr_answered(self, proposal: ProposeIsr, answer: IsrAnswer, now_ms: int) -> list[Effect]:
        """The controller answered; with a success we may know of our new partition epoch before the metadata tells."""
        leading = self._leading
        if leading is None or proposal.topic_id != self.topic_id or self.storage_error is not None:
            return []
        with self._storage:
            effects = self._perform(self._current_leader().isr_answered(proposal, answer, now_ms=now_ms))
        self.partition_epoch = max(self.partition_epoch, leading.isr.partition_epoch)
        return effects

    def isr_unanswered(self, proposal: ProposeIsr, now_ms: int) -> list[Effect]:
        if self._leading is None or proposal.topic_id != self.topic_id:
            return []
        return self._perform(self._leading.isr_unanswered(proposal, now_ms=now_ms))

    def delete_records(self, before_offset: int, *, now_ms: int) -> tuple[int, list[Effect]]:
        """Move the log start offset; returns where it is now. Only what is committed can be deleted."""
        with self._storage:
            self._current_leader()
            log = self.log
            wanted = log.high_watermark if before_offset == BEFORE_HIGH_WATERMARK else before_offset
            if not 0 <= wanted <= log.high_watermark:
                raise OffsetOutOfRangeError(
                    f"{self.topic_partition} is committed up to offset {log.high_watermark}; "
                    f"cannot delete before {wanted}"
                )
            if wanted > log.log_start_offset:
                log.delete_records_before(wanted)
            return log.log_start_offset, []

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
        """Serve a consumer what is committed. `allow_follower`: it was sent here on purpose (KIP-392).

        Raises OffsetNotAvailableError for an offset that may well be committed without our knowing it yet: right
        after an election (KIP-207), or on a follower.
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
        """A follower does not know how far the leader's log goes, so "behind my end" is not "behind the end"."""
        if self._leading is None and refused.error and offset > self.log.log_end_offset:
            raise OffsetNotAvailableError(f"offset {offset} of {self.topic_partition} has not reached this follower")
        return refused

    def _visible_end(self, isolation_level: int) -> int:
        log = self.log
        return log.last_stable_offset if isolation_level == READ_COMMITTED else log.high_watermark

    def _check_end_is_known(self) -> None:
        if self._leading is None or not self._leading.knows_earlier_epochs_end:
            raise OffsetNotAvailableError(
                f"the end of {self.topic_partition} is not known for certain yet after a change of leader; ask again"
            )

    def list_offset(
        self,
        timestamp_ms: int,
        *,
        isolation_level: int = 0,
        current_leader_epoch: int = ANY_EPOCH,
        for_replica: bool = False,
    ) -> ListedOffset:
        """The first offset at or after a time, or EARLIEST_TIMESTAMP, LATEST_TIMESTAMP; offset -1: there is none."""
        with self._storage:
            self._current_leader()
            self._check_epoch(current_leader_epoch)
            log = self.log
            if timestamp_ms == EARLIEST_TIMESTAMP:
                return self._listed(log.log_start_offset)
            if for_replica and timestamp_ms == LATEST_TIMESTAMP:
                return self._listed(log.log_end_offset)
            if timestamp_ms == LATEST_TIMESTAMP:
                self._check_end_is_known()
                return self._listed(self._visible_end(isolation_level))
            found = log.max_timestamp() if timestamp_ms == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp_ms)
            return self._visible(found, self._visible_end(isolation_level))

    def _visible(self, found: tuple[int, int] | None, visible_end: int) -> ListedOffset:
        if found is None:
            return ListedOffset(offset=-1)
        offset, timestamp_ms = found
        if offset >= visible_end:
            self._check_end_is_known()
            return ListedOffset(offset=-1)
        return self._listed(offset, timestamp_ms)

    def _listed(self, offset: int, timestamp_ms: int = -1) -> ListedOffset:
        return ListedOffset(offset=offset, timestamp_ms=timestamp_ms, leader_epoch=self.leader_epoch)

    def end_offset_for_epoch(self, leader_epoch: int, *, current_leader_epoch: int = ANY_EPOCH) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (largest epoch <= the one asked for, its end offset), (-1, -1) when not known."""
        with self._storage:
            self._current_leader()
            self._check_epoch(current_leader_epoch)
            return self.log.end_offset_for_epoch(leader_epoch)

    def readable_bytes(self, offset: int, *, end_offset: int, max_bytes: int) -> int:
        """How many bytes a fetch could get now, up to `max_bytes`; no record is read for that.

        A read with that limit would end with the last whole batch below it: it would hardly ever have that many bytes.
        """
        if not self.log.log_start_offset <= offset < end_offset:
            return 0
        with self._storage:
            available = self.log.read(offset, max_bytes=ANY_SIZE_BYTES, up_to_offset=end_offset).slice
        return min(slice_size(available), max_bytes)

    def _check_role(self, allow_follower: bool) -> None:
        if self._leading is not None or (allow_follower and self._following is not None):
            return
        raise NotLeaderOrFollowerError(
            f"broker {self.node_id} does not lead {self.topic_partition}; its leader is {self.leader}"
        )

    def _check_epoch(self, current_leader_epoch: int, *, must_be_known: bool = False) -> None:
        """KIP-320: both sides must mean the same leadership."""
        if current_leader_epoch == self.leader_epoch or (current_leader_epoch == ANY_EPOCH and not must_be_known):
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.topic_partition} is in leader epoch {self.leader_epoch}, the request in "
                f"{current_leader_epoch}; refresh the metadata"
            )
        raise UnknownLeaderEpochError(
            f"{self.topic_partition} is in leader epoch {self.leader_epoch} here, the request in "
            f"{current_leader_epoch}; this broker has not heard of it yet"
        )

    def _refusal(self, offset: int, last_fetched_epoch: int, end_offset: int) -> PartitionRead | None:
        """An answer without records: the logs part before the offset, or the offset is none of ours."""
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
            records = log.read(
                offset, max_bytes=max_bytes, up_to_offset=end_offset, at_least_one_batch=at_least_one_batch
            ).slice
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

    # --- following ---------------------------------------------------------------------------------------------------

    def next_fetch(self) -> FetchPosition | None:
        """What to ask the leader for next; whatever was asked before is void. None: we follow nobody."""
        if self._following is None or self.storage_error is not None:
            return None
        return self._following.next_fetch(log_end_offset=self.log.log_end_offset, latest_epoch=self.log.latest_epoch)

    def fetched(self, position: FetchPosition, answer: FetchAnswer, now_ms: int) -> list[Effect]:
        """Take the leader's answer to `position`. Answers to anything but the request in flight change nothing.

        `now_ms` is wall time, as in `append_as_leader`.
        """
        following = self._following
        if following is None:
            return []
        with self._storage:
            todo = following.fetched(
                position,
                answer,
                log_start_offset=self.log.log_start_offset,
                log_end_offset=self.log.log_end_offset,
                end_offset_for_epoch=self.log.end_offset_for_epoch,
            )
            return [] if todo is None else self._change_log(todo, now_ms)

    def _change_log(self, todo: LogEffect, now_ms: int) -> list[Effect]:
        match todo:
            case AppendFetched():
                return self._append_fetched(todo, now_ms)
            case Truncate(offset=offset):
                self.log.truncate_to(offset)
            case StartOver(offset=offset):
                self.log.truncate_fully_and_start_at(offset)
        return []

    def _append_fetched(self, fetched: AppendFetched, now_ms: int) -> list[Effect]:
        """Our high watermark never goes back for a new leader that does not know it yet: what was committed stays
        so."""
        log = self.log
        effects: list[Effect] = []
        if len(fetched.records):
            # What is committed already without us was appended some time ago: we are catching up.
            is_fresh = fetched.high_watermark <= log.log_end_offset
            log.append_as_follower(fetched.records, now_ms=now_ms, is_fresh=is_fresh)
            effects.append(LogEndAdvanced(topic_partition=self.topic_partition, log_end_offset=log.log_end_offset))
        high_watermark = min(fetched.high_watermark, log.log_end_offset)
        if high_watermark > log.high_watermark:
            log.set_high_watermark(high_watermark)
            effects.append(HighWatermarkAdvanced(topic_partition=self.topic_partition, high_watermark=high_watermark))
        if log.log_start_offset < fetched.leader_log_start_offset <= log.log_end_offset:
            log.delete_records_before(fetched.leader_log_start_offset)
        return effects

    def __str__(self) -> str:
        role = self._leading or self._following or "no role"
        return f"{self.topic_partition} pe{self.partition_epoch} {role}"

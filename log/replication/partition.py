"""One partition on this broker: its log and the role that it plays for it, leader, follower or neither.

Every method is synchronous. An append is done at once; operations that wait for the disk are returned as effects, like the rest.
If the log has failed (memory and disk may differ), the partition answers only StorageError from then on, and the broker learns of
it through `storage_error`. A write that a full disk refused cleanly does not have this effect.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from ..format.record_batch import Buffer
from ..vocabulary.errors import (
    BarnabasError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    StorageError,
)
from .effects import (
    NO_LEADER,
    AppendFetched,
    ChangeLog,
    Effect,
    FlushLog,
    HighWatermarkAdvanced,
    IsrAnswer,
    LeadershipGained,
    LeadershipLost,
    LogEffect,
    LogEndAdvanced,
    PartitionAssignment,
    ProposeIsr,
    Resign,
    ResumeFetching,
    StartFetching,
    StartOver,
    StopFetching,
    Truncate,
)
from .follower import FetchAnswer, FetchPosition, FollowerState
from .leader import DEFAULT_REPLICA_LAG_TIME_MAX_MS, LeaderState
from .log_change import LogChange
from .partition_reads import FLUSH_FIRST, PartitionReads
from .ports import AppendInfo, ReplicatedLog

ACKS_ALL: Final = -1
BEFORE_HIGH_WATERMARK: Final = -1  # DeleteRecords


class Partition(PartitionReads):
    """A replica of a partition. `leadership` is the leader epoch in which the current unbroken leadership began (-1: not the
    leader): as long as it is the same, no record that was appended here has been truncated."""

    def __init__(
        self, log: ReplicatedLog, node_id: int, *, replica_lag_time_max_ms: int = DEFAULT_REPLICA_LAG_TIME_MAX_MS
    ) -> None:
        super().__init__(log, node_id)
        self.topic_id = log.topic_id
        self.partition_epoch = -1  # never falls
        self.leadership = -1
        self._replica_lag_time_max_ms = replica_lag_time_max_ms
        self._fetch_sequence = 0
        self._isr: tuple[int, ...] = ()  # from the metadata
        self._resigned_epoch = -1  # the leader epoch of the last Resign that the controller agreed to
        self._asked_up_to_epoch = -1  # the newest leader epoch in which this replica fetched from a leader
        self._put_off: PartitionAssignment | None = None  # None unless the log is being changed
        self._append_then: AppendFetched | None = None  # fetched records to append after the log has been started over

    @property
    def epoch_start_offset(self) -> int | None:
        """Where this leader's epoch begins in the log; None on a follower."""
        return None if self._leading is None else self._leading.epoch_start_offset

    def led_for_ms(self, now_ms: int) -> int | None:
        """For how many milliseconds this leader has led in its epoch; None on a follower."""
        return None if self._leading is None else now_ms - self._leading.led_since_ms

    # --- metadata ----------------------------------------------------------------------------------------------------

    def make_leader(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        """Lead according to the metadata. Metadata older than the known one is ignored; with the same partition epoch, only the
        broker epochs may change."""
        if self._is_put_off(assignment):
            return []
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
        # The epoch begins here even before its first record: a request for its end must not get an older epoch (KIP-101).
        log.assign_epoch_start(assignment.leader_epoch, log.log_end_offset)
        effects.append(LeadershipGained(topic_partition=self.topic_partition, leader_epoch=assignment.leader_epoch))
        effects += self._perform(
            self._current_leader().become_leader(
                assignment,
                log_end_offset=log.log_end_offset,
                durable_end_offset=self.durable_end_offset,
                high_watermark=log.high_watermark,
                now_ms=now_ms,
            )
        )
        return effects + self._flush_what_counts() + self.resign_if_damaged()

    def make_follower(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        """Follow according to the metadata; without a leader, wait."""
        if self._is_put_off(assignment) or self._is_old(assignment):
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
        return effects + self._flush_what_counts() + self.resign_if_damaged()

    def _start_or_stop_fetching(self) -> Effect:
        if self.leader == NO_LEADER:
            return StopFetching(topic_partition=self.topic_partition)
        return StartFetching(topic_partition=self.topic_partition, leader=self.leader, leader_epoch=self.leader_epoch)

    def stop(self) -> list[Effect]:
        """The replica is deleted, moved away, broken, or its broker stops: it has no role any more."""
        effects: list[Effect] = []
        if self._leading is not None:
            effects.append(LeadershipLost(topic_partition=self.topic_partition))
        if self._following is not None:
            effects.append(StopFetching(topic_partition=self.topic_partition))
        self._leading, self.leadership = None, -1
        self._stop_following()
        self._put_off = None
        return effects

    def brokers_changed(self, broker_epochs: dict[int, int], now_ms: int) -> list[Effect]:
        """Which brokers are active, and in which incarnation, without a change of this partition."""
        if self._put_off is not None:
            self._put_off = replace(self._put_off, broker_epochs=broker_epochs)
        if self._leading is None:
            return []
        with self._storage:
            return self._perform(self._current_leader().brokers_changed(broker_epochs, now_ms=now_ms))

    def _is_put_off(self, assignment: PartitionAssignment) -> bool:
        """While another thread changes the log, the newest assignment waits. The former role requests nothing meanwhile."""
        if self.change is None:
            return False
        known = self._put_off
        if known is None or (assignment.leader_epoch, assignment.partition_epoch) >= (
            known.leader_epoch,
            known.partition_epoch,
        ):
            self._put_off = assignment
        return True

    @property
    def in_sync_when_leading(self) -> tuple[int, ...]:
        """The ISR, if this replica leads, or will lead when its log has been changed; else ()."""
        if self._leading is not None:
            return tuple(sorted(self._leading.isr.isr))
        put_off = self._put_off
        return put_off.isr if put_off is not None and put_off.leader == self.node_id else ()

    @property
    def waits_for_disk(self) -> bool:
        """Asked while the disk hangs: a follower in the ISR of another leader that cannot continue before its disk responds. With
        flush.messages=1 this begins with the next record, so the leader must not wait for that record."""
        if self._following is None or self.node_id not in self._isr or len(self._isr) == 1:
            return False
        return self.change is not None or self.flushes_first

    def disk_hung(self, hangs: bool) -> list[Effect]:
        """The disk of the log does not respond, or responds again. While it hangs, a replica that is not in the ISR does not
        catch up: it would return to the ISR, and have to leave it again."""
        if self.disk_hangs == hangs:
            return []
        self.disk_hangs = hangs
        return [] if self._following is None else [ResumeFetching(topic_partition=self.topic_partition)]

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
        self._isr = assignment.isr
        self.partition_epoch = max(self.partition_epoch, assignment.partition_epoch)

    def _stop_following(self) -> None:
        if self._following is not None:
            self._fetch_sequence = self._following.sequence
        self._following = None

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
                    f"{self.topic_partition} has {len(leading.isr.isr)} in-sync replicas, but min.insync.replicas "
                    f"requires {leading.effective_min_isr}; bring brokers back, or lower the setting"
                )
            info = self.log.append_as_leader(buffer, leader_epoch=self.leader_epoch, now_ms=now_ms)
            if info.duplicate:
                return info, info.last_offset + 1, []
            log = self.log
            end_offset, flush_messages = log.log_end_offset, log.config.flush_messages
            durable_end = log.recovery_point if flush_messages == FLUSH_FIRST else end_offset
            effects = self._perform(leading.appended(end_offset, durable_end_offset=durable_end, now_ms=now_ms))
            if end_offset - log.recovery_point >= flush_messages:
                effects.append(FlushLog(topic_partition=self.topic_partition))
            return info, info.last_offset + 1, effects

    def check_isr(self, now_ms: int) -> list[Effect]:
        if self._leading is None or self.storage_error is not None:
            return []
        with self._storage:
            return self._perform(self._current_leader().check_isr(now_ms))

    def isr_answered(self, proposal: ProposeIsr, answer: IsrAnswer, now_ms: int) -> list[Effect]:
        """The controller answered. A success may contain the new partition epoch before the metadata does."""
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
        """Move the log start offset; return its new value. Only committed records can be deleted."""
        with self._storage:
            self._current_leader()
            log = self.log
            if not log.config.is_deleted_by_retention:
                raise PolicyViolationError(
                    f"{self.topic_partition} is compacted and keeps the newest record of each key: none can be deleted from its "
                    "beginning unless cleanup.policy has delete too"
                )
            wanted = log.high_watermark if before_offset == BEFORE_HIGH_WATERMARK else before_offset
            if not 0 <= wanted <= log.high_watermark:
                raise OffsetOutOfRangeError(
                    f"{self.topic_partition} is committed up to offset {log.high_watermark}; "
                    f"cannot delete before {wanted}"
                )
            if wanted > log.log_start_offset:
                log.delete_records_before(wanted)
            return log.log_start_offset, []

    # --- following ---------------------------------------------------------------------------------------------------

    def next_fetch(self) -> FetchPosition | None:
        """The next fetch; earlier fetches are void. None: this replica follows no leader, or must flush first.

        The offset acknowledges everything before it, so on a topic with flush.messages=1 it must not be sent before that is on
        the disk. `flushed` ends the wait with ResumeFetching.
        """
        if self._following is None or self.storage_error is not None or self.change is not None:
            return None
        log = self.log
        must_flush = log.config.flush_messages == FLUSH_FIRST and log.recovery_point < log.log_end_offset
        if must_flush or self._awaits_repair or self._stays_away:
            return None
        self._asked_up_to_epoch = self.leader_epoch
        return self._following.next_fetch(log_end_offset=log.log_end_offset, latest_epoch=log.latest_epoch)

    @property
    def _stays_away(self) -> bool:
        return self.disk_hangs and (self.flushes_first or self.node_id not in self._isr)

    def fetched(self, position: FetchPosition, answer: FetchAnswer, now_ms: int) -> list[Effect]:
        """Handle the leader's answer to `position`. Answers to any other request than the one in flight change nothing.

        `now_ms` is wall time, as in `append_as_leader`.
        """
        following = self._following
        if following is None or self.change is not None:
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
            case AppendFetched(records=records):
                if len(records) and self.log.begins_inside(records):
                    self._append_then = todo
                    return self._begin_change("start over", partial(self.log.start_over_before, records))
                return self._append_fetched(todo, now_ms)
            case Truncate(offset=offset):
                return self._begin_change(f"truncation to {offset}", partial(self.log.truncate_to, offset))
            case StartOver(offset=offset):
                work = partial(self.log.truncate_fully_and_start_at, offset)
                return self._begin_change(f"start over at {offset}", work)

    def _append_fetched(self, fetched: AppendFetched, now_ms: int) -> list[Effect]:
        """The high watermark never decreases for a new leader that does not know it yet: committed records stay committed."""
        log = self.log
        effects: list[Effect] = []
        if len(fetched.records):
            # Records that were committed without this replica were appended some time ago: it is catching up.
            is_fresh = fetched.high_watermark <= log.log_end_offset
            log.append_as_follower(fetched.records, now_ms=now_ms, is_fresh=is_fresh)
            effects.append(LogEndAdvanced(topic_partition=self.topic_partition, log_end_offset=log.log_end_offset))
            if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
                effects.append(FlushLog(topic_partition=self.topic_partition))
        high_watermark = min(fetched.high_watermark, log.log_end_offset)
        if high_watermark > log.high_watermark:
            log.set_high_watermark(high_watermark)
            effects.append(HighWatermarkAdvanced(topic_partition=self.topic_partition, high_watermark=high_watermark))
        if log.log_start_offset < fetched.leader_log_start_offset <= log.log_end_offset:
            log.delete_records_before(fetched.leader_log_start_offset)
        return effects

    # --- changes that wait for the disk (see log_change) ---------------------------------------------------------------

    def _begin_change(self, what: str, work: Callable[[], object]) -> list[Effect]:
        assert self.change is None
        self.log.begin_change()
        self.change = LogChange(what=what, work=work)
        return [ChangeLog(topic_partition=self.topic_partition, change=self.change)]

    def log_changed(self, change: LogChange, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """The change is complete, or was dropped; take the role that was deferred. `change.error` is the refusal: then nothing is
        fetched before `fetch_again`."""
        assert change is self.change
        self.change = None
        self.log.end_change()
        then, self._append_then = self._append_then, None
        effects: list[Effect] = []
        try:
            with self._storage:
                if change.error is not None:
                    raise change.error
                if then is not None and self._following is not None:
                    effects += self._append_fetched(then, wall_ms)
        except BarnabasError as error:
            change.error = error
        effects += self._take_up_what_was_put_off(now_ms)
        if change.error is None:
            return effects + self.fetch_again()
        return (
            [*effects, StopFetching(topic_partition=self.topic_partition)] if self._following is not None else effects
        )

    def _take_up_what_was_put_off(self, now_ms: int) -> list[Effect]:
        assignment, self._put_off = self._put_off, None
        if assignment is None or self.storage_error is not None:
            return []
        take_up = self.make_leader if assignment.leader == self.node_id else self.make_follower
        return take_up(assignment, now_ms)

    def fetch_again(self) -> list[Effect]:
        """Ask the leader at once, if this replica follows one."""
        if self._following is None or self.change is not None or self.storage_error is not None:
            return []
        return [self._start_or_stop_fetching(), *self._flush_what_counts()]

    # --- damage ------------------------------------------------------------------------------------------------------
    #
    # A replica with damage in its log may cut it off only if the cluster does not rely on this replica: otherwise acknowledged
    # records would be lost. So it resigns (the controller commits an ISR without it, with a new leader epoch), and in an epoch in
    # which it has not fetched it sets the damage aside and copies the rest from the leader. A pending fetch of the old log
    # belongs to an older epoch, and cannot bring the replica back into the ISR.

    @property
    def _awaits_repair(self) -> bool:
        return self.leader_epoch > self._asked_up_to_epoch and self.log.damage.is_known

    def resign_if_damaged(self) -> list[Effect]:
        """Call it periodically: a replica that could take over may come back."""
        is_busy = self.storage_error is not None or self.change is not None
        if is_busy or not self.log.damage.is_known or self.leader == NO_LEADER:
            return []
        if self._resigned_epoch < self.leader_epoch and self.node_id in self._isr:
            self._resigned_epoch = -1  # the cluster relies on this replica again (an unclean election)
        if self._has_resigned:
            return self._repair()
        return [Resign(topic_partition=self.topic_partition, topic_id=self.topic_id, leader_epoch=self.leader_epoch)]

    def resigned(self, leader_epoch: int) -> list[Effect]:
        """The controller has agreed to a Resign of this leader epoch. Until the metadata shows it, the replica continues: sound
        records still count."""
        self._resigned_epoch = max(self._resigned_epoch, leader_epoch)
        return self.resign_if_damaged()

    @property
    def _has_resigned(self) -> bool:
        """Has it resigned, without a fetch since then that could have brought it back?"""
        return self._resigned_epoch >= self._asked_up_to_epoch and self._resigned_epoch >= 0

    def _repair(self) -> list[Effect]:
        if self._following is None or self.leader_epoch <= self._resigned_epoch or self.node_id in self._isr:
            return []  # the metadata is still on its way
        self._resigned_epoch = -1
        return self._begin_change("repair of damage", self.log.set_damage_aside)

    # --- flushing ----------------------------------------------------------------------------------------------------

    def flushed(self, now_ms: int) -> list[Effect]:
        """A flush of the log succeeded: the log counts up to its recovery point, if it had to wait for the flush."""
        if self.storage_error is not None or self.change is not None:
            return []
        if self._leading is not None:
            with self._storage:
                effects = self._perform(self._current_leader().flushed(self.durable_end_offset, now_ms=now_ms))
        else:
            effects = [] if self.awaits_flush else [ResumeFetching(topic_partition=self.topic_partition)]
        return effects + self._flush_what_counts()

    def flush_failed(self, error: StorageError) -> None:
        """Records that were not flushed are not acknowledged any more: a second flush would wrongly succeed ("fsyncgate")."""
        if self.storage_error is not None:
            return
        if self.log.failed:
            self.storage_error = error
        if self.storage_trouble is not None:
            self.storage_trouble(self, error)

    def config_changed(self, now_ms: int) -> list[Effect]:
        """The topic's flush policy, or its min.insync.replicas, may have changed."""
        return self.flushed(now_ms)

    def _flush_what_counts(self) -> list[Effect]:
        return [FlushLog(topic_partition=self.topic_partition)] if self.awaits_flush else []

    def __str__(self) -> str:
        role = self._leading or self._following or "no role"
        return f"{self.topic_partition} pe{self.partition_epoch} {role}"

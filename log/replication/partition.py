"""One partition on this broker: its log and the role that it plays for it, leader, follower or neither.

`Partition` takes up the roles that the metadata assigns, and holds the parts that do the work: `leading` and `following` for the
two roles, `reads` for clients, `repair` for a damaged log, `storage` as the guard of the log.

Every method is synchronous. An append is done at once; operations that wait for the disk are returned as effects, like the rest.
"""

from dataclasses import replace

from .current_role import CurrentRole
from .effects import (
    Effect,
    LeadershipLost,
    PartitionAssignment,
    ResumeFetching,
    StopFetching,
)
from .following import Following
from .guarded_log import GuardedLog
from .leader import DEFAULT_REPLICA_LAG_TIME_MAX_MS
from .leading import Leading
from .log_change import LogChange
from .log_repair import LogRepair
from .partition_reads import PartitionReads
from .ports import ReplicatedLog


class Partition:
    """A replica of a partition."""

    def __init__(
        self, log: ReplicatedLog, node_id: int, *, replica_lag_time_max_ms: int = DEFAULT_REPLICA_LAG_TIME_MAX_MS
    ) -> None:
        self.log = log
        self.node_id = node_id
        self.topic_partition = log.topic_partition
        self.topic_id = log.topic_id
        self.role = CurrentRole(log, node_id, replica_lag_time_max_ms=replica_lag_time_max_ms)
        self.storage = GuardedLog(log, node_id)
        self.reads = PartitionReads(self.role, self.storage)
        self.repair = LogRepair(self.role, self.storage)
        self.leading = Leading(self.role, self.storage, self.reads)
        self.following = Following(self.role, self.storage, self.repair)
        self._put_off: PartitionAssignment | None = None  # None unless the log is being changed
        # What clients have written and consumers have read here, as it was in the log: for metrics.
        self.bytes_in = 0
        self.records_in = 0
        self.bytes_out = 0

    # --- roles -------------------------------------------------------------------------------------------------------

    def make_leader(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        """Lead according to the metadata. Metadata older than the known one is ignored; with the same partition epoch, only the
        broker epochs may change."""
        role = self.role
        if self._is_put_off(assignment):
            return []
        if role.is_old(assignment):
            is_same = role.has_epochs_of(assignment)
            return self.brokers_changed(assignment.broker_epochs, now_ms) if is_same else []
        is_new_epoch = assignment.leader_epoch > role.leader_epoch
        role.adopt(assignment)
        with self.storage:
            if role.is_leader and not is_new_epoch:
                return self.leading.metadata_changed(assignment, now_ms)
            was_follower = role.is_follower
            role.lead()
            effects = self.leading.begin_epoch(assignment, now_ms)
            if was_follower:
                effects.insert(0, StopFetching(topic_partition=self.topic_partition))
            return effects + self.storage.flush_what_counts() + self.repair.resign_if_damaged()

    def make_follower(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        """Follow according to the metadata; without a leader, wait."""
        role = self.role
        if self._is_put_off(assignment) or role.is_old(assignment):
            return []
        is_new_epoch = assignment.leader_epoch > role.leader_epoch
        role.adopt(assignment)
        if not is_new_epoch and role.is_follower:
            return []
        lost = [LeadershipLost(topic_partition=self.topic_partition)] if role.is_leader else []
        role.follow()
        return [
            *lost,
            self.following.start_or_stop_fetching(),
            *self.storage.flush_what_counts(),
            *self.repair.resign_if_damaged(),
        ]

    def stop(self) -> list[Effect]:
        """The replica is deleted, moved away, broken, or its broker stops: it has no role any more."""
        effects: list[Effect] = []
        if self.role.is_leader:
            effects.append(LeadershipLost(topic_partition=self.topic_partition))
        if self.role.is_follower:
            effects.append(StopFetching(topic_partition=self.topic_partition))
        self.role.give_up()
        self._put_off = None
        return effects

    def brokers_changed(self, broker_epochs: dict[int, int], now_ms: int) -> list[Effect]:
        """Which brokers are active, and in which incarnation, without a change of this partition."""
        if self._put_off is not None:
            self._put_off = replace(self._put_off, broker_epochs=broker_epochs)
        return self.leading.brokers_changed(broker_epochs, now_ms)

    @property
    def in_sync_when_leading(self) -> tuple[int, ...]:
        """The ISR, if this replica leads, or will lead when its log has been changed; else ()."""
        leading, put_off = self.role.leader_state, self._put_off
        if leading is not None:
            return tuple(sorted(leading.isr.isr))
        return put_off.isr if put_off is not None and put_off.leader == self.node_id else ()

    # --- the log changes meanwhile (see log_change) -------------------------------------------------------------------

    def _is_put_off(self, assignment: PartitionAssignment) -> bool:
        """While another thread changes the log, the newest assignment waits. The former role requests nothing meanwhile."""
        if self.storage.change is None:
            return False
        known = self._put_off
        if known is None or (assignment.leader_epoch, assignment.partition_epoch) >= (
            known.leader_epoch,
            known.partition_epoch,
        ):
            self._put_off = assignment
        return True

    def log_changed(self, change: LogChange, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """The change is complete, or was dropped; take the role that was deferred. `change.error` is the refusal: then nothing is
        fetched before `Following.fetch_again`."""
        self.storage.end_change(change)
        effects = self.following.append_after(change, wall_ms) + self._take_up_what_was_put_off(now_ms)
        if change.error is None:
            return effects + self.following.fetch_again()
        return [*effects, StopFetching(topic_partition=self.topic_partition)] if self.role.is_follower else effects

    def _take_up_what_was_put_off(self, now_ms: int) -> list[Effect]:
        assignment, self._put_off = self._put_off, None
        if assignment is None or self.storage.error is not None:
            return []
        take_up = self.make_leader if assignment.leader == self.node_id else self.make_follower
        return take_up(assignment, now_ms)

    # --- flushing ----------------------------------------------------------------------------------------------------

    def flushed(self, now_ms: int) -> list[Effect]:
        """A flush of the log succeeded, or the topic's settings have changed: the log counts up to its recovery point, if it had
        to wait for the flush."""
        if not self.storage.is_usable:
            return []
        if self.role.is_leader:
            effects = self.leading.flushed(now_ms)
        else:
            effects = [] if self.storage.awaits_flush else [ResumeFetching(topic_partition=self.topic_partition)]
        return effects + self.storage.flush_what_counts()

    # --- progress: what requests that wait look at (net/logs/purgatory) -----------------------------------------------

    @property
    def leader_epoch(self) -> int:
        return self.role.leader_epoch

    @property
    def leadership(self) -> int:
        return self.role.leadership

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def durable_end_offset(self) -> int:
        return self.storage.durable_end_offset

    @property
    def has_enough_replicas(self) -> bool:
        return self.leading.has_enough_replicas

    def readable_bytes(self, offset: int, *, end_offset: int, max_bytes: int) -> int:
        return self.reads.readable_bytes(offset, end_offset=end_offset, max_bytes=max_bytes)

    def __str__(self) -> str:
        machine = self.role.leader_state or self.role.follower_state or "no role"
        return f"{self.topic_partition} pe{self.role.partition_epoch} {machine}"

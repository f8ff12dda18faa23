"""What a replica does while it leads: it appends for clients, serves followers, and moves the high watermark.

`LeaderState` decides about the ISR and the high watermark; this part gives it what happens to the log, and applies its high
watermark. Every request is refused if the replica does not lead.
"""

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from ..format.record_batch import Buffer
from ..vocabulary.errors import (
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    StaleBrokerEpochError,
)
from .current_role import CurrentRole
from .effects import (
    Effect,
    FlushLog,
    HighWatermarkAdvanced,
    IsrAnswer,
    LeadershipGained,
    PartitionAssignment,
    ProposeIsr,
)
from .guarded_log import GuardedLog
from .leader import LeaderState
from .partition_reads import PartitionRead, PartitionReads
from .ports import AppendInfo, slice_size
from .replica import UNKNOWN_OFFSET, Replica

ACKS_ALL: Final = -1
BEFORE_HIGH_WATERMARK: Final = -1  # DeleteRecords
# A consumer that reads from a follower asks the leader again after its metadata.max.age.ms, 5 minutes by default. If it asks less
# often, it learns of new records with the follower's next regular fetch.
READERS_STAY_MS: Final = 600_000


class Leading:
    def __init__(self, role: CurrentRole, storage: GuardedLog, reads: PartitionReads) -> None:
        self._role = role
        self._storage = storage
        self._reads = reads

    @property
    def has_enough_replicas(self) -> bool:
        return self._role.is_leader and not self._role.current_leader().is_under_min_isr

    # --- metadata ----------------------------------------------------------------------------------------------------

    def begin_epoch(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        """The role has begun, or continues in a new leader epoch."""
        log = self._storage.log
        # The epoch begins here even before its first record: a request for its end must not get an older epoch (KIP-101).
        log.assign_epoch_start(assignment.leader_epoch, log.log_end_offset)
        advanced = self._role.current_leader().become_leader(
            assignment,
            log_end_offset=log.log_end_offset,
            durable_end_offset=self._storage.durable_end_offset,
            high_watermark=log.high_watermark,
            now_ms=now_ms,
        )
        return [
            LeadershipGained(topic_partition=assignment.topic_partition, leader_epoch=assignment.leader_epoch),
            *self._perform(advanced),
        ]

    def metadata_changed(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        """Newer metadata of the same leader epoch."""
        return self._perform(self._role.current_leader().metadata_changed(assignment, now_ms=now_ms))

    def brokers_changed(self, broker_epochs: dict[int, int], now_ms: int) -> list[Effect]:
        """Which brokers are active, and in which incarnation, without a change of this partition."""
        if not self._role.is_leader:
            return []
        with self._storage:
            return self._perform(self._role.current_leader().brokers_changed(broker_epochs, now_ms=now_ms))

    # --- the log -----------------------------------------------------------------------------------------------------

    def append(
        self,
        buffer: Buffer,
        *,
        acks: int,
        now_ms: int,
        leader_epoch: int | None = None,
        from_coordinator: bool = False,
        transaction_version: int = 1,
    ) -> tuple[AppendInfo, int, list[Effect]]:
        """Append batches of a client, or the markers of a transaction coordinator. The second value is the offset that the high
        watermark must reach for acks=all.

        Raises what refuses the batch before it is in the log: NotLeaderOrFollowerError, FencedLeaderEpochError,
        NotEnoughReplicasError (acks=all), or what the log says about it.
        """
        storage, role = self._storage, self._role
        with storage as log:
            leading = role.current_leader()
            if leader_epoch is not None:
                role.check_epoch(leader_epoch)
            if acks == ACKS_ALL and leading.is_under_min_isr:
                raise NotEnoughReplicasError(
                    f"{role.topic_partition} has {len(leading.isr.isr)} in-sync replicas, but min.insync.replicas "
                    f"requires {leading.effective_min_isr}; bring brokers back, or lower the setting"
                )
            info = log.append_as_leader(
                buffer,
                leader_epoch=role.leader_epoch,
                now_ms=now_ms,
                from_coordinator=from_coordinator,
                transaction_version=transaction_version,
            )
            if info.duplicate:
                return info, info.last_offset + 1, []
            effects = self._perform(
                leading.appended(log.log_end_offset, durable_end_offset=storage.durable_end_offset, now_ms=now_ms)
            )
            if storage.is_flush_due:
                effects.append(FlushLog(topic_partition=role.topic_partition))
            return info, info.last_offset + 1, effects

    def flushed(self, now_ms: int) -> list[Effect]:
        """The own log counts up to its durable end from now on."""
        with self._storage:
            leading = self._role.current_leader()
            return self._perform(leading.flushed(self._storage.durable_end_offset, now_ms=now_ms))

    def delete_records(self, before_offset: int) -> int:
        """Move the log start offset; return its new value. Only committed records can be deleted."""
        with self._storage as log:
            self._role.current_leader()
            if not log.config.is_deleted_by_retention:
                raise PolicyViolationError(
                    f"{log.topic_partition} is compacted and keeps the newest record of each key: none can be deleted from its "
                    "beginning unless cleanup.policy has delete too"
                )
            wanted = log.high_watermark if before_offset == BEFORE_HIGH_WATERMARK else before_offset
            if not 0 <= wanted <= log.high_watermark:
                raise OffsetOutOfRangeError(
                    f"{log.topic_partition} is committed up to offset {log.high_watermark}; "
                    f"cannot delete before {wanted}"
                )
            if wanted > log.log_start_offset:
                log.delete_records_before(wanted)
            return log.log_start_offset

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
        log_start_offset: int = UNKNOWN_OFFSET,
        is_first_read: bool = True,
        at_least_one_batch: bool = True,
    ) -> tuple[PartitionRead, list[Effect]]:
        """Serve a follower. Its offset acknowledges everything before it.

        It counts only if the follower is in the same epoch and its log agrees with the leader's up to the offset. A parked fetch
        is read again with `is_first_read` False: its acknowledgement is as old as its arrival. Raises for unknown replicas,
        former incarnations and wrong epochs.
        """
        role, reads = self._role, self._reads
        with self._storage as log:
            leading = role.current_leader()
            role.check_epoch(current_leader_epoch, must_be_known=True)
            replica = self._follower(leading, replica_id, broker_epoch)
            refused = reads.refusal(offset, last_fetched_epoch)
            if refused is not None:
                return refused, []
            effects: list[Effect] = []
            if is_first_read:
                replica.log_start_offset = log_start_offset
                effects = self._perform(
                    leading.follower_fetched(replica_id, broker_epoch=broker_epoch, fetch_offset=offset, now_ms=now_ms)
                )
            if replica.offset_served == offset:
                # A follower checks the CRC of the records that it gets. If it fetches the same records again, either the response
                # was lost or the records were refused: then the leader checks its own file before it sends them again.
                log.damage.verify(offset, max_bytes=max_bytes)
            read = reads.read(offset, max_bytes, log.log_end_offset, at_least_one_batch)
            replica.offset_served = offset if slice_size(read.records) else UNKNOWN_OFFSET
            is_news = replica.told_high_watermark < read.high_watermark
            replica.told_high_watermark = read.high_watermark
            return (replace(read, is_urgent=True) if is_news and now_ms < replica.readers_until_ms else read), effects

    def is_settled(self, replica_id: int, offset: int) -> bool:
        """Has the follower that fetches from this offset everything, does it know that everything is committed, and is it in
        sync? Then nothing is to be said or learnt, as long as neither log grows and the metadata stays."""
        leading = self._role.leader_state
        replica = None if leading is None else leading.followers.replicas.get(replica_id)
        if leading is None or replica is None:
            return False
        ends = (offset, replica.log_end_offset, leading.high_watermark, replica.told_high_watermark)
        return ends == (leading.log_end_offset,) * 4 and leading.is_in_sync(replica)

    def waits_for(self, replica_id: int) -> bool:
        """Is it in the ISR, or may it be by now? The metadata shows it later, possibly first to another broker."""
        leading = self._role.leader_state
        return leading is not None and replica_id in leading.isr.maximal_isr

    def tells_at_once(self, replica_id: int, now_ms: int) -> bool:
        """Must this follower learn of each new high watermark at once, because consumers read from it?"""
        leading = self._role.leader_state
        replica = None if leading is None else leading.followers.replicas.get(replica_id)
        return replica is not None and now_ms < replica.readers_until_ms

    def follower_for(self, offset: int, among: Collection[int], now_ms: int) -> int | None:
        """The follower of these brokers that should serve a consumer from this offset on (KIP-392): in sync, alive, and with all
        records before the offset; but it must not have removed those behind it, as each broker removes old segments by itself.
        Of several, the one with most records; None: the leader serves."""
        leading = self._role.current_leader()
        isr, followers = leading.isr.isr, leading.followers
        found: Replica | None = None
        for replica in followers.replicas.values():
            if (
                replica.replica_id in among
                and replica.replica_id in isr
                and followers.is_eligible(replica)
                and replica.log_start_offset <= offset <= replica.log_end_offset
                and (found is None or replica.log_end_offset > found.log_end_offset)
            ):
                found = replica
        if found is None:
            return None
        found.readers_until_ms = now_ms + READERS_STAY_MS
        return found.replica_id

    def _follower(self, leading: LeaderState, replica_id: int, broker_epoch: int) -> Replica:
        replica = leading.followers.replicas.get(replica_id)
        if replica is None:
            raise NotLeaderOrFollowerError(
                f"broker {replica_id} has no replica of {self._role.topic_partition} as far as its leader knows"
            )
        if leading.followers.is_stale(replica_id, broker_epoch):
            raise StaleBrokerEpochError(f"broker {replica_id} has registered again since broker epoch {broker_epoch}")
        return replica

    # --- the ISR -----------------------------------------------------------------------------------------------------

    def check_isr(self, now_ms: int) -> list[Effect]:
        """Run every half lag time: propose to remove followers that have fallen behind."""
        if not self._role.is_leader or self._storage.error is not None:
            return []
        with self._storage:
            return self._perform(self._role.current_leader().check_isr(now_ms))

    def isr_answered(self, proposal: ProposeIsr, answer: IsrAnswer, now_ms: int) -> list[Effect]:
        """The controller answered. A success may contain the new partition epoch before the metadata does."""
        role = self._role
        if not role.is_leader or proposal.topic_id != role.topic_id or self._storage.error is not None:
            return []
        with self._storage:
            leading = role.current_leader()
            effects = self._perform(leading.isr_answered(proposal, answer, now_ms=now_ms))
        role.note_partition_epoch(leading.isr.partition_epoch)
        return effects

    def isr_unanswered(self, proposal: ProposeIsr, now_ms: int) -> list[Effect]:
        """A timeout or a lost connection: the outcome of the proposal is not known."""
        leading = self._role.leader_state
        if leading is None or proposal.topic_id != self._role.topic_id:
            return []
        return self._perform(leading.isr_unanswered(proposal, now_ms=now_ms))

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if type(effect) is HighWatermarkAdvanced:
                self._storage.log.set_high_watermark(effect.high_watermark)
        return effects

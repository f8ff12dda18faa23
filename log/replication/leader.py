"""The leader of a partition: who is in sync, and how far the log is committed. Pure: no clock, no I/O, no log.

The high watermark is the smallest log end offset of the *maximal* ISR (see `isr`), and it never goes back. It stands
still while the committed ISR is smaller than `min.insync.replicas`, and while the committed state names eligible leader
replicas (KIP-966: they left the ISR, the controller may still elect them, so they must hold everything that is committed).
The second rule does not depend on any configuration. The controller decides with its value of min.insync.replicas who
becomes eligible, this leader may know an older value, and nothing is lost: the high watermark waits for every member of
the maximal ISR until the leader knows that it left, and from then on it knows the eligible replicas of the same partition
epoch. `Partition` feeds this machine and performs what it returns.

Our own log counts up to `durable_end_offset`: its end, or, on a topic with flush.messages=1, what is on our disk. That of a
follower counts up to its fetch offset, which is the same thing there.
"""

from collections.abc import Iterable
from typing import Final

from ..vocabulary.errors import ErrorCode
from ..vocabulary.topic_partition import TopicPartition
from .effects import (
    UNKNOWN_BROKER_EPOCH,
    Effect,
    HighWatermarkAdvanced,
    IsrAnswer,
    IsrMember,
    LogEndAdvanced,
    LogFlushed,
    PartitionAssignment,
    ProposeIsr,
)
from .isr import CommittedIsr, IsrState
from .replica import Replica

DEFAULT_REPLICA_LAG_TIME_MAX_MS: Final = 30_000  # Kafka's default since KIP-537
# A refused proposal is not repeated at once: the metadata that explains the refusal is under way, and every fetch of
# the follower would propose again.
PROPOSAL_RETRY_MS: Final = 500
# The broker answers every proposal or reports a time-out long before; this only heals a broker that lost one.
PROPOSAL_TIMEOUT_MS: Final = 60_000
# Refusals that say for certain that this very proposal was not taken. Any other error may be the answer to a repetition
# of a proposal that had been accepted.
_DEFINITE_REFUSALS: Final = frozenset({ErrorCode.INELIGIBLE_REPLICA})
# No copy of a proposal lives longer than this in a socket or a queue, so a controller that is still at our partition
# epoch by then has taken none of them.
PROPOSAL_LIFETIME_MS: Final = 60_000


class LeaderState:
    """Leadership of one partition in one leader epoch."""

    def __init__(self, node_id: int, *, replica_lag_time_max_ms: int = DEFAULT_REPLICA_LAG_TIME_MAX_MS) -> None:
        self.node_id = node_id
        self.replica_lag_time_max_ms = replica_lag_time_max_ms
        self.min_insync_replicas = 1  # the topic's setting; may change at any time
        self.topic_partition = TopicPartition("", -1)
        self.topic_id = ""
        self.leader_epoch = -1
        self.epoch_start_offset = 0  # our log end offset when we became leader
        self.log_end_offset = 0  # never falls within a leader epoch
        self.durable_end_offset = 0  # at most log_end_offset; may fall when the topic's flush policy changes
        self.high_watermark = 0  # never falls within a leader epoch; never passes the maximal ISR's log ends
        self.isr: IsrState = CommittedIsr(isr=frozenset(), partition_epoch=-1)
        self.replicas: dict[int, Replica] = {}  # all assigned replicas but ourselves
        self._broker_epochs: dict[int, int] = {}
        self._next_proposal_id = 0
        self._next_proposal_ms = 0
        self.led_since_ms = 0  # when this leader epoch began
        self._doubt_since_ms = 0  # when the outcome of a proposal was last found to be unknown

    # --- metadata ----------------------------------------------------------------------------------------------------

    def become_leader(
        self,
        assignment: PartitionAssignment,
        *,
        log_end_offset: int,
        durable_end_offset: int,
        high_watermark: int,
        now_ms: int,
    ) -> list[Effect]:
        """Begin a new leader epoch. Nothing that followers said in an earlier one counts any more (KIP-320)."""
        assert assignment.leader == self.node_id and assignment.leader_epoch > self.leader_epoch
        assert high_watermark <= log_end_offset and durable_end_offset <= log_end_offset
        self.topic_partition = assignment.topic_partition
        self.topic_id = assignment.topic_id
        self.leader_epoch = assignment.leader_epoch
        self.epoch_start_offset = self.log_end_offset = log_end_offset
        self.durable_end_offset = durable_end_offset
        self.high_watermark = high_watermark
        self.replicas = {}
        self._next_proposal_ms = self.led_since_ms = now_ms
        return self._adopt(assignment, now_ms)

    def metadata_changed(self, assignment: PartitionAssignment, *, now_ms: int) -> list[Effect]:
        """Newer metadata about the same leader epoch: it settles every proposal that was made before it."""
        assert assignment.leader_epoch == self.leader_epoch and assignment.partition_epoch > self.isr.partition_epoch
        return self._adopt(assignment, now_ms)

    def brokers_changed(self, broker_epochs: dict[int, int], *, now_ms: int) -> list[Effect]:
        """Brokers came, went or restarted; that alone makes no new partition epoch."""
        self._broker_epochs = broker_epochs
        return self._advance(now_ms)

    def _adopt(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        self._broker_epochs = assignment.broker_epochs
        isr = frozenset(assignment.isr) | {self.node_id}
        self._put_out(self.isr.isr - isr)
        self.isr = CommittedIsr(
            isr=isr,
            partition_epoch=assignment.partition_epoch,
            eligible=frozenset(assignment.eligible),
        )
        known = self.replicas
        self.replicas = {
            replica_id: known.get(replica_id) or self._new_replica(replica_id, now_ms)
            for replica_id in assignment.replicas
            if replica_id != self.node_id
        }
        for replica_id in self.isr.isr - self.replicas.keys() - {self.node_id}:  # not assigned, yet electable
            self.replicas[replica_id] = known.get(replica_id) or self._new_replica(replica_id, now_ms)
        return self._advance(now_ms)

    def _put_out(self, replica_ids: Iterable[int]) -> None:
        """They left the ISR, perhaps because their disk hangs: nobody waits for them as for ones that are about to join before
        they have fetched again."""
        for replica_id in replica_ids:
            if replica_id in self.replicas:
                self.replicas[replica_id].put_out()

    def _new_replica(self, replica_id: int, now_ms: int) -> Replica:
        """Members of the ISR get the whole lag time to show up; others have to earn it."""
        if replica_id in self.isr.isr:
            return Replica(replica_id, last_caught_up_ms=now_ms)
        return Replica(replica_id)

    # --- the log and the followers -----------------------------------------------------------------------------------

    def appended(self, log_end_offset: int, *, durable_end_offset: int, now_ms: int) -> list[Effect]:
        assert log_end_offset >= self.log_end_offset
        self.log_end_offset = log_end_offset
        self.durable_end_offset = durable_end_offset
        effects: list[Effect] = [LogEndAdvanced(topic_partition=self.topic_partition, log_end_offset=log_end_offset)]
        if len(self.isr.maximal_isr) == 1:  # nobody else to wait for; otherwise the next fetch decides
            effects += self._advance(now_ms)
        return effects

    def flushed(self, durable_end_offset: int, *, now_ms: int) -> list[Effect]:
        """Our own log counts up to there from now on."""
        assert durable_end_offset <= self.log_end_offset
        self.durable_end_offset = durable_end_offset
        return [LogFlushed(topic_partition=self.topic_partition), *self._advance(now_ms)]

    def is_stale(self, replica_id: int, broker_epoch: int) -> bool:
        """Does this come from an incarnation that is no more? (KIP-903)"""
        replica = self.replicas[replica_id]
        return broker_epoch < replica.broker_epoch or broker_epoch < self._broker_epochs.get(replica_id, -1)

    def follower_fetched(self, replica_id: int, *, broker_epoch: int, fetch_offset: int, now_ms: int) -> list[Effect]:
        """A follower of our epoch, whose log agrees with ours up to `fetch_offset`, asks for what comes behind it.

        A stranger, a ghost of an earlier incarnation and an impossible offset move nothing.
        """
        if replica_id not in self.replicas or self.is_stale(replica_id, broker_epoch):
            return []
        if not 0 <= fetch_offset <= self.log_end_offset:
            return []
        replica = self.replicas[replica_id]
        replica.fetched(fetch_offset, broker_epoch=broker_epoch, leader_end_offset=self.log_end_offset, now_ms=now_ms)
        effects = self._maybe_expand(replica, now_ms)  # first: who joins holds the high watermark from now on
        effects += self._advance(now_ms)
        return effects

    def _advance(self, now_ms: int) -> list[Effect]:
        if self.is_under_min_isr or self.isr.eligible:
            return []
        high_watermark = self.durable_end_offset
        maximal_isr = self.isr.maximal_isr
        for replica in self.replicas.values():
            if replica.log_end_offset < high_watermark and (
                replica.replica_id in maximal_isr or self._is_joining(replica, now_ms)
            ):
                high_watermark = replica.log_end_offset
        if high_watermark <= self.high_watermark:
            return []
        self.high_watermark = high_watermark
        return [HighWatermarkAdvanced(topic_partition=self.topic_partition, high_watermark=high_watermark)]

    def _is_joining(self, replica: Replica, now_ms: int) -> bool:
        """Is it about to join? Then we wait for it: with an ISR of one the high watermark would be the log end at every
        moment, and under a steady load no follower could ever reach it (KAFKA-3494's cure, kept since)."""
        return self._is_eligible(replica) and replica.is_caught_up(
            leader_end_offset=self.log_end_offset, now_ms=now_ms, max_lag_ms=self.replica_lag_time_max_ms
        )

    def _is_eligible(self, replica: Replica) -> bool:
        epoch = self._broker_epochs.get(replica.replica_id)
        return epoch is not None and epoch == replica.broker_epoch

    @property
    def effective_min_isr(self) -> int:
        """A topic of two replicas cannot have three in sync, whatever its setting says."""
        return min(self.min_insync_replicas, len(self.replicas) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        """By the committed ISR: a member that is only proposed may be refused."""
        return len(self.isr.isr) < self.effective_min_isr

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr.isr) < len(self.replicas) + 1

    @property
    def knows_earlier_epochs_end(self) -> bool:
        """Has the high watermark reached all that earlier leaders may have shown? Before that, an end offset told to a
        client could be smaller than one that it has seen (KIP-207)."""
        return self.high_watermark >= self.epoch_start_offset

    # --- the ISR -----------------------------------------------------------------------------------------------------

    def _maybe_expand(self, replica: Replica, now_ms: int) -> list[Effect]:
        if replica.replica_id in self.isr.isr or not self._may_propose(now_ms):
            return []
        if not self._is_eligible(replica) or not self._has_reached_commitment(replica):
            return []
        return self._propose(self.isr.isr | {replica.replica_id}, now_ms)

    def _has_reached_commitment(self, replica: Replica) -> bool:
        """Our high watermark may lag behind what earlier leaders committed, but our log at the start of our epoch holds
        all of it; so a member must have both (KIP-320, fourth rule)."""
        return replica.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)

    def check_isr(self, now_ms: int) -> list[Effect]:
        """Run every half lag time: propose to leave out who has fallen behind."""
        if not isinstance(self.isr, CommittedIsr) and now_ms - self.isr.proposed_at_ms >= PROPOSAL_TIMEOUT_MS:
            self._outcome_unknown(now_ms)
        if self._may_propose(now_ms):
            lagging = {replica_id for replica_id in self.isr.isr if self._is_lagging(replica_id, now_ms)}
            if lagging:
                return self._propose(self.isr.isr - lagging, now_ms)
            if self._doubt_blocks(now_ms):
                return self._propose(self.isr.isr, now_ms)
        return self._advance(now_ms)  # one that was about to join may have given up

    def _is_lagging(self, replica_id: int, now_ms: int) -> bool:
        return replica_id != self.node_id and not self.replicas[replica_id].is_caught_up(
            leader_end_offset=self.log_end_offset, now_ms=now_ms, max_lag_ms=self.replica_lag_time_max_ms
        )

    def _doubt_blocks(self, now_ms: int) -> bool:
        """Does a silent follower, of whom we do not know whether it was taken in, hold the high watermark? Then we
        propose the ISR as it is: the controller's answer ends the doubt."""
        isr = self.isr
        return isinstance(isr, CommittedIsr) and any(
            self._is_lagging(replica_id, now_ms) for replica_id in isr.unresolved
        )

    def _may_propose(self, now_ms: int) -> bool:
        return isinstance(self.isr, CommittedIsr) and now_ms >= self._next_proposal_ms

    def _propose(self, isr: Iterable[int], now_ms: int) -> list[Effect]:
        assert isinstance(self.isr, CommittedIsr)
        self._next_proposal_id += 1
        proposal = ProposeIsr(
            topic_partition=self.topic_partition,
            topic_id=self.topic_id,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.isr.partition_epoch,
            isr=tuple(self._member(replica_id) for replica_id in sorted(isr)),
            proposal_id=self._next_proposal_id,
        )
        self.isr = self.isr.propose(proposal, now_ms)
        return [proposal]

    def _member(self, replica_id: int) -> IsrMember:
        """Ourselves without an epoch (the request carries it); a member that has not fetched from us yet as metadata
        has it: it is committed already, so its restart would have made a newer partition epoch."""
        if replica_id == self.node_id:
            return IsrMember(node_id=replica_id, broker_epoch=UNKNOWN_BROKER_EPOCH)
        seen = self.replicas[replica_id].broker_epoch
        epoch = seen if seen != UNKNOWN_BROKER_EPOCH else self._broker_epochs.get(replica_id, UNKNOWN_BROKER_EPOCH)
        return IsrMember(node_id=replica_id, broker_epoch=epoch)

    def isr_answered(self, proposal: ProposeIsr, answer: IsrAnswer, *, now_ms: int) -> list[Effect]:
        """The controller's answer. Committed state in it counts by its partition epoch, whichever proposal it
        answers."""
        if proposal.leader_epoch != self.leader_epoch:
            return []
        is_ours = not isinstance(self.isr, CommittedIsr) and self.isr.proposal == proposal
        if answer.error == ErrorCode.NONE:
            return self._isr_committed(answer, is_ours, now_ms)
        if is_ours:
            self._refused(answer.error, now_ms)
        return self._advance(now_ms)

    def isr_unanswered(self, proposal: ProposeIsr, *, now_ms: int) -> list[Effect]:
        """No answer came: the controller may have taken it or not, or may yet take it."""
        if not isinstance(self.isr, CommittedIsr) and self.isr.proposal == proposal:
            self._outcome_unknown(now_ms)
        return []

    def _refused(self, error: int, now_ms: int) -> None:
        assert not isinstance(self.isr, CommittedIsr)
        if error not in _DEFINITE_REFUSALS:
            self._outcome_unknown(now_ms)
            return
        self.isr = self.isr.refused()
        self._next_proposal_ms = now_ms + PROPOSAL_RETRY_MS

    def _outcome_unknown(self, now_ms: int) -> None:
        assert not isinstance(self.isr, CommittedIsr)
        if self.isr.proposed != self.isr.isr:  # the ISR as it is raises no doubt
            self._doubt_since_ms = now_ms
        self.isr = self.isr.outcome_unknown()
        self._next_proposal_ms = now_ms + PROPOSAL_RETRY_MS

    def _isr_committed(self, answer: IsrAnswer, is_ours: bool, now_ms: int) -> list[Effect]:
        """A newer partition epoch is news whatever it answers; an answer that metadata overtook says nothing."""
        if answer.leader_epoch != self.leader_epoch or answer.partition_epoch < self.isr.partition_epoch:
            return []
        if answer.partition_epoch > self.isr.partition_epoch:
            isr = frozenset(answer.isr) | {self.node_id}
            self._put_out(self.isr.isr - isr)
            self.isr = CommittedIsr(
                isr=isr, partition_epoch=answer.partition_epoch, eligible=frozenset(answer.eligible)
            )
        elif is_ours:
            self._nothing_changed(now_ms)
        return self._advance(now_ms)

    def _nothing_changed(self, now_ms: int) -> None:
        """The controller had nothing to write (it stands where we thought): the answer to proposing the ISR as it
        is."""
        self._outcome_unknown(now_ms)
        if now_ms - self._doubt_since_ms >= PROPOSAL_LIFETIME_MS:
            known = self.isr
            self.isr = CommittedIsr(isr=known.isr, partition_epoch=known.partition_epoch, eligible=known.eligible)

    def __str__(self) -> str:
        followers = " ".join(map(str, self.replicas.values()))
        return f"leader e{self.leader_epoch} hw{self.high_watermark} end{self.log_end_offset} isr{self.isr} {followers}"

"""The leader of a partition: who is in sync, and how far the log is committed. Pure: no clock, no I/O, no log.

The high watermark is the smallest log end offset of the *maximal* ISR (see `isr`), and it never decreases. It does not move while
the committed ISR is smaller than `min.insync.replicas`, or while the committed state names eligible leader replicas (KIP-966:
they left the ISR, the controller may still elect them, so they must have everything that is committed). The second rule does not
depend on any configuration. The controller decides with its value of min.insync.replicas which replicas become eligible, this
leader may know an older value, and nothing is lost: the high watermark waits for every member of the maximal ISR until the leader
knows that it left, and from then on it knows the eligible replicas of the same partition epoch. `Leading` calls this machine
and applies the high watermark.

The leader's own log counts up to `durable_end_offset`: its end, or, on a topic with flush.messages=1, the flushed part. A
follower's log counts up to its fetch offset, which has the same meaning there.
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
# A refused proposal is not repeated at once: the metadata that explains the refusal is on its way, and otherwise every fetch of
# the follower would repeat the proposal.
PROPOSAL_RETRY_MS: Final = 500
# The broker answers every proposal or reports a timeout long before; this only repairs the loss of an answer.
PROPOSAL_TIMEOUT_MS: Final = 60_000
# Refusals which guarantee that this proposal was not accepted. Any other error may be the response to a repetition of a proposal
# that had been accepted.
_DEFINITE_REFUSALS: Final = frozenset({ErrorCode.INELIGIBLE_REPLICA})
# No copy of a proposal lives longer than this in a socket or a queue, so if the controller's partition epoch is unchanged by
# then, it has accepted none of them.
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
        self.epoch_start_offset = 0  # the leader's log end offset when it became leader
        self.log_end_offset = 0  # never falls within a leader epoch
        self.durable_end_offset = 0  # at most log_end_offset; may fall when the topic's flush policy changes
        self.high_watermark = 0  # never falls within a leader epoch; never passes the maximal ISR's log ends
        self.isr: IsrState = CommittedIsr(isr=frozenset(), partition_epoch=-1)
        self.replicas: dict[int, Replica] = {}  # all assigned replicas except this one
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
        """Begin a new leader epoch. Follower state of earlier epochs does not count any more (KIP-320)."""
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
        """Newer metadata of the same leader epoch; it resolves every earlier proposal."""
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
        """They left the ISR, perhaps because their disk hangs: the leader does not wait for them as for joining replicas before
        they have fetched again."""
        for replica_id in replica_ids:
            if replica_id in self.replicas:
                self.replicas[replica_id].put_out()

    def _new_replica(self, replica_id: int, now_ms: int) -> Replica:
        """Members of the ISR get the whole lag time until their first fetch; other replicas must catch up first."""
        if replica_id in self.isr.isr:
            return Replica(replica_id, last_caught_up_ms=now_ms)
        return Replica(replica_id)

    # --- the log and the followers -----------------------------------------------------------------------------------

    def appended(self, log_end_offset: int, *, durable_end_offset: int, now_ms: int) -> list[Effect]:
        assert log_end_offset >= self.log_end_offset
        self.log_end_offset = log_end_offset
        self.durable_end_offset = durable_end_offset
        effects: list[Effect] = [LogEndAdvanced(topic_partition=self.topic_partition, log_end_offset=log_end_offset)]
        if len(self.isr.maximal_isr) == 1:  # no other replica to wait for; otherwise the next fetch decides
            effects += self._advance(now_ms)
        return effects

    def flushed(self, durable_end_offset: int, *, now_ms: int) -> list[Effect]:
        """The leader's own log counts up to there from now on."""
        assert durable_end_offset <= self.log_end_offset
        self.durable_end_offset = durable_end_offset
        return [LogFlushed(topic_partition=self.topic_partition), *self._advance(now_ms)]

    def is_stale(self, replica_id: int, broker_epoch: int) -> bool:
        """Does this come from a former incarnation? (KIP-903)"""
        replica = self.replicas[replica_id]
        return broker_epoch < replica.broker_epoch or broker_epoch < self._broker_epochs.get(replica_id, -1)

    def follower_fetched(self, replica_id: int, *, broker_epoch: int, fetch_offset: int, now_ms: int) -> list[Effect]:
        """A follower of this epoch, whose log agrees with the leader's up to `fetch_offset`, fetches from there.

        Unknown replicas, earlier incarnations and impossible offsets change nothing.
        """
        if replica_id not in self.replicas or self.is_stale(replica_id, broker_epoch):
            return []
        if not 0 <= fetch_offset <= self.log_end_offset:
            return []
        replica = self.replicas[replica_id]
        replica.fetched(fetch_offset, broker_epoch=broker_epoch, leader_end_offset=self.log_end_offset, now_ms=now_ms)
        effects = self._maybe_expand(replica, now_ms)  # first: a new member limits the high watermark from now on
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
        """Is it about to join? Then the leader waits for it: with an ISR of one, the high watermark would always be the log end,
        and under a steady load no follower could ever reach it (the remedy of KAFKA-3494)."""
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
        """Has the high watermark reached everything that earlier leaders may have exposed? Before that, an end offset in a
        response could be smaller than one that the client has seen (KIP-207)."""
        return self.high_watermark >= self.epoch_start_offset

    # --- the ISR -----------------------------------------------------------------------------------------------------

    def _maybe_expand(self, replica: Replica, now_ms: int) -> list[Effect]:
        if replica.replica_id in self.isr.isr or not self._may_propose(now_ms):
            return []
        if not self._is_eligible(replica) or not self._has_reached_commitment(replica):
            return []
        return self._propose(self.isr.isr | {replica.replica_id}, now_ms)

    def _has_reached_commitment(self, replica: Replica) -> bool:
        """The high watermark may be below the offset that earlier leaders committed, but the leader's log at the start of its
        epoch has all of it; so a member must have both (KIP-320, fourth rule)."""
        return replica.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)

    def check_isr(self, now_ms: int) -> list[Effect]:
        """Run every half lag time: propose to remove followers that have fallen behind."""
        if not isinstance(self.isr, CommittedIsr) and now_ms - self.isr.proposed_at_ms >= PROPOSAL_TIMEOUT_MS:
            self._outcome_unknown(now_ms)
        if self._may_propose(now_ms):
            lagging = {replica_id for replica_id in self.isr.isr if self._is_lagging(replica_id, now_ms)}
            if lagging:
                return self._propose(self.isr.isr - lagging, now_ms)
            if self._doubt_blocks(now_ms):
                return self._propose(self.isr.isr, now_ms)
        return self._advance(now_ms)  # a replica that was about to join may have stopped

    def _is_lagging(self, replica_id: int, now_ms: int) -> bool:
        return replica_id != self.node_id and not self.replicas[replica_id].is_caught_up(
            leader_end_offset=self.log_end_offset, now_ms=now_ms, max_lag_ms=self.replica_lag_time_max_ms
        )

    def _doubt_blocks(self, now_ms: int) -> bool:
        """Does a silent follower, which may or may not have been added, hold back the high watermark? Then the leader proposes
        the unchanged ISR: the controller's response resolves this."""
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
        """The leader itself without an epoch (the request carries it); a member that has not fetched yet with the epoch of
        the metadata: it is committed already, so a restart of it would have led to a newer partition epoch."""
        if replica_id == self.node_id:
            return IsrMember(node_id=replica_id, broker_epoch=UNKNOWN_BROKER_EPOCH)
        seen = self.replicas[replica_id].broker_epoch
        epoch = seen if seen != UNKNOWN_BROKER_EPOCH else self._broker_epochs.get(replica_id, UNKNOWN_BROKER_EPOCH)
        return IsrMember(node_id=replica_id, broker_epoch=epoch)

    def isr_answered(self, proposal: ProposeIsr, answer: IsrAnswer, *, now_ms: int) -> list[Effect]:
        """The controller's answer. Committed state in it counts by its partition epoch, regardless of the proposal that it
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
        """There was no response: the controller may have accepted it or not, or may still accept it."""
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
        if self.isr.proposed != self.isr.isr:  # an unchanged ISR leaves nothing unresolved
            self._doubt_since_ms = now_ms
        self.isr = self.isr.outcome_unknown()
        self._next_proposal_ms = now_ms + PROPOSAL_RETRY_MS

    def _isr_committed(self, answer: IsrAnswer, is_ours: bool, now_ms: int) -> list[Effect]:
        """A newer partition epoch is always adopted; an answer that newer metadata has overtaken is ignored."""
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

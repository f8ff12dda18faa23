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
    Effect,
    HighWatermarkAdvanced,
    IsrAnswer,
    LogEndAdvanced,
    LogFlushed,
    PartitionAssignment,
    ProposeIsr,
)
from .isr import CommittedIsr, IsrProposals, IsrState
from .replica import Followers, Replica

DEFAULT_REPLICA_LAG_TIME_MAX_MS: Final = 30_000  # Kafka's default since KIP-537


class LeaderState:
    """Leadership of one partition in one leader epoch: `followers` knows how far each follower is, `proposals` which ISR is
    committed or proposed; together they say how far the log is committed, and which ISR to propose."""

    def __init__(self, node_id: int, *, replica_lag_time_max_ms: int = DEFAULT_REPLICA_LAG_TIME_MAX_MS) -> None:
        self.node_id = node_id
        self.min_insync_replicas = 1  # the topic's setting; may change at any time
        self.topic_partition = TopicPartition("", -1)
        self.topic_id = ""
        self.leader_epoch = -1
        self.epoch_start_offset = 0  # the leader's log end offset when it became leader
        self.log_end_offset = 0  # never falls within a leader epoch
        self.durable_end_offset = 0  # at most log_end_offset; may fall when the topic's flush policy changes
        self.high_watermark = 0  # never falls within a leader epoch; never passes the maximal ISR's log ends
        self.led_since_ms = 0  # when this leader epoch began
        self.followers = Followers(node_id, max_lag_ms=replica_lag_time_max_ms)
        self.proposals = IsrProposals()

    @property
    def isr(self) -> IsrState:
        return self.proposals.isr

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
        self.led_since_ms = now_ms
        self.proposals.begin(now_ms)
        return self._adopt(assignment, now_ms)

    def metadata_changed(self, assignment: PartitionAssignment, *, now_ms: int) -> list[Effect]:
        """Newer metadata of the same leader epoch; it resolves every earlier proposal."""
        assert assignment.leader_epoch == self.leader_epoch and assignment.partition_epoch > self.isr.partition_epoch
        return self._adopt(assignment, now_ms)

    def brokers_changed(self, broker_epochs: dict[int, int], *, now_ms: int) -> list[Effect]:
        """Brokers came, went or restarted; that alone makes no new partition epoch."""
        self.followers.broker_epochs = broker_epochs
        return self._advance(now_ms)

    def _adopt(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        followers = self.followers
        followers.broker_epochs = assignment.broker_epochs
        self._commit(assignment.isr, assignment.partition_epoch, assignment.eligible)
        followers.assign(assignment.replicas, self.isr.isr, now_ms)
        return self._advance(now_ms)

    def _commit(self, isr: Iterable[int], partition_epoch: int, eligible: Iterable[int]) -> None:
        left = self.proposals.committed({*isr, self.node_id}, partition_epoch=partition_epoch, eligible=eligible)
        self.followers.put_out(left)

    # --- the log and the followers -----------------------------------------------------------------------------------

    def appended(self, log_end_offset: int, *, durable_end_offset: int, now_ms: int) -> list[Effect]:
        assert log_end_offset >= self.log_end_offset
        self.log_end_offset = log_end_offset
        self.durable_end_offset = durable_end_offset
        effects: list[Effect] = [LogEndAdvanced(topic_partition=self.topic_partition, log_end_offset=log_end_offset)]
        if len(self.proposals.isr.maximal_isr) == 1:  # no other replica to wait for; otherwise the next fetch decides
            effects += self._advance(now_ms)
        return effects

    def flushed(self, durable_end_offset: int, *, now_ms: int) -> list[Effect]:
        """The leader's own log counts up to there from now on."""
        assert durable_end_offset <= self.log_end_offset
        self.durable_end_offset = durable_end_offset
        return [LogFlushed(topic_partition=self.topic_partition), *self._advance(now_ms)]

    def follower_fetched(self, replica_id: int, *, broker_epoch: int, fetch_offset: int, now_ms: int) -> list[Effect]:
        """A follower of this epoch, whose log agrees with the leader's up to `fetch_offset`, fetches from there.

        Unknown replicas, earlier incarnations and impossible offsets change nothing.
        """
        replica = self.followers.replicas.get(replica_id)
        if replica is None or self.followers.is_stale(replica_id, broker_epoch):
            return []
        if not 0 <= fetch_offset <= self.log_end_offset:
            return []
        replica.fetched(fetch_offset, broker_epoch=broker_epoch, leader_end_offset=self.log_end_offset, now_ms=now_ms)
        effects = self._maybe_expand(replica, now_ms)  # first: a new member limits the high watermark from now on
        effects += self._advance(now_ms)
        return effects

    def _advance(self, now_ms: int) -> list[Effect]:
        isr = self.proposals.isr
        if isr.eligible or self.is_under_min_isr:
            return []
        high_watermark = self.durable_end_offset
        maximal_isr = isr.maximal_isr
        for replica_id, replica in self.followers.replicas.items():
            if replica.log_end_offset < high_watermark and (
                replica_id in maximal_isr or self._is_joining(replica, now_ms)
            ):
                high_watermark = replica.log_end_offset
        if high_watermark <= self.high_watermark:
            return []
        self.high_watermark = high_watermark
        return [HighWatermarkAdvanced(topic_partition=self.topic_partition, high_watermark=high_watermark)]

    def _is_joining(self, replica: Replica, now_ms: int) -> bool:
        """Is it about to join? Then the leader waits for it: with an ISR of one, the high watermark would always be the log end,
        and under a steady load no follower could ever reach it (the remedy of KAFKA-3494)."""
        return self.followers.is_eligible(replica) and not self._is_lagging(replica.replica_id, now_ms)

    def _is_lagging(self, replica_id: int, now_ms: int) -> bool:
        return self.followers.is_lagging(replica_id, leader_end_offset=self.log_end_offset, now_ms=now_ms)

    @property
    def effective_min_isr(self) -> int:
        """A topic of two replicas cannot have three in sync, whatever its setting says."""
        return min(self.min_insync_replicas, len(self.followers.replicas) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        """By the committed ISR: a member that is only proposed may be refused."""
        return len(self.proposals.isr.isr) < self.effective_min_isr

    def is_in_sync(self, replica: Replica) -> bool:
        """By the committed ISR, without a proposal whose outcome is open, and in the incarnation that fetches."""
        isr = self.isr
        is_certain = isinstance(isr, CommittedIsr) and not isr.unresolved
        return is_certain and replica.replica_id in isr.isr and self.followers.is_eligible(replica)

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr.isr) < len(self.followers.replicas) + 1

    @property
    def knows_earlier_epochs_end(self) -> bool:
        """Has the high watermark reached everything that earlier leaders may have exposed? Before that, an end offset in a
        response could be smaller than one that the client has seen (KIP-207)."""
        return self.high_watermark >= self.epoch_start_offset

    # --- the ISR -----------------------------------------------------------------------------------------------------

    def _maybe_expand(self, replica: Replica, now_ms: int) -> list[Effect]:
        if replica.replica_id in self.isr.isr or not self.proposals.may_propose(now_ms):
            return []
        if not self.followers.is_eligible(replica) or not self._has_reached_commitment(replica):
            return []
        return self._propose(self.isr.isr | {replica.replica_id}, now_ms)

    def _has_reached_commitment(self, replica: Replica) -> bool:
        """The high watermark may be below the offset that earlier leaders committed, but the leader's log at the start of its
        epoch has all of it; so a member must have both (KIP-320, fourth rule)."""
        return replica.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)

    def check_isr(self, now_ms: int) -> list[Effect]:
        """Run every half lag time: propose to remove followers that have fallen behind."""
        self.proposals.time_out(now_ms)
        if self.proposals.may_propose(now_ms):
            lagging = {replica_id for replica_id in self.isr.isr if self._is_lagging(replica_id, now_ms)}
            if lagging:
                return self._propose(self.isr.isr - lagging, now_ms)
            if self._doubt_blocks(now_ms):
                return self._propose(self.isr.isr, now_ms)
        return self._advance(now_ms)  # a replica that was about to join may have stopped

    def _doubt_blocks(self, now_ms: int) -> bool:
        """Does a silent follower, which may or may not have been added, hold back the high watermark? Then the leader proposes
        the unchanged ISR: the controller's response resolves this."""
        isr = self.isr
        return isinstance(isr, CommittedIsr) and any(
            self._is_lagging(replica_id, now_ms) for replica_id in isr.unresolved
        )

    def _propose(self, isr: Iterable[int], now_ms: int) -> list[Effect]:
        proposal = ProposeIsr(
            topic_partition=self.topic_partition,
            topic_id=self.topic_id,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.isr.partition_epoch,
            isr=tuple(self.followers.member(replica_id) for replica_id in sorted(isr)),
            proposal_id=self.proposals.next_id(),
        )
        self.proposals.propose(proposal, now_ms)
        return [proposal]

    def isr_answered(self, proposal: ProposeIsr, answer: IsrAnswer, *, now_ms: int) -> list[Effect]:
        """The controller's answer. Committed state in it counts by its partition epoch, regardless of the proposal that it
        answers."""
        if proposal.leader_epoch != self.leader_epoch:
            return []
        is_ours = self.proposals.is_pending(proposal)
        if answer.error == ErrorCode.NONE:
            return self._isr_committed(answer, is_ours, now_ms)
        if is_ours:
            self.proposals.refused(answer.error, now_ms)
        return self._advance(now_ms)

    def isr_unanswered(self, proposal: ProposeIsr, *, now_ms: int) -> list[Effect]:
        """There was no response: the controller may have accepted it or not, or may still accept it."""
        if self.proposals.is_pending(proposal):
            self.proposals.outcome_unknown(now_ms)
        return []

    def _isr_committed(self, answer: IsrAnswer, is_ours: bool, now_ms: int) -> list[Effect]:
        """A newer partition epoch is always adopted; an answer that newer metadata has overtaken is ignored."""
        if answer.leader_epoch != self.leader_epoch or answer.partition_epoch < self.isr.partition_epoch:
            return []
        if answer.partition_epoch > self.isr.partition_epoch:
            self._commit(answer.isr, answer.partition_epoch, answer.eligible)
        elif is_ours:
            self.proposals.nothing_changed(now_ms)
        return self._advance(now_ms)

    def __str__(self) -> str:
        return f"leader e{self.leader_epoch} hw{self.high_watermark} end{self.log_end_offset} isr{self.isr} {self.followers}"

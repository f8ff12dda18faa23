"""Classical replication bugs, planted in subclasses of the real machines: the simulation must find each of them."""

from dataclasses import replace
from typing import Any

from barnabas.log.replication.effects import Effect, PartitionAssignment
from barnabas.log.replication.follower import FetchAnswer, FetchPosition, FollowerState
from barnabas.log.replication.guarded_log import GuardedLog
from barnabas.log.replication.isr import CommittedIsr, IsrProposals
from barnabas.log.replication.leader import LeaderState
from barnabas.log.replication.log_repair import LogRepair
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.partition_reads import PartitionRead, PartitionReads
from barnabas.log.replication.ports import ReplicatedLog
from barnabas.log.vocabulary.errors import ErrorCode

from .isr_scenario import Scenario
from .isr_schedules import ExpansionUnheard, LeaderDeposedAnswered, LeaderDeposedUnheard, ScheduledCluster


def _with_machines(
    name: str,
    leader: type[LeaderState] = LeaderState,
    follower: type[FollowerState] = FollowerState,
    proposals: type[IsrProposals] = IsrProposals,
) -> type[Partition]:
    """A partition whose machines are exchanged for faulty ones as soon as it has them."""

    class Faulty(Partition):
        def make_leader(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
            effects = super().make_leader(assignment, now_ms)
            if self.role.leader_state is not None:
                self.role.leader_state.__class__ = leader
                self.role.leader_state.proposals.__class__ = proposals
            return effects

        def make_follower(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
            effects = super().make_follower(assignment, now_ms)
            if self.role.follower_state is not None:
                self.role.follower_state.__class__ = follower
            return effects

    Faulty.__name__ = name
    return Faulty


def _with_parts(name: str, **parts: type) -> type[Partition]:
    """A partition some of whose parts are faulty."""

    class Faulty(Partition):
        def __init__(self, log: ReplicatedLog, node_id: int, **settings: int) -> None:
            super().__init__(log, node_id, **settings)
            for part, kind in parts.items():
                getattr(self, part).__class__ = kind

    Faulty.__name__ = name
    return Faulty


class TruncatesToHighWatermark(Partition):
    """KIP-101: a new follower trusts its own high watermark."""

    def make_follower(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        if assignment.leader_epoch > self.leader_epoch:
            self.log.truncate_to(min(self.log.high_watermark, self.log.log_end_offset))
        return super().make_follower(assignment, now_ms)


class ComparesOffsetsOnly(PartitionReads):
    """KIP-279 and KIP-320: the leader looks at the follower's offset, not at its epoch."""

    def refusal(self, offset: int, last_fetched_epoch: int) -> PartitionRead | None:
        end_offset = self._storage.log.log_end_offset
        if offset > end_offset:
            return self.nothing(diverging_epoch=self._role.leader_epoch, diverging_end_offset=end_offset)
        return super().refusal(offset, -1)


class AnyAnswerCounts(FollowerState):
    """A late or repeated answer is taken as if it answered the request in flight."""

    __slots__ = ()

    def fetched(self, position: FetchPosition, answer: FetchAnswer, **facts: Any) -> Any:
        self.in_flight = position
        return super().fetched(position, answer, **facts)

    def _is_current(self, position: FetchPosition, log_end_offset: int) -> bool:
        return True


class ShrinksAtOnce(LeaderState):
    """The leader acts on its shrunk ISR before the controller has agreed."""

    def _propose(self, isr: Any, now_ms: int) -> list[Effect]:
        effects = super()._propose(isr, now_ms)
        self.proposals.isr = CommittedIsr(isr=frozenset(isr), partition_epoch=self.isr.partition_epoch)
        return effects


class ForgetsUnanswered(IsrProposals):
    """A proposal that timed out is taken for refused."""

    def outcome_unknown(self, now_ms: int) -> None:
        super().outcome_unknown(now_ms)
        self.isr = CommittedIsr(isr=self.isr.isr, partition_epoch=self.isr.partition_epoch)


class ExpandsEarly(LeaderState):
    """Any replica that fetches may join the ISR."""

    def _has_reached_commitment(self, replica: Any) -> bool:
        return True


class AcknowledgesAlone(LeaderState):
    """The high watermark is the leader's own log end."""

    def _advance(self, now_ms: int) -> list[Effect]:
        self.followers.replicas, replicas = {}, self.followers.replicas
        try:
            return super()._advance(now_ms)
        finally:
            self.followers.replicas = replicas

    def appended(self, log_end_offset: int, *, durable_end_offset: int, now_ms: int) -> list[Effect]:
        effects = super().appended(log_end_offset, durable_end_offset=durable_end_offset, now_ms=now_ms)
        return effects + self._advance(now_ms)


class TrustsItsOwnMinIsr(LeaderState):
    """The high watermark moves while a replica outside of the ISR is eligible, because this broker's value of
    min.insync.replicas allows it."""

    def _advance(self, now_ms: int) -> list[Effect]:
        known = self.isr
        if isinstance(known, CommittedIsr):
            self.proposals.isr = replace(known, eligible=frozenset())
        try:
            return super()._advance(now_ms)
        finally:
            self.proposals.isr = known


class ServesUncommitted(PartitionReads):
    def _visible_end(self, isolation_level: int) -> int:
        return self._storage.log.log_end_offset


class CountsBeforeFlush(LeaderState):
    """The leader counts its own records before they are on its disk."""

    def _advance(self, now_ms: int) -> list[Effect]:
        self.durable_end_offset = self.log_end_offset
        return super()._advance(now_ms)


class ReportsBeforeFlush(GuardedLog):
    """A follower says what it has before that is on its disk."""

    @property
    def awaits_flush(self) -> bool:
        return False


class TruncatesWhileInTheIsr(LogRepair):
    """A replica that finds damage cuts its log off at once, while its leader still counts on it."""

    def resign_if_damaged(self) -> list[Effect]:
        log = self._storage.log
        if self._role.is_follower and log.damage.is_known:
            log.set_damage_aside()
        return super().resign_if_damaged()


class CommitsByTheCommittedIsr(LeaderState):
    """The high watermark waits for the committed ISR instead of the maximal one."""

    def _advance(self, now_ms: int) -> list[Effect]:
        known = self.isr
        self.proposals.isr = CommittedIsr(isr=known.isr, partition_epoch=known.partition_epoch)
        try:
            return super()._advance(now_ms)
        finally:
            self.proposals.isr = known


class AnswersOnceDeposed(Partition):
    """A request that waits for a record is answered when the high watermark passes its offset, even after a leader change."""

    @property
    def leadership(self) -> int:
        return 0

    @property
    def has_enough_replicas(self) -> bool:
        return True


class TakesRefusalForConsent(IsrProposals):
    """A leader whose shrink is refused because it has been deposed goes on, and acknowledges alone."""

    def refused(self, error: int, now_ms: int) -> None:
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            proposed = frozenset(member.node_id for member in self.isr.proposal.isr)  # type: ignore[union-attr]
            self.isr = CommittedIsr(isr=proposed, partition_epoch=self.isr.partition_epoch)
        else:
            super().refused(error, now_ms)


LOSSY = False  # flush_first: power cuts lose data, within the promise
DURABLE = True  # flush.messages=1: power cuts of all at once lose nothing

SCENARIOS: dict[str, Scenario] = {
    "truncation to the high watermark instead of by epoch (KIP-101)": Scenario(
        partition_class=TruncatesToHighWatermark
    ),
    "divergence by offset only (KIP-279, KIP-320)": Scenario(
        partition_class=_with_parts("ComparesOffsets", reads=ComparesOffsetsOnly)
    ),
    "a fetch answer that is not tied to its request": Scenario(
        partition_class=_with_machines("AnyAnswer", follower=AnyAnswerCounts)
    ),
    "an ISR shrink counts before it is committed": Scenario(
        partition_class=_with_machines("ShrinksAtOnce", leader=ShrinksAtOnce)
    ),
    "whoever fetches joins the ISR": Scenario(partition_class=_with_machines("ExpandsEarly", leader=ExpandsEarly)),
    "the leader's own log end is the high watermark": Scenario(
        partition_class=_with_machines("Alone", leader=AcknowledgesAlone)
    ),
    "a leader commits by its own value of min.insync.replicas": Scenario(
        min_isr_of_brokers=1, partition_class=_with_machines("TrustsItsOwn", leader=TrustsItsOwnMinIsr)
    ),
    "consumers read what is not committed": Scenario(
        partition_class=_with_parts("ServesUncommitted", reads=ServesUncommitted)
    ),
    "anyone is elected": Scenario(bugs=frozenset({"unclean_election"})),
    "counts before flush": Scenario(
        partition_class=_with_machines("CountsBeforeFlush", leader=CountsBeforeFlush),
        flush_first=DURABLE,
        faults=("power_all", "power"),
    ),
    "reports before flush": Scenario(
        partition_class=_with_parts("ReportsBeforeFlush", storage=ReportsBeforeFlush),
        flush_first=DURABLE,
        faults=("power_all", "power"),
    ),
    "truncates while in the isr": Scenario(
        partition_class=_with_parts("TruncatesInIsr", repair=TruncatesWhileInTheIsr), faults=("rot", "kill")
    ),
    "the last replica standing is elected after a lossy restart (KIP-966)": Scenario(
        bugs=frozenset({"no_elr"}), flush_first=LOSSY
    ),
}
# Found by a schedule: random faults do not come to these moments in thousands of seeds.
DIRECTED: dict[str, tuple[type[ScheduledCluster], Scenario]] = {
    "high watermark from the committed instead of the maximal ISR": (
        ExpansionUnheard,
        Scenario(partition_class=_with_machines("CommitsByCommitted", leader=CommitsByTheCommittedIsr)),
    ),
    "a proposal that timed out is taken for refused": (
        ExpansionUnheard,
        Scenario(partition_class=_with_machines("Forgets", proposals=ForgetsUnanswered)),
    ),
    "a deposed leader acknowledges what waited": (
        LeaderDeposedUnheard,
        Scenario(partition_class=AnswersOnceDeposed),
    ),
    "a stale leader shrinks its ISR by itself and acknowledges alone": (
        LeaderDeposedAnswered,
        Scenario(min_isr=1, partition_class=_with_machines("TakesRefusal", proposals=TakesRefusalForConsent)),
    ),
}

"""The in-sync replica set as its leader knows it: committed, or with a proposal under way. Pure values.

The controller may elect any member of the last committed ISR, and while a proposal is pending (or its outcome is not known) the
leader cannot tell which set that is. Therefore, there are two terms. `isr` is the last ISR that the leader knows to be committed;
`min.insync.replicas` applies to it. `maximal_isr` is the union of all sets that may be committed by now; the high watermark waits
for all its members. Hence, whichever set the controller elects from has everything that was acknowledged.

    CommittedIsr --propose_expand--> PendingIsrExpand --committed / refused / unknown--> CommittedIsr
    CommittedIsr --propose_shrink--> PendingIsrShrink --committed / refused / unknown--> CommittedIsr

Kafka: `PartitionState` in Partition.scala; KIP-497, KIP-841.
"""

from dataclasses import dataclass, field, replace

from .effects import ProposeIsr


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedIsr:
    """No proposal is pending. `unresolved` has the members of all proposals at this partition epoch whose outcome is unknown:
    each may have been accepted. Only newer metadata resolves this, because every proposal names the partition epoch that it
    builds on, and the controller accepts none that builds on an older one."""

    isr: frozenset[int]
    partition_epoch: int
    unresolved: frozenset[int] = frozenset()
    eligible: frozenset[int] = frozenset()  # eligible leader replicas of the same partition epoch (KIP-966)

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr | self.unresolved if self.unresolved else self.isr

    def propose(self, proposal: ProposeIsr, now_ms: int) -> "PendingIsr":
        proposed = frozenset(member.node_id for member in proposal.isr)
        assert proposed
        kind = PendingIsrExpand if proposed > self.isr else PendingIsrShrink
        maximal = self.maximal_isr | proposed
        return kind(committed=self, proposed=proposed, proposal=proposal, proposed_at_ms=now_ms, maximal_isr=maximal)

    def __str__(self) -> str:
        doubt = f"?{sorted(self.unresolved)}" if self.unresolved else ""
        return f"{sorted(self.isr)}{doubt}/pe{self.partition_epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingIsr:
    committed: CommittedIsr
    proposed: frozenset[int]
    proposal: ProposeIsr
    proposed_at_ms: int
    maximal_isr: frozenset[int] = field(default=frozenset())  # superset of committed.maximal_isr and of proposed

    @property
    def isr(self) -> frozenset[int]:
        return self.committed.isr

    @property
    def partition_epoch(self) -> int:
        return self.committed.partition_epoch

    @property
    def eligible(self) -> frozenset[int]:
        return self.committed.eligible

    def refused(self) -> CommittedIsr:
        """The controller has refused it; earlier proposals stay unresolved."""
        return self.committed

    def outcome_unknown(self) -> CommittedIsr:
        """A timeout, a lost connection, or a refusal that our own accepted proposal may have caused."""
        return replace(self.committed, unresolved=self.maximal_isr - self.isr)

    def __str__(self) -> str:
        return f"{self.committed}->{sorted(self.proposed)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingIsrExpand(_PendingIsr):
    """The new member counts for the high watermark at once: the controller may elect it before the leader gets the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingIsrShrink(_PendingIsr):
    """The leaving members count for the high watermark until the controller has removed them."""


PendingIsr = PendingIsrExpand | PendingIsrShrink
IsrState = CommittedIsr | PendingIsrExpand | PendingIsrShrink

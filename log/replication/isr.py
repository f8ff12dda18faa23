"""The in-sync replica set as its leader knows it: committed, or with a proposal under way. Pure: no clock, no I/O.

The controller may elect any member of the last committed ISR, and while a proposal is pending (or its outcome is not known) the
leader cannot tell which set that is. Therefore, there are two terms. `isr` is the last ISR that the leader knows to be committed;
`min.insync.replicas` applies to it. `maximal_isr` is the union of all sets that may be committed by now; the high watermark waits
for all its members. Hence, whichever set the controller elects from has everything that was acknowledged.

    CommittedIsr --propose_expand--> PendingIsrExpand --committed / refused / unknown--> CommittedIsr
    CommittedIsr --propose_shrink--> PendingIsrShrink --committed / refused / unknown--> CommittedIsr

Kafka: `PartitionState` in Partition.scala; KIP-497, KIP-841.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from ..vocabulary.errors import ErrorCode
from .effects import ProposeIsr

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


@dataclass(frozen=True, kw_only=True)  # without slots, since every append asks for the cached `maximal_isr`
class CommittedIsr:
    """No proposal is pending. `unresolved` has the members of all proposals at this partition epoch whose outcome is unknown:
    each may have been accepted. Only newer metadata resolves this, because every proposal names the partition epoch that it
    builds on, and the controller accepts none that builds on an older one."""

    isr: frozenset[int]
    partition_epoch: int
    unresolved: frozenset[int] = frozenset()
    eligible: frozenset[int] = frozenset()  # eligible leader replicas of the same partition epoch (KIP-966)

    @cached_property
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


class IsrProposals:
    """The ISR of one leadership, and when its leader may propose another one: at most one proposal is pending."""

    def __init__(self) -> None:
        self.isr: IsrState = CommittedIsr(isr=frozenset(), partition_epoch=-1)
        self._last_id = 0
        self._next_ms = 0
        self._doubt_since_ms = 0  # when the outcome of a proposal was last found to be unknown

    def begin(self, now_ms: int) -> None:
        """From now on, proposals may be made."""
        self._next_ms = now_ms

    def committed(self, isr: Iterable[int], *, partition_epoch: int, eligible: Iterable[int]) -> frozenset[int]:
        """Newer committed state, which resolves every earlier proposal. Return who left."""
        before = self.isr.isr
        self.isr = CommittedIsr(isr=frozenset(isr), partition_epoch=partition_epoch, eligible=frozenset(eligible))
        return before - self.isr.isr

    def may_propose(self, now_ms: int) -> bool:
        return isinstance(self.isr, CommittedIsr) and now_ms >= self._next_ms

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def propose(self, proposal: ProposeIsr, now_ms: int) -> None:
        assert isinstance(self.isr, CommittedIsr)
        self.isr = self.isr.propose(proposal, now_ms)

    def is_pending(self, proposal: ProposeIsr) -> bool:
        return not isinstance(self.isr, CommittedIsr) and self.isr.proposal == proposal

    def time_out(self, now_ms: int) -> None:
        """The answer to the pending proposal has been lost."""
        if not isinstance(self.isr, CommittedIsr) and now_ms - self.isr.proposed_at_ms >= PROPOSAL_TIMEOUT_MS:
            self.outcome_unknown(now_ms)

    def refused(self, error: int, now_ms: int) -> None:
        assert not isinstance(self.isr, CommittedIsr)
        if error not in _DEFINITE_REFUSALS:
            self.outcome_unknown(now_ms)
            return
        self.isr = self.isr.refused()
        self._next_ms = now_ms + PROPOSAL_RETRY_MS

    def outcome_unknown(self, now_ms: int) -> None:
        """The controller may have accepted the pending proposal or not, or may still accept it."""
        assert not isinstance(self.isr, CommittedIsr)
        if self.isr.proposed != self.isr.isr:  # an unchanged ISR leaves nothing unresolved
            self._doubt_since_ms = now_ms
        self.isr = self.isr.outcome_unknown()
        self._next_ms = now_ms + PROPOSAL_RETRY_MS

    def nothing_changed(self, now_ms: int) -> None:
        """The controller had nothing to write (it stands where we thought): the answer to proposing the ISR as it
        is."""
        self.outcome_unknown(now_ms)
        if now_ms - self._doubt_since_ms >= PROPOSAL_LIFETIME_MS:
            known = self.isr
            self.isr = CommittedIsr(isr=known.isr, partition_epoch=known.partition_epoch, eligible=known.eligible)

"""When the beginning of the journal is replaced by a snapshot."""

from ...quorum.config import SnapshotPolicy
from ...quorum.quorum import QuorumListener
from ...quorum.voters import BOOTSTRAP_INDEX, Membership
from .applying import Applier
from .ports import Journal, Ports, Snapshots


class Compaction:
    """Invariant: the journal is trimmed only behind a snapshot that is durable."""

    def __init__(
        self,
        journal: Journal,
        snapshots: Snapshots,
        membership: Membership,
        applier: Applier,
        listener: QuorumListener,
        policy: SnapshotPolicy,
        ports: Ports,
    ) -> None:
        self._journal = journal
        self._snapshots = snapshots
        self._membership = membership
        self._applier = applier
        self._listener = listener
        self._policy = policy
        self._wake = ports.wake
        self._after_entries = max(2, int(policy.entries * ports.rng.uniform(0.8, 1.2)))
        self._compacted_at = ports.clock()
        self._is_asked = False

    def request(self) -> None:
        """Compact now, regardless of the policy."""
        self._is_asked = True
        self._wake()

    def compact_if_due(self, now: float) -> None:
        journal = self._journal
        prev_index = self._snapshots.take_finished()
        if prev_index is not None and prev_index > journal.first_index:
            journal.trim_to(prev_index)
        fresh = self._applier.applied_index - journal.first_index - 1  # entries that a snapshot would replace
        old = now - self._compacted_at >= self._policy.interval_s and fresh >= self._policy.interval_entries
        if (self._is_asked or old or fresh >= self._after_entries) and self._snapshots.may_begin:
            self._is_asked = False
            if self._applier.applied_index >= 2 and fresh >= 1:
                self._begin(now)

    def _begin(self, now: float) -> None:
        self._compacted_at = now
        applied_index = self._applier.applied_index
        prev, last = self._journal.entries_from(applied_index - 1, 2)
        voters = self._membership.at(applied_index)
        stored = voters if voters.index != BOOTSTRAP_INDEX else None
        self._snapshots.begin(last, prev, self._listener.snapshot(), stored)

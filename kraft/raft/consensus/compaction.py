"""When the beginning of the journal is replaced by a snapshot."""

from ...quorum.config import SnapshotPolicy
from ...quorum.quorum import QuorumListener
from ...quorum.voters import BOOTSTRAP_INDEX, Membership
from .applying import Applier
from .ports import Journal, Ports, Snapshots

JOURNAL_TO_SNAPSHOT = 4  # a snapshot is compressed, and packing it takes the time of one that is not


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
        share = ports.rng.uniform(0.8, 1.2)
        self._after_entries = max(2, int(policy.entries * share))
        self._after_policy_bytes = policy.size_bytes * share
        self._compacted_at = ports.clock()
        self._is_asked = False
        self._packing_bytes = 0  # of the entries that the snapshot under way replaces

    def request(self) -> None:
        """Compact now, regardless of the policy."""
        self._is_asked = True
        self._wake()

    def compact_if_due(self, now: float) -> None:
        journal = self._journal
        prev_index = self._snapshots.take_finished()
        if prev_index is not None:
            self._applier.packed(self._packing_bytes)
            if prev_index > journal.first_index:
                journal.trim_to(prev_index)
        fresh = self._applier.applied_index - journal.first_index - 1  # entries that a snapshot would replace
        old = now - self._compacted_at >= self._policy.interval_s and fresh >= self._policy.interval_entries
        unpacked = self._applier.unpacked_bytes  # a large state is not packed for few new bytes
        large = unpacked >= self._after_policy_bytes and unpacked >= JOURNAL_TO_SNAPSHOT * self._snapshots.size_bytes
        many = fresh >= self._after_entries or large
        if (self._is_asked or old or many) and self._snapshots.may_begin:
            self._is_asked = False
            if self._applier.applied_index >= 2 and fresh >= 1:
                self._begin(now)

    def _begin(self, now: float) -> None:
        self._compacted_at = now
        self._packing_bytes = self._applier.unpacked_bytes
        applied_index = self._applier.applied_index
        prev, last = self._journal.entries_from(applied_index - 1, 2)
        voters = self._membership.at(applied_index)
        stored = voters if voters.index != BOOTSTRAP_INDEX else None
        self._snapshots.begin(last, prev, self._listener.snapshot(), stored)

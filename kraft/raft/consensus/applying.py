"""Passes committed entries to the listener, in order and once; snapshots come from the listener and replace its state."""

from barnabas.log.vocabulary.quorum import CommittedCommand

from ...quorum.config import ENTRY_OVERHEAD_BYTES, MAX_APPLIED_PER_STEP
from ...quorum.journal_format import NO_OP, REGULAR, Entry
from ...quorum.quorum import QuorumListener
from ...quorum.snapshot_format import Snapshot
from ...quorum.voters import MEMBERSHIP
from .commands import Commands
from .engine import PysyncobjEngine
from .ports import Journal, Ports, info

_OF_THE_CORE = (NO_OP, MEMBERSHIP)  # entries that are not passed to the listener
FIRST_INDEX = 1  # of the no-op that every journal begins with


class Applier:
    """Invariant: the listener's state is that of the log up to `applied_index` <= the commit index."""

    def __init__(
        self,
        node_id: int,
        engine: PysyncobjEngine,
        journal: Journal,
        commands: Commands,
        listener: QuorumListener,
        ports: Ports,
    ) -> None:
        self._node_id = node_id
        self._engine = engine
        self._journal = journal
        self._commands = commands
        self._listener = listener
        self._wake = ports.wake
        self._report = ports.report
        self.applied_index = FIRST_INDEX
        self.unpacked_bytes = 0  # of the applied entries that are in no snapshot, as they take memory; never negative

    def commit(self, index: int) -> None:
        """Everything up to `index` is committed; it never moves back. `apply_committed` of this or the next step applies it, and
        whoever calls this outside of a step sees to that step."""
        self._engine.advance_commit(index)

    def apply_committed(self) -> None:
        first, commit_index = self.applied_index + 1, self._engine.commit_index
        if commit_index < first:
            return
        entries = self._journal.entries_from(first, min(commit_index + 1 - first, MAX_APPLIED_PER_STEP))
        commands = [_committed(entry) for entry in entries if entry[0][:1] not in _OF_THE_CORE]
        if commands:
            self._listener.committed(commands)
        self.applied_index = entries[-1][1]
        for command, _, _ in entries:
            self.unpacked_bytes += len(command) + ENTRY_OVERHEAD_BYTES
        if self._commands.are_waiting:
            for _, index, term in entries:
                self._commands.settle(index, term)
        if self.applied_index < self._engine.commit_index:
            self._wake()

    def packed(self, size_bytes: int) -> None:
        """So many of the unpacked bytes are in a snapshot now."""
        self.unpacked_bytes = max(
            self.unpacked_bytes - size_bytes, 0
        )  # another snapshot may have been restored meanwhile

    def restore(self, snapshot: Snapshot) -> None:
        """Raises what the listener raises."""
        size_bytes = len(snapshot.data)
        self._report(info(f"snapshot restored node={self._node_id} index={snapshot.last_index} bytes={size_bytes}"))
        self._listener.restore(snapshot.last_index, snapshot.chunks())
        self.applied_index = snapshot.last_index
        self.unpacked_bytes = 0
        self._engine.advance_commit(snapshot.last_index)
        self._commands.jumped_to(snapshot.last_index)


def _committed(entry: Entry) -> CommittedCommand:
    command, index, term = entry
    if command[:1] != REGULAR:
        raise ValueError(f"entry {index} has kind {command[:1]!r}, which this version does not know")
    return CommittedCommand(index=index, term=term, command=command[1:])

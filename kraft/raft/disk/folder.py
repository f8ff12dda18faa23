"""The folder of one voter: journal, term and vote, and snapshot. They are opened together, and only if they fit together."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from ...quorum.quorum import FatalHandler
from ...quorum.snapshot_format import Snapshot
from .fail_stop import FailStop
from .hard_state import DurableHardState
from .journal import DurableJournal
from .meta import MetaStore
from .snapshot import SnapshotStore
from .storage import DamagedQuorumError, JournalStorage

JOURNAL_NAME = "quorum.journal"
SNAPSHOT_NAME = "quorum.snapshot"


class QuorumFolder:
    """`snapshot` is the one that was found; the journal continues it."""

    def __init__(
        self,
        *,
        storage: JournalStorage,
        directory: str,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        clock: Callable[[], float],
        wake: Callable[[], None],
        fatal: FatalHandler,
    ) -> None:
        """Raises DamagedQuorumError, StorageError."""
        storage.make_dirs(directory)
        path = f"{directory}/{JOURNAL_NAME}"
        self._stop = stop = FailStop(fatal)
        self.hard_state = DurableHardState(MetaStore(storage, f"{path}.meta"), stop)
        self._check_completeness(path, storage.exists(path))
        if not self.hard_state.exists:
            # The blank flag is on disk before the first byte of the journal: an empty one is never mistaken for ours.
            self.hard_state.begin()
        self.journal = DurableJournal(storage=storage, path=path, loop=loop, executor=executor, stop=stop)
        self.snapshots = SnapshotStore(
            storage=storage,
            path=f"{directory}/{SNAPSHOT_NAME}",
            loop=loop,
            executor=executor,
            clock=clock,
            wake=wake,
        )
        self.snapshot = self._load_snapshot(directory)

    def _check_completeness(self, path: str, journal_exists: bool) -> None:
        if journal_exists and not self.hard_state.exists:
            raise DamagedQuorumError(path, "a journal without term and vote (a vote may be forgotten)")
        if not journal_exists and self.hard_state.exists and not self.hard_state.blank:
            raise DamagedQuorumError(path, "the journal is missing although this voter has taken part")

    def _load_snapshot(self, directory: str) -> Snapshot | None:
        snapshot, journal = self.snapshots.load(), self.journal
        if snapshot is not None:
            journal.reconcile(snapshot.last_index, snapshot.last[2], snapshot.prev, snapshot.last)
        elif journal.first_index > 1:
            raise DamagedQuorumError(directory, "the snapshot is missing that the journal continues")
        return snapshot

    def close(self) -> None:
        """With everything on disk. Raises StorageError."""
        if not self._stop.halted:
            self._stop.halt()
            self.journal.seal()
            self.hard_state.close()
            self.journal.close()

"""The newest snapshot of the state machine on disk, packed without fork in the executor. Its bytes: `quorum.snapshot_format`.

The file replaces its predecessor in one durable rename, and only then the journal is trimmed. A damaged snapshot is never
skipped: going on with an empty state machine (as stock pysyncobj does) would look like a healthy node that has forgotten
everything.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from ...quorum.journal_format import Entry
from ...quorum.snapshot_format import DamagedSnapshot, Snapshot, pack_snapshot, unpack_snapshot
from ...quorum.voters import VoterSet
from .storage import DamagedQuorumError, JournalStorage

_log = logging.getLogger("barnabas.quorum")

RETRY_AFTER_FAILURE_S = 30.0  # a full disk is not helped by packing the state again on every tick


class SnapshotStore:
    """The newest snapshot on disk, and at most one that is being packed."""

    def __init__(
        self,
        *,
        storage: JournalStorage,
        path: str,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._path = path
        self._loop = loop
        self._executor = executor
        self._clock = clock
        self._wake = wake
        self._packing = False
        self._finished_prev_index: int | None = None
        self._not_before = 0.0
        self._writing = threading.Lock()
        self._installed_index = 0  # a pack that is behind this must not replace what came from the leader
        self.size_bytes = 0  # of the newest snapshot; 0 if there is none

    def load(self) -> Snapshot | None:
        """Return the newest snapshot, checked. Raises DamagedQuorumError."""
        if not self._storage.exists(self._path):
            return None
        try:
            snapshot = unpack_snapshot(self._storage.read_bytes(self._path))
        except DamagedSnapshot as damage:
            raise DamagedQuorumError(self._path, f"the snapshot is damaged: {damage}") from damage
        self.size_bytes = len(snapshot.data)
        return snapshot

    def read(self) -> bytes | None:
        return self._storage.read_bytes(self._path) if self._storage.exists(self._path) else None

    def install(self, snapshot: Snapshot) -> None:
        """Keep a snapshot that came from the leader; durable on return."""
        with self._writing:
            self._installed_index = snapshot.last_index
            self._storage.write_atomically(self._path, snapshot.data)
            self.size_bytes = len(snapshot.data)

    @property
    def may_begin(self) -> bool:
        return not self._packing and self._finished_prev_index is None and self._clock() >= self._not_before

    def begin(
        self, last: Entry, prev: Entry, pack: Callable[[], Iterable[bytes]], voters: VoterSet | None = None
    ) -> None:
        """Pack and store in the executor what `pack` yields: a view of the state after `last`."""
        self._packing = True
        work = self._loop.run_in_executor(self._executor, self._write, last, prev, pack, voters)
        work.add_done_callback(lambda done: self._written(done, prev[1]))

    def take_finished(self) -> int | None:
        """Once after each success: the index up to which (exclusive) the journal is no longer needed."""
        finished, self._finished_prev_index = self._finished_prev_index, None
        return finished

    def _write(self, last: Entry, prev: Entry, pack: Callable[[], Iterable[bytes]], voters: VoterSet | None) -> None:
        data = pack_snapshot(last, prev, pack(), voters)
        with self._writing:
            if last[1] > self._installed_index:
                self._storage.write_atomically(self._path, data)
                self.size_bytes = len(data)

    def _written(self, done: "asyncio.Future[None]", prev_index: int) -> None:
        self._packing = False
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._finished_prev_index = prev_index
        else:
            # The old snapshot and the whole journal are still there, so nothing is lost: try again later.
            self._not_before = self._clock() + RETRY_AFTER_FAILURE_S
            _log.error("snapshot failed path=%s retry_s=%d", self._path, RETRY_AFTER_FAILURE_S, exc_info=error)
        self._wake()

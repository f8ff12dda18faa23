"""The journal of the quorum on disk, behind pysyncobj's Journal interface (hence the camelCase methods).

Entries live in memory, too; the file is append-only and is rewritten only to drop a prefix, into a new file that
replaces the old one in one rename. Nothing is acknowledged before `durable_index` has passed it. Flushing runs in an
executor and takes along whatever was appended meanwhile (group commit). After a write or flush that failed nothing is
tried again: the kernel has thrown the dirty pages away, and a second flush would lie that all is well ("fsyncgate"):
fail-stop.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import overload

from barnabas.log.vocabulary.errors import StorageError

from ...quorum.journal_format import DamagedJournal, Entry, RecordKind, encode_record, replay
from .meta import MetaStore
from .storage import DamagedQuorumError, FatalHandler, JournalFile, JournalStorage

_log = logging.getLogger("barnabas.quorum")


class DurableJournal:
    """Invariant: `durable_index` <= the last index, and every entry up to it is on disk as it is in memory."""

    def __init__(
        self,
        *,
        storage: JournalStorage,
        path: str,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        fatal: FatalHandler,
    ) -> None:
        self._storage = storage
        self._path = path
        self._directory = path.rpartition("/")[0]
        self._loop = loop
        self._executor = executor
        self._fatal = fatal
        self._unwritten: list[bytes] = []
        self._flushing: JournalFile | None = None
        self._retired: list[JournalFile] = []
        self._safe_below: int | None = None  # entries from here on were replaced while a flush was running
        self._halted = False
        self._marked_size_bytes = 0
        self.on_durable: Callable[[], None] | None = None
        self._meta = MetaStore(storage, f"{path}.meta")
        self._commit_index = self._meta.current.commit_index
        self._open()

    # Opening

    def _open(self) -> None:
        existed = self._storage.exists(self._path)
        self._check_completeness(existed)
        if not self._meta.found:
            # The blank flag is on disk before the first byte of the journal: an empty one is never mistaken for ours.
            self._store_meta(blank=True)
        self._file = self._storage.open_append(self._path)
        # Always: a process that was killed behind the rename of `_rewrite` left a name that a power loss still takes back.
        self._storage.sync_dir(self._directory)
        self._entries = self._replay()
        self._file.flush()
        self.durable_index = self.last_index
        self._durable_size_bytes = self._file.size_bytes
        self._mark()

    def _check_completeness(self, journal_exists: bool) -> None:
        if journal_exists and not self._meta.found:
            raise DamagedQuorumError(self._path, "a journal without term and vote (a vote may be forgotten)")
        if not journal_exists and self._meta.found and not self._meta.current.blank:
            raise DamagedQuorumError(self._path, "the journal is missing although this voter has taken part")

    def _replay(self) -> list[Entry]:
        data = self._file.read_at(0, self._file.size_bytes)
        try:
            found = replay(data)
        except DamagedJournal as damage:
            raise DamagedQuorumError(self._path, str(damage)) from damage
        if found.valid_size_bytes != len(data):
            _log.warning("torn tail cut path=%s bytes=%d", self._path, len(data) - found.valid_size_bytes)
            self._file.truncate(found.valid_size_bytes)
        return found.entries

    def reconcile(self, last_index: int, last_term: int, prev: Entry, last: Entry) -> None:
        """Fit the journal to the snapshot that was found beside it, without ever losing an entry behind the snapshot.

        A crash may fall between the snapshot's rename and the trimming of the journal: then the journal still begins
        before the snapshot, and only its prefix goes. It is replaced only when it does not reach the snapshot at all.
        """
        first = self.first_index
        if first <= last_index - 1 and last_index <= self.last_index and self.term_at(last_index) == last_term:
            if first < last_index - 1:
                self.deleteEntriesTo(last_index - 1 - first)
            return
        if first > last_index - 1:
            raise DamagedQuorumError(
                self._path, f"the journal begins at {first} but the snapshot beside it ends at {last_index}"
            )
        self.replace([prev, last])

    # Reading

    @property
    def first_index(self) -> int:
        return self._entries[0][1] if self._entries else 1

    @property
    def last_index(self) -> int:
        return self._entries[-1][1] if self._entries else 0

    @property
    def last_term(self) -> int:
        return self._entries[-1][2]

    def term_at(self, index: int) -> int:
        return self._entries[index - self.first_index][2]

    def entries_from(self, index: int, limit: int) -> list[Entry]:
        start = index - self.first_index
        return self._entries[start : start + limit]

    @property
    def blank(self) -> bool:
        return self._meta.current.blank

    def clear_blank(self) -> None:
        """Durable on return: from now on this voter's silence means nothing was forgotten."""
        self._store_meta(blank=False)

    # pysyncobj's Journal interface

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._entries.append((command, idx, term))
        self._unwritten.append(encode_record(RecordKind.ENTRY, idx, term, self._durable_size_bytes, command))

    def clear(self) -> None:
        """Never: clearing before re-adding loses acknowledged entries at a crash (research: root cause of the loss)."""
        raise AssertionError("the journal is replaced as a whole, never cleared")

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        if entryFrom >= len(self._entries):
            return
        index = self._entries[entryFrom][1]
        del self._entries[entryFrom:]
        self._unwritten.append(encode_record(RecordKind.TRUNCATE, index, 0, self._durable_size_bytes))
        self.durable_index = min(self.durable_index, index - 1)
        if self._flushing is not None:
            self._safe_below = index if self._safe_below is None else min(self._safe_below, index)

    def deleteEntriesTo(self, entryTo: int) -> None:
        self.replace(self._entries[entryTo:])

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        self._commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        """Never beyond the end of the journal: new entries there would count as committed without a quorum."""
        return max(1, min(self._commit_index, self.last_index))

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:
        self._guarded(lambda: self._store_meta(raft_term=term, voted_for=votedForNodeId, keep_vote=False))

    def getCurrentTerm(self) -> int:
        return self._meta.current.raft_term

    def getVotedForNodeId(self) -> int | None:
        return self._meta.current.voted_for

    def onOneSecondTimer(self) -> None:
        """Mark what has been flushed, so that later damage to it cannot pass for a torn tail."""
        if not self._unwritten and self._durable_size_bytes > self._marked_size_bytes:
            self._mark()

    def _destroy(self) -> None:
        self.close()

    # Durability

    def sync_soon(self) -> None:
        """Write what is new and start a flush unless one runs; `on_durable` is called when it is done."""
        if self._halted or not self._write() or self._flushing is not None:
            return
        self._start_flush()

    def close(self) -> None:
        if self._halted:
            return
        self._halted = True
        self._write_unguarded()
        self._file.flush()
        self._durable_size_bytes = self._file.size_bytes
        self._mark()
        if self._commit_index != self._meta.current.commit_index:
            self._store_meta()
        if self._flushing is None:
            self._file.close()

    def halt(self) -> None:
        """Write and flush nothing more (fail-stop)."""
        self._halted = True

    def replace(self, entries: list[Entry]) -> None:
        """Replace the whole journal by `entries` in one rename: a crash leaves either the old one or the new one."""
        self._guarded(lambda: self._rewrite(entries))

    def _rewrite(self, entries: list[Entry]) -> None:
        new_path = f"{self._path}.new"
        self._storage.remove(new_path)
        new = self._storage.open_append(new_path)
        new.append(b"".join(encode_record(RecordKind.ENTRY, index, term, 0, data) for data, index, term in entries))
        new.flush()
        self._storage.rename(new_path, self._path)
        self._storage.sync_dir(self._directory)
        self._retire(self._file)
        self._file = new
        self._entries = list(entries)
        self._unwritten = []
        self.durable_index = self.last_index
        self._durable_size_bytes = new.size_bytes
        self._mark()

    def _retire(self, file: JournalFile) -> None:
        if self._flushing is file:
            self._retired.append(file)  # a flush in the executor still holds it
        else:
            file.close()

    def _mark(self) -> None:
        if self._durable_size_bytes:
            self._file.append(encode_record(RecordKind.MARK, 0, 0, self._durable_size_bytes))
        self._marked_size_bytes = self._file.size_bytes

    def _write(self) -> bool:
        """Return whether anything waits for a flush."""
        self._guarded(self._write_unguarded)
        return not self._halted and self.durable_index < self.last_index

    def _write_unguarded(self) -> None:
        if self._unwritten:
            batch, self._unwritten = b"".join(self._unwritten), []
            self._file.append(batch)

    def _start_flush(self) -> None:
        file, last_index, size_bytes = self._file, self.last_index, self._file.size_bytes
        self._flushing = file
        self._safe_below = None
        flush = self._loop.run_in_executor(self._executor, file.flush)
        flush.add_done_callback(lambda done: self._flushed(done, file, last_index, size_bytes))

    def _flushed(self, done: "asyncio.Future[None]", file: JournalFile, last_index: int, size_bytes: int) -> None:
        self._flushing = None
        for retired in self._retired:
            retired.close()
        self._retired = []
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._fail(error)
        if self._halted:
            if file is self._file:
                file.close()  # `close` had to leave it to us
            return
        if file is self._file:
            durable = last_index if self._safe_below is None else min(last_index, self._safe_below - 1)
            self.durable_index = max(self.durable_index, durable)
            self._durable_size_bytes = max(self._durable_size_bytes, size_bytes)
        if self.on_durable is not None:
            self.on_durable()
        self.sync_soon()

    def _store_meta(
        self,
        *,
        raft_term: int | None = None,
        voted_for: int | None = None,
        keep_vote: bool = True,
        blank: bool | None = None,
    ) -> None:
        now = self._meta.current
        self._meta.store(
            raft_term=now.raft_term if raft_term is None else raft_term,
            voted_for=now.voted_for if keep_vote else voted_for,
            commit_index=self._commit_index,
            blank=now.blank if blank is None else blank,
        )

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a write; what fails is fatal, and the caller must not go on as if it had happened."""
        try:
            work()
        except StorageError as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        if not self._halted:
            self._halted = True
            self._fatal(f"the quorum's journal cannot be written: {error}")

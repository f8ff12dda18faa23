"""The file of the quorum's journal: what is appended, when it is on the disk, and how the whole file is replaced.

Flushing runs in an executor and takes along whatever was appended meanwhile (group commit). The records: `quorum.journal_format`.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from ...quorum.journal_format import Entry, RecordKind, encode_record
from .fail_stop import FailStop
from .storage import JournalFile, JournalStorage

_log = logging.getLogger("barnabas.quorum")


class JournalWriter:
    """Invariant: `durable_index` <= `_last_index`, and every entry up to it is on disk."""

    def __init__(
        self,
        *,
        storage: JournalStorage,
        path: str,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        stop: FailStop,
        on_durable: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._path = path
        self._directory = path.rpartition("/")[0]
        self._loop = loop
        self._executor = executor
        self._stop = stop
        self._on_durable = on_durable
        self._last_index = 0  # of the entries in the file and in `_unwritten`
        self._unwritten: list[bytes] = []
        self._flushing: JournalFile | None = None
        self._retired: list[JournalFile] = []
        self._safe_below: int | None = None  # entries from here on were replaced while a flush was running
        self._durable_size_bytes = 0
        self._marked_size_bytes = 0
        self.durable_index = 0
        self._file = storage.open_append(path)
        # Always: a process that was killed behind the rename of `replace` left a name that a power loss still takes back.
        storage.sync_dir(self._directory)

    # At the start

    def read(self) -> bytes:
        return self._file.read_at(0, self._file.size_bytes)

    def begin(self, valid_size_bytes: int, last_index: int) -> None:
        """Go on behind what was read; a torn tail is cut."""
        if valid_size_bytes != self._file.size_bytes:
            torn_bytes = self._file.size_bytes - valid_size_bytes
            _log.warning("torn tail cut path=%s bytes=%d", self._path, torn_bytes)
            self._file.truncate(valid_size_bytes)
        self._file.flush()
        self._is_whole(last_index)

    def _is_whole(self, last_index: int) -> None:
        """The file holds all entries, and is on the disk."""
        self._last_index = self.durable_index = last_index
        self._durable_size_bytes = self._file.size_bytes
        self._mark()

    # Records

    def add(self, entry: Entry) -> None:
        command, index, term = entry
        self._last_index = index
        self._unwritten.append(encode_record(RecordKind.ENTRY, index, term, self._durable_size_bytes, command))

    def truncate_from(self, index: int) -> None:
        """Void the entries from `index` on."""
        self._last_index = index - 1
        self._unwritten.append(encode_record(RecordKind.TRUNCATE, index, 0, self._durable_size_bytes))
        self.durable_index = min(self.durable_index, index - 1)
        if self._flushing is not None:
            self._safe_below = index if self._safe_below is None else min(self._safe_below, index)

    def mark_durable(self) -> None:
        """Mark the flushed entries, so that later damage to them is not taken for a torn tail."""
        if not self._unwritten and self._durable_size_bytes > self._marked_size_bytes:
            self._mark()

    def _mark(self) -> None:
        if self._durable_size_bytes:
            self._file.append(encode_record(RecordKind.MARK, 0, 0, self._durable_size_bytes))
        self._marked_size_bytes = self._file.size_bytes

    def replace(self, entries: list[Entry]) -> None:
        """Replace the whole file in one rename: a crash leaves either the old one or the new one. Raises StorageError."""
        self._stop.guarded(lambda: self._rewrite(entries))

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
        self._unwritten = []
        self._is_whole(entries[-1][1])

    def _retire(self, file: JournalFile) -> None:
        if self._flushing is file:
            self._retired.append(file)  # a flush in the executor still holds it
        else:
            file.close()

    # Durability

    def sync_soon(self) -> None:
        """Write what is new and start a flush unless one runs; `on_durable` is called when it is done."""
        if self._stop.halted:
            return
        if self._unwritten:
            self._stop.guarded(self._write)
        if self.durable_index < self._last_index and self._flushing is None:
            self._start_flush()

    def seal(self) -> None:
        """Write and flush all at once, and mark it: the last thing before `close`. Raises StorageError."""
        self._write()
        self._file.flush()
        self._durable_size_bytes = self._file.size_bytes
        self._mark()

    def close(self) -> None:
        if self._flushing is None:
            self._file.close()

    def _write(self) -> None:
        if self._unwritten:
            batch, self._unwritten = b"".join(self._unwritten), []
            self._file.append(batch)

    def _start_flush(self) -> None:
        file, last_index, size_bytes = self._file, self._last_index, self._file.size_bytes
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
            self._stop.fail(error)
        if self._stop.halted:
            if file is self._file:
                file.close()  # `close` had to leave it to us
            return
        if file is self._file:
            durable = last_index if self._safe_below is None else min(last_index, self._safe_below - 1)
            self.durable_index = max(self.durable_index, durable)
            self._durable_size_bytes = max(self._durable_size_bytes, size_bytes)
        self._on_durable()
        self.sync_soon()

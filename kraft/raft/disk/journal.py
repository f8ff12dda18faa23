"""The journal of the quorum: its entries, in memory and on disk.

The file is append-only and is rewritten only to drop a prefix, into a new file that replaces the old one in one rename.
`journal_writer` has the file. Nothing is acknowledged before `durable_index` has passed it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from ...quorum.journal_format import DamagedJournal, Entry, replay
from .fail_stop import FailStop
from .journal_writer import JournalWriter
from .storage import DamagedQuorumError, JournalStorage


class DurableJournal:
    """Invariant: `durable_index` <= the last index, and every entry up to it is on disk as it is in memory."""

    def __init__(
        self,
        *,
        storage: JournalStorage,
        path: str,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        stop: FailStop,
    ) -> None:
        self._path = path
        self._stop = stop
        self._writer = JournalWriter(
            storage=storage, path=path, loop=loop, executor=executor, stop=stop, on_durable=self._tell_durable
        )
        self.on_durable: Callable[[], None] | None = None
        self._hold([])
        self._open()

    def _hold(self, entries: list[Entry]) -> None:
        self._entries = entries
        self.first_index = entries[0][1] if entries else 1
        self.last_index = entries[-1][1] if entries else 0

    def _open(self) -> None:
        try:
            found = replay(self._writer.read())
        except DamagedJournal as damage:
            raise DamagedQuorumError(self._path, str(damage)) from damage
        self._hold(found.entries)
        self._writer.begin(found.valid_size_bytes, self.last_index)

    def reconcile(self, last_index: int, last_term: int, prev: Entry, last: Entry) -> None:
        """Fit the journal to the snapshot that was found beside it, without ever losing an entry behind the snapshot.

        A crash may fall between the snapshot's rename and the trimming of the journal: then the journal still begins
        before the snapshot, and only its prefix goes. It is replaced only when it does not reach the snapshot at all.
        """
        first = self.first_index
        if first <= last_index - 1 and last_index <= self.last_index and self.term_at(last_index) == last_term:
            if first < last_index - 1:
                self.trim_to(last_index - 1)
            return
        if first > last_index - 1:
            raise DamagedQuorumError(
                self._path, f"the journal begins at {first} but the snapshot beside it ends at {last_index}"
            )
        self.replace([prev, last])

    # Reading

    @property
    def last_term(self) -> int:
        return self._entries[-1][2]

    @property
    def durable_index(self) -> int:
        return self._writer.durable_index

    def term_at(self, index: int) -> int:
        return self._entries[index - self.first_index][2]

    def entries_from(self, index: int, limit: int) -> list[Entry]:
        start = index - self.first_index
        return self._entries[start : start + limit]

    def at_position(self, position: int) -> Entry:
        """As in a list: 0 is the first entry that is left, -1 the last one."""
        return self._entries[position]

    def __len__(self) -> int:
        return len(self._entries)

    # Changing

    def add(self, command: bytes, index: int, term: int) -> None:
        entry = (command, index, term)
        if not self._entries:
            self.first_index = index
        self._entries.append(entry)
        self.last_index = index
        self._writer.add(entry)

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on; without such entries nothing happens."""
        if index <= self.last_index:
            del self._entries[index - self.first_index :]
            self._hold(self._entries)
            self._writer.truncate_from(index)

    def trim_to(self, index: int) -> None:
        """Remove the entries before `index`. Durable on return. Raises StorageError."""
        self.replace(self._entries[index - self.first_index :])

    def replace(self, entries: list[Entry]) -> None:
        """Durable on return. Raises StorageError."""
        assert entries, "a journal begins with an entry for ever"
        self._writer.replace(entries)
        self._hold(list(entries))

    # Durability

    def sync_soon(self) -> None:
        """Write what is new; `on_durable` is called when it has been flushed."""
        self._writer.sync_soon()

    def mark_durable(self) -> None:
        """Called periodically: mark the flushed entries, so that later damage to them is not taken for a torn tail."""
        self._writer.mark_durable()

    def halt(self) -> None:
        """Write and flush nothing more (fail-stop)."""
        self._stop.halt()

    def seal(self) -> None:
        """Write and flush all at once: the last thing before `close`. Raises StorageError."""
        self._writer.seal()

    def close(self) -> None:
        self._writer.close()

    def _tell_durable(self) -> None:
        if self.on_durable is not None:
            self.on_durable()

"""What the two indexes of a segment share: a file of fixed-size entries whose columns rise.

The index of the active segment is kept in memory and goes to its file by `save`; older ones are mapped and read only.
An index is a hint that can be rebuilt from the log, so it is never flushed with each append, and a crash may leave it incomplete
or torn. `load` checks its ends only, so that opening costs the same for any size; the segment compares an entry with the batch
that it points to before it trusts it.
"""

import struct
from bisect import bisect_right
from itertools import pairwise

from ..disk.files import AppendFile, Files
from ..format.record_batch import Buffer

_FILE_IS_STALE = -1


class SparseIndex:
    """Entries of two integers, packed as on disk. Both columns rise strictly."""

    def __init__(self, files: Files, path: str, entry: struct.Struct, *, max_size_bytes: int) -> None:
        self._files = files
        self._entry = entry
        self._max_size_bytes = max_size_bytes
        self._entries: Buffer = bytearray()  # a bytearray while it may grow, else the mapped file
        self._saved_bytes = 0
        self._unflushed = False
        self.path = path

    def __len__(self) -> int:
        return len(self._entries) // self._entry.size

    @property
    def is_full(self) -> bool:
        return len(self._entries) + self._entry.size > self._max_size_bytes

    def entry_at(self, number: int) -> tuple[int, int]:
        first, second = self._entry.unpack_from(self._entries, number * self._entry.size)
        return first, second

    @property
    def last_entry(self) -> tuple[int, int] | None:
        return self.entry_at(len(self) - 1) if self._entries else None

    def load(self, *, writable: bool) -> bool:
        """Read or map the file; False when it is missing or plainly not sound, and then the index is empty."""
        self._entries = bytearray()
        if not self._files.exists(self.path):
            return False
        self._entries = (
            bytearray(self._files.read_bytes(self.path)) if writable else self._files.map_readonly(self.path)
        )
        if len(self._entries) % self._entry.size == 0 and self._ends_rise():
            self._saved_bytes = len(self._entries)
            return True
        self.clear()
        return False

    def packed(self) -> bytes:
        """A copy of all entries, as on disk."""
        return bytes(self._entries)

    def save(self) -> None:
        """Write what the file does not have yet. Only a growing index has such entries."""
        if isinstance(self._entries, bytearray) and self._saved_bytes != len(self._entries):
            file = self._files.open_append(self.path)
            kept = max(self._saved_bytes, 0)
            file.truncate(kept)
            file.append(self._entries[kept:])
            self._unflushed = True
            file.close()
            self._saved_bytes = len(self._entries)
        elif not self._entries and not self._files.exists(self.path):
            self._files.open_append(self.path).close()

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries, durably: entries that came back would point into bytes that were replaced."""
        keep = count * self._entry.size
        self._entries = bytearray(self._entries[:keep])
        if self._saved_bytes > keep:
            file = self._files.open_append(self.path)
            file.truncate(keep)
            file.flush()
            file.close()
            self._saved_bytes = keep

    def clear(self) -> None:
        """Forget all entries; the file is emptied by the next `save`."""
        self._entries = bytearray()
        self._saved_bytes = _FILE_IS_STALE

    def forget_file(self) -> None:
        """Keep the entries in memory alone, until a `save`."""
        self._files.remove(self.path)
        self._saved_bytes, self._unflushed = _FILE_IS_STALE, False

    def flush(self) -> None:
        """Make the file durable."""
        file = self.file_to_flush()
        if file is not None:
            file.flush()
            file.close()

    def file_to_flush(self) -> AppendFile | None:
        """None if everything that was saved is durable. A flush of an inode covers all of its descriptors."""
        if not self._unflushed:
            return None
        file = self._files.open_append(self.path)
        self._unflushed = False
        return file

    def _append(self, first: int, second: int) -> None:
        assert isinstance(self._entries, bytearray), "a mapped index does not grow"
        self._entries += self._entry.pack(first, second)

    def _floor(self, target: int, *, column: int) -> int:
        """The number of entries whose `column` is at most `target`."""
        unpack, entries, size = self._entry.unpack_from, self._entries, self._entry.size
        found: int = bisect_right(range(len(self)), target, key=lambda number: unpack(entries, number * size)[column])
        return found

    def _ends_rise(self) -> bool:
        """A file that was preallocated or torn by a crash has zeros at its end, so it does not rise there."""
        numbers = sorted({0, len(self) - 2, len(self) - 1} - {-1, -2}) if len(self) else []
        entries = [self.entry_at(number) for number in numbers]
        return all(before[0] < entry[0] and before[1] < entry[1] for before, entry in pairwise(entries))

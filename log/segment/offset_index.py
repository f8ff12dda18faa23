"""Offset to position within a segment, sparse: one entry for about `index.interval.bytes` of the log.

An entry (last offset of a batch - base offset of the segment, position where that batch begins) in Kafka's format. The
batch that holds an offset is found by a binary search here and one short scan of the log.
"""

import struct

from ..disk.files import Files
from .sparse_index import SparseIndex

ENTRY = struct.Struct(">II")
MAX_RELATIVE_OFFSET = 2**31 - 1  # Kafka reads the field as a signed integer.
NO_ENTRY = -1


class OffsetIndex(SparseIndex):
    def __init__(self, files: Files, path: str, *, base_offset: int, max_size_bytes: int) -> None:
        super().__init__(files, path, ENTRY, max_size_bytes=max_size_bytes)
        self._base_offset = base_offset

    def append(self, last_offset: int, position: int) -> None:
        """Offsets and positions must rise; one that does not is left out, it is only a hint."""
        relative = last_offset - self._base_offset
        last = self.last_entry
        if last is None or (relative > last[0] and position > last[1]):
            self._append(relative, position)

    def position_for(self, offset: int) -> int:
        """The position of a batch at or before the one that holds `offset`; 0 when no entry is so early."""
        return self.place_for(offset)[1]

    def place_for(self, offset: int) -> tuple[int, int]:
        """The (last offset, position) of a batch at or before the one that holds `offset`; (NO_ENTRY, 0) when no entry is
        so early."""
        count = self._floor(offset - self._base_offset, column=0)
        if not count:
            return NO_ENTRY, 0
        relative, position = self.entry_at(count - 1)
        return self._base_offset + relative, position

    def offset_before(self, position: int) -> tuple[int, int]:
        """The (last offset, position) of the last indexed batch that begins at or before `position`; or (base offset,
        0)."""
        count = self._floor(position, column=1)
        if not count:
            return self._base_offset, 0
        relative, found = self.entry_at(count - 1)
        return self._base_offset + relative, found

    def truncate_to(self, end_offset: int) -> None:
        """Forget entries of batches that reach `end_offset` or beyond."""
        self.truncate(self._floor(end_offset - 1 - self._base_offset, column=0))

    def fits(self, size_bytes: int) -> bool:
        """False when an entry points outside of a segment of this size."""
        last = self.last_entry
        return last is None or last[1] < size_bytes

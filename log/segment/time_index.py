"""Timestamp to offset within a segment, sparse.

An entry (timestamp, offset - base offset of the segment) in Kafka's format says: up to this offset no record is younger
than this timestamp. When a segment is closed its last entry holds its largest timestamp, by which retention goes.
"""

import struct

from ..disk.files import Files
from ..format.record_batch import NO_TIMESTAMP
from .sparse_index import SparseIndex

ENTRY = struct.Struct(">qI")


class TimeIndex(SparseIndex):
    def __init__(self, files: Files, path: str, *, base_offset: int, max_size_bytes: int) -> None:
        super().__init__(files, path, ENTRY, max_size_bytes=max_size_bytes)
        self._base_offset = base_offset

    def append(self, timestamp_ms: int, offset: int) -> None:
        """Note the largest timestamp so far and its offset; nothing is noted while it has not grown."""
        relative = offset - self._base_offset
        last = self.last_entry
        if last is None:
            if timestamp_ms > NO_TIMESTAMP:
                self._append(timestamp_ms, relative)
        elif timestamp_ms > last[0] and relative > last[1]:
            self._append(timestamp_ms, relative)

    def offset_for(self, timestamp_ms: int) -> int:
        """No record before the returned offset is as young as `timestamp_ms`, or younger."""
        return self.entry_before(timestamp_ms)[1]

    def entry_before(self, timestamp_ms: int) -> tuple[int, int]:
        """The last (timestamp, offset) that is older than `timestamp_ms`; (NO_TIMESTAMP, base offset) when none is."""
        count = self._floor(timestamp_ms - 1, column=0)
        if not count:
            return NO_TIMESTAMP, self._base_offset
        found_ms, relative = self.entry_at(count - 1)
        return found_ms, self._base_offset + relative

    def sample(self, from_offset: int, *, limit: int) -> list[tuple[int, int]]:
        """At most `limit` (offset, timestamp) from this offset on, evenly spread."""
        first = self._floor(from_offset - 1 - self._base_offset, column=1)
        step = max(1, -(-(len(self) - first) // limit))
        entries = (self.entry_at(number) for number in range(first, len(self), step))
        return [(self._base_offset + relative, timestamp_ms) for timestamp_ms, relative in entries]

    def truncate_to(self, end_offset: int) -> None:
        """Forget entries of offsets at `end_offset` or beyond."""
        self.truncate(self._floor(end_offset - 1 - self._base_offset, column=1))

    @property
    def largest(self) -> tuple[int, int]:
        """The largest timestamp that is indexed and its offset; (NO_TIMESTAMP, base offset) when there is none."""
        last = self.last_entry
        if last is None:
            return NO_TIMESTAMP, self._base_offset
        return last[0], self._base_offset + last[1]

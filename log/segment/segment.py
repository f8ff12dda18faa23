"""One segment of a log: its records in a file, their indexes, and the index of aborted transactions.

The active segment grows, with its indexes in memory; a sealed one opens its file and maps its indexes when it is read, and
`release` closes them. Entries that an index lacks are found in the log, so a lost or damaged index is built again: an entry is
trusted if the batch that it points to is the one that it names.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ..disk.files import AppendFile, Files
from ..format.record_batch import NO_TIMESTAMP, BatchHeader, Buffer
from .append_check import PlacedBatch
from .damage import DamagedRange, SegmentView, range_of
from .file_records import BatchPlace, FileRecords
from .offset_index import MAX_RELATIVE_OFFSET, NO_ENTRY
from .retention import SegmentAge
from .segment_indexes import SegmentIndexes
from .transaction_index import TransactionIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
DELETED_SUFFIX = ".deleted"
DAMAGED_SUFFIX = ".damaged"
_LOOK_UP_CHUNK_BYTES = 16 * 1024  # a batch or two: the index has led near to it


class FileSlice(Struct, frozen=True, kw_only=True):
    """Whole batches in a file. The file stays open as long as the slice is referenced, even if the file was removed."""

    file: AppendFile
    position: int
    size_bytes: int

    def read(self) -> bytes:
        return self.file.read_at(self.position, self.size_bytes)

    def fileno(self) -> int | None:
        return self.file.fileno()


class LogRead(Struct, frozen=True, kw_only=True):
    """Whole batches of one segment. The first one holds the offset that was asked for, or is the next one behind it."""

    slice: FileSlice | bytes

    @property
    def size_bytes(self) -> int:
        return len(self.slice) if isinstance(self.slice, bytes) else self.slice.size_bytes

    def read(self) -> bytes:
        return self.slice if isinstance(self.slice, bytes) else self.slice.read()


class LogSegment:
    """Offsets [base_offset, next_offset). Only the last segment of a log is active."""

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        max_index_bytes: int,
        state_suffix: str = "",
    ) -> None:
        """`state_suffix` is behind all names of a segment that is not part of its log (see segment_swap)."""
        stem = f"{directory}/{base_offset:020d}"
        self._files = files
        self.indexes = SegmentIndexes(
            files,
            stem,
            base_offset=base_offset,
            interval_bytes=index_interval_bytes,
            max_size_bytes=max_index_bytes,
            state_suffix=state_suffix,
        )
        self.transaction_index = TransactionIndex(files, f"{stem}.txnindex{state_suffix}")
        self.path = f"{stem}{LOG_SUFFIX}{state_suffix}"
        self.records = FileRecords(files, self.path, base_offset=base_offset)
        self._paths = (self.path, self.indexes.offsets.path, self.indexes.times.path, self.transaction_index.path)
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.is_active = False
        self.damage: tuple[DamagedRange, ...] = ()  # as far as it was found, in their order

    @property
    def size_bytes(self) -> int:
        return self.records.size_bytes

    @property
    def largest_timestamp(self) -> tuple[int, int]:
        """The largest timestamp and the last offset of its batch; (NO_TIMESTAMP, base offset) when there is none."""
        indexes = self.indexes
        if not indexes.know_timestamps:
            was_released = self.records.opened is None and not indexes.are_loaded
            self._load_indexes()
            indexes.know_timestamps = True
            if was_released:
                self.release()
        return indexes.largest_timestamp

    @property
    def age(self) -> SegmentAge:
        newest_ms = self.largest_timestamp[0]
        if newest_ms == NO_TIMESTAMP and self.size_bytes:
            newest_ms = self._files.modified_ms(self.path)
        return SegmentAge(base_offset=self.base_offset, next_offset=self.next_offset, size_bytes=self.size_bytes,
                          newest_ms=newest_ms)  # fmt: skip

    def timestamps(self, from_offset: int, *, limit: int) -> list[tuple[int, int]]:
        """Some (offset, largest timestamp so far) from this offset on, the offset itself among them."""
        place = self.batch_at(from_offset)
        header = None if place is None else self.records.header_at(place.position)
        if header is None:
            return []
        return [(from_offset, header.max_timestamp_ms), *self.indexes.times.sample(from_offset + 1, limit=limit)]

    # --- appending ---

    def has_room_for(self, size_bytes: int, last_offset: int, max_segment_bytes: int) -> bool:
        return (
            self.records.size_bytes + size_bytes <= max_segment_bytes
            and last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
            and not self.indexes.are_full
        )

    def append(self, data: Buffer, batches: Sequence[PlacedBatch]) -> None:
        """Write `data` at the end, in which `batches` lie at their positions. Nothing is noted when the write fails."""
        records, note = self.records, self.indexes.note
        start = records.size_bytes
        (records.opened or records.file).append(data)
        records.size_bytes = start + len(data)
        for position, size_bytes, base_offset, last_offset, max_timestamp_ms, _ in batches:
            note(start + position, size_bytes, base_offset, last_offset, max_timestamp_ms)
        self.next_offset = batches[-1].last_offset + 1

    def note_batch(self, position: int, size_bytes: int, base_offset: int, last_offset: int, timestamp_ms: int) -> None:
        """Take a batch that is in the file into the indexes."""
        self.indexes.note(position, size_bytes, base_offset, last_offset, timestamp_ms)
        self.next_offset = last_offset + 1

    # --- finding and reading ---

    def batch_at(self, offset: int) -> BatchPlace | None:
        """The first batch that reaches `offset`; None when there is none."""
        tail = self.indexes.tail
        if tail.base_offset <= offset <= tail.last_offset:
            return tail
        if offset >= self.next_offset:
            return None
        self._load_indexes()
        indexed, start = self.indexes.offsets.place_for(offset)
        if indexed != NO_ENTRY and not self.records.is_batch(start, last_offset=indexed):
            self.rebuild_indexes()  # the index lies
            start = self.indexes.offsets.position_for(offset)
        for damaged in self.damage:
            if damaged.end_offset <= offset:
                start = max(start, damaged.end_position)  # nothing is believed of what lies in between
        for place in self.records.places(start):
            if place.last_offset >= offset:
                return place
        return None

    def read(self, offset: int, *, max_bytes: int, up_to_offset: int, at_least_one_batch: bool) -> FileSlice | None:
        """Whole batches from the one that reaches `offset` on; None when this segment has none at or behind it."""
        if self.damage:
            return self._read_round_damage(offset, max_bytes, up_to_offset, at_least_one_batch)
        first = self.batch_at(offset)
        if first is None:
            return None
        if first.base_offset >= up_to_offset:
            return FileSlice(file=self.records.file, position=first.position, size_bytes=0)
        end = self._end_of_read(first, first.position + max_bytes, up_to_offset)
        if end <= first.position and at_least_one_batch:
            end = first.position + first.size_bytes
        return FileSlice(file=self.records.file, position=first.position, size_bytes=max(end - first.position, 0))

    def _read_round_damage(
        self, offset: int, max_bytes: int, up_to_offset: int, at_least_one_batch: bool
    ) -> FileSlice | None:
        """As `read`, up to the next damaged batch. Raises CorruptRecordError for an offset inside of one."""
        damaged = range_of(self.damage, offset)
        if damaged is not None:
            raise damaged.refusal()
        limit = next((found.position for found in self.damage if found.first_offset > offset), self.size_bytes)
        first = self.batch_at(offset)
        if first is None or first.position >= limit:
            return None
        end = first.position
        for place in self.records.places(first.position, limit):
            place_end = place.position + place.size_bytes
            if place.base_offset >= up_to_offset:
                break
            if place_end - first.position > max_bytes and not (at_least_one_batch and place.position == first.position):
                break
            end = place_end
        return FileSlice(file=self.records.file, position=first.position, size_bytes=end - first.position)

    def view(self) -> SegmentView:
        """For a scan for damage, perhaps in another thread. It leaves the segment open or closed, as it is."""
        was_open = self.records.is_open or self.indexes.are_loaded
        self._load_indexes()
        view = SegmentView(file=self.records.file, base_offset=self.base_offset, next_offset=self.next_offset,
                           size_bytes=self.size_bytes, index=self.indexes.offsets.packed())  # fmt: skip
        if not was_open:
            self.release()
        return view

    def note_damage(self, damaged: DamagedRange) -> bool:
        """Refuse these offsets from now on; False when that was known."""
        if any(known.position == damaged.position for known in self.damage):
            return False
        self.damage = tuple(sorted((*self.damage, damaged), key=lambda found: found.position))
        return True

    def trusted_start(self, offset: int) -> tuple[int, int]:
        """A position at or before the batch that holds `offset`, and an offset that it does not begin before."""
        self._load_indexes()
        return self.indexes.offsets.position_for(offset), self.base_offset

    def _end_of_read(self, first: BatchPlace, limit: int, up_to_offset: int) -> int:
        """The largest end of a batch that is not behind `limit`, nor behind the last batch that begins before
        `up_to_offset`."""
        end = self.records.size_bytes
        if up_to_offset < self.next_offset:
            last = self.batch_at(up_to_offset)  # None in a gap at the end, where a log was truncated inside of a gap
            if last is not None:
                end = last.position if last.base_offset >= up_to_offset else last.position + last.size_bytes
        if end <= limit:
            return end
        for place in self.records.places(self._indexed_before(limit, first.position)):
            if place.position + place.size_bytes > limit:
                return place.position
        return end

    def _indexed_before(self, limit: int, position: int) -> int:
        """Where the last batch begins that the index knows between the two; `position` when it knows none."""
        if not self.indexes.are_loaded:
            return position
        indexed, start = self.indexes.offsets.offset_before(limit)
        if start <= position:
            return position
        if not self.records.is_batch(start, last_offset=indexed):
            self.rebuild_indexes()  # the index lies
            start = self.indexes.offsets.offset_before(limit)[1]
        return max(start, position)

    def find_timestamp(self, timestamp_ms: int, *, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches from `from_offset` on that may hold a record as young as `timestamp_ms`, in order."""
        self._load_indexes()
        place = self.batch_at(max(self._trusted_offset_for(timestamp_ms), from_offset))
        if place is None:
            return
        for header, batch in self.records.batches(place.position, verify_crc=False, chunk_bytes=_LOOK_UP_CHUNK_BYTES):
            if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= from_offset:
                yield header, batch

    def _trusted_offset_for(self, timestamp_ms: int) -> int:
        """As TimeIndex.offset_for, with the entry compared with the batch that it names."""
        indexed_ms, offset = self.indexes.times.entry_before(timestamp_ms)
        if indexed_ms != NO_TIMESTAMP:
            place = self.batch_at(offset)
            header = self.records.header_at(place.position) if place is not None else None
            if header is None or header.max_timestamp_ms != indexed_ms:
                self.rebuild_indexes()
                return self.indexes.times.offset_for(timestamp_ms)
        return offset

    # --- opening, closing, repairing ---

    def open_active(self, *, trusted_up_to: int | None = None) -> int:
        """Make this the active segment; return the position from which its batches must be noted again.

        Index entries are trusted up to the offset `trusted_up_to` (all of them when it is None).
        """
        self.is_active = True
        is_sound = self.indexes.read_files(trusted_up_to=trusted_up_to)
        self.next_offset = self.base_offset
        if not is_sound or not self._are_indexes_true():
            self.indexes.clear()
        return self.indexes.start_of_unindexed()

    def _are_indexes_true(self) -> bool:
        """Whether the last index entry points to the batch that it names, and timestamps are indexed if there are any."""
        offsets, times = self.indexes.offsets, self.indexes.times
        last = offsets.last_entry
        if last is None:
            return True  # there is nothing to index yet
        if not self.records.is_batch(last[1], last_offset=self.base_offset + last[0]):
            return False
        return len(times) > 0 or self.records.first_timestamp_ms == NO_TIMESTAMP

    def start_empty(self) -> None:
        """Be a new active segment, whatever files a power loss has brought back from before a truncation."""
        for path in self._paths:
            if self._files.exists(path):
                self._files.remove(path)
        self.transaction_index.start_empty()
        self.records.size_bytes = 0
        self.open_active()
        self.records.create()

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the log."""
        next_offset = self.next_offset
        self.indexes.clear()
        try:
            self.note_batches(self.indexes.start_of_unindexed())
        finally:
            # A sealed segment ends where the next one begins, which may be behind its last batch (compaction). An active segment
            # ends where the log ends, also if a read fails here: the next batch and the next segment begin there.
            self.next_offset = max(next_offset, self.next_offset)
        self.indexes.are_loaded = self.indexes.know_timestamps = True
        if not self.is_active:
            self.indexes.save_whole()

    def _load_indexes(self) -> None:
        indexes, size_bytes = self.indexes, self.records.size_bytes
        if indexes.are_loaded:
            return
        is_sound = indexes.map_files()
        has_timestamps = size_bytes > 0 and self.records.first_timestamp_ms != NO_TIMESTAMP
        is_complete = len(indexes.times) > 0 or not has_timestamps
        if not (is_sound and is_complete and indexes.offsets.fits(size_bytes)):
            self.rebuild_indexes()
            return
        indexes.are_loaded = True
        indexes.take_largest_timestamp()

    def seal(self) -> None:
        """Grow no more. The last entry of the time index is the largest timestamp then."""
        self.indexes.save_whole()
        self.is_active = False

    def files_to_flush(self, from_offset: int = 0) -> list[AppendFile]:
        """The log, the index of the transactions that were aborted from an offset on, and the other indexes of a sealed segment.
        The caller can flush them without this object."""
        files = [self.records.file]
        if aborted := self.transaction_index.file_to_flush(from_offset):
            files.append(aborted)
        if not self.is_active:
            files += self.indexes.files_to_flush()
        return files

    def truncate_to(self, offset: int) -> None:
        """Cut off the batch that reaches `offset` and all behind it, durably."""
        assert self.is_active
        place = self.batch_at(offset)
        if place is None:
            return
        self.indexes.truncate_to(place.base_offset)
        self.transaction_index.truncate_to(place.base_offset)
        self.next_offset = place.base_offset
        self.records.cut_at(place.position)
        # What the time index does not know of the largest timestamp is read again, from the last entry on.
        self.next_offset = self.base_offset
        self.note_batches(self.indexes.start_of_unindexed())
        # In a gap that compaction left, and inside of a batch, the end is that of the batch before: what comes next is
        # fetched from there, and no gap is between this segment and the next one.

    def note_batches(self, position: int) -> None:
        """Take the batches from `position` on into the indexes, up to one whose offsets cannot be."""
        expected, end_offset = self.base_offset, None if self.is_active else self.next_offset
        for header, _ in self.records.batches(position, verify_crc=False):
            if header.base_offset < expected or (end_offset is not None and header.last_offset >= end_offset):
                break
            expected = header.next_offset
            self.note_batch(
                position, header.size_bytes, header.base_offset, header.last_offset, header.newest_record_ms
            )
            position += header.size_bytes

    def release(self) -> None:
        """Let go of the file and the indexes; they open again by themselves. A slice that is being sent keeps its
        file."""
        self.records.close()
        if not self.is_active:
            self.transaction_index.release()
            self.indexes.release()

    @property
    def deleted_paths(self) -> list[str]:
        """Where `rename_as_deleted` puts the files."""
        return [path + DELETED_SUFFIX for path in self._paths]

    def rename_as_deleted(self) -> None:
        """Take the files out of the log, the `.log` first: it decides. A damaged one is kept.

        Raises StorageError; `is_retired` of its records tells whether the segment is out of the log all the same.
        """
        self.records.retire(DAMAGED_SUFFIX if self.damage else DELETED_SUFFIX)
        for path in self._paths[1:]:
            if self._files.exists(path):
                self._files.rename(path, path + DELETED_SUFFIX)


def segment_holding(segments: Sequence[LogSegment], offset: int) -> int:
    """The index in `segments` of the last one that begins at or before `offset`; -1 when none does."""
    return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1

"""One segment of a log: a file of record batches, its two indexes and its transaction index.

The active segment grows, with its indexes in memory; a sealed one opens its file and maps its indexes when it is read, and
`release` closes them. Entries that an index lacks are found in the log, so a lost or damaged index is built again: an entry is
trusted if the batch that it points to is the one that it names."""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from ..disk.files import AppendFile, Files
from ..format.record_batch import (
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    check_crc,
    peek_header,
    read_header,
)
from ..vocabulary.errors import CorruptRecordError, DiskFullError, StorageError
from .append_check import PlacedBatch
from .damage import DamagedRange, SegmentView, range_of
from .offset_index import MAX_RELATIVE_OFFSET, NO_ENTRY, OffsetIndex
from .retention import SegmentAge
from .time_index import TimeIndex
from .transaction_index import TransactionIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
DELETED_SUFFIX = ".deleted"
DAMAGED_SUFFIX = ".damaged"
_SCAN_WINDOW_BYTES = 4096  # The stretch between two index entries of small batches, by default.
_RECOVERY_CHUNK_BYTES = 1024 * 1024
_LOOK_UP_CHUNK_BYTES = 16 * 1024  # a batch or two: the index has led near to it
_PLACE = struct.Struct(">qi11xi")  # base offset, length, (epoch, magic, CRC, attributes), last offset delta
_UNKNOWN = -1


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


class BatchPlace(NamedTuple):
    """Where one batch lies in the file."""

    position: int
    base_offset: int
    last_offset: int
    size_bytes: int


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
        self._file: AppendFile | None = None
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_index = 0
        self._indexes_loaded = False
        self._timestamps_known = (
            False  # once known they stay so, also while the indexes of a sealed segment are not mapped
        )
        self._tail = BatchPlace(
            0, base_offset, _UNKNOWN, 0
        )  # the batch that was appended last; its last offset if known
        self._first_timestamp_ms: int | None = None
        self._max_timestamp_ms = NO_TIMESTAMP
        self._offset_of_max_timestamp = base_offset
        self._offset_index = OffsetIndex(
            files, f"{stem}.index{state_suffix}", base_offset=base_offset, max_size_bytes=max_index_bytes
        )
        self._time_index = TimeIndex(
            files, f"{stem}.timeindex{state_suffix}", base_offset=base_offset, max_size_bytes=max_index_bytes
        )
        self.transaction_index = TransactionIndex(files, f"{stem}.txnindex{state_suffix}")
        self.path = f"{stem}{LOG_SUFFIX}{state_suffix}"
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = files.size_bytes(self.path) if files.exists(self.path) else 0
        self.is_active = False
        self.is_retired = False  # its files were renamed, and are not needed any more
        self.damage: tuple[DamagedRange, ...] = ()  # as far as it was found, in their order

    @property
    def file(self) -> AppendFile:
        if self._file is None:
            if self.is_retired:  # by now another segment may have the name
                raise StorageError(f"{self.path} is not part of its log any more: open the log again")
            self._file = self._files.open_append(self.path, create=self.is_active)
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def failed(self) -> bool:
        return self._file is not None and self._file.failed

    @property
    def largest_timestamp(self) -> tuple[int, int]:
        """The largest timestamp and the last offset of its batch; (NO_TIMESTAMP, base offset) when there is none."""
        if not self._timestamps_known:
            was_released = self._file is None and not self._indexes_loaded
            self._load_indexes()
            self._timestamps_known = True
            if was_released:
                self.release()
        return self._max_timestamp_ms, self._offset_of_max_timestamp

    @property
    def first_timestamp_ms(self) -> int:
        """Of the first batch, whose age is the age of the segment; NO_TIMESTAMP while there is none."""
        if self._first_timestamp_ms is None:
            if self.size_bytes < HEADER_SIZE:
                return NO_TIMESTAMP
            first = self._header_at(0)
            self._first_timestamp_ms = first.max_timestamp_ms if first is not None else NO_TIMESTAMP
        return self._first_timestamp_ms

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
        header = None if place is None else self._header_at(place.position)
        if header is None:
            return []
        return [(from_offset, header.max_timestamp_ms), *self._time_index.sample(from_offset + 1, limit=limit)]

    # --- appending ---

    def has_room_for(self, size_bytes: int, last_offset: int, max_segment_bytes: int) -> bool:
        return (
            self.size_bytes + size_bytes <= max_segment_bytes
            and last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
            and not self._offset_index.is_full
            and not self._time_index.is_full
        )

    def append(self, data: Buffer, batches: Iterable[PlacedBatch]) -> None:
        """Write `data` at the end, in which `batches` lie at their positions. Nothing is noted when the write fails."""
        start = self.size_bytes
        (self._file or self.file).append(data)
        self.size_bytes = start + len(data)
        for position, size_bytes, base_offset, last_offset, max_timestamp_ms, _ in batches:
            self.note_batch(start + position, size_bytes, base_offset, last_offset, max_timestamp_ms)

    def note_batch(self, position: int, size_bytes: int, base_offset: int, last_offset: int, timestamp_ms: int) -> None:
        """Take a batch that is in the file into the indexes."""
        if timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = timestamp_ms
            self._offset_of_max_timestamp = last_offset
        if self._bytes_since_index > self._index_interval_bytes:
            self._offset_index.append(last_offset, position)
            self._time_index.append(self._max_timestamp_ms, self._offset_of_max_timestamp)
            self._bytes_since_index = 0
        self._bytes_since_index += size_bytes
        self._tail = BatchPlace(position, base_offset, last_offset, size_bytes)
        self.next_offset = last_offset + 1

    # --- finding and reading ---

    def batch_at(self, offset: int) -> BatchPlace | None:
        """The first batch that reaches `offset`; None when there is none."""
        tail = self._tail
        if tail.base_offset <= offset <= tail.last_offset:
            return tail
        if offset >= self.next_offset:
            return None
        self._load_indexes()
        indexed, start = self._offset_index.place_for(offset)
        if indexed != NO_ENTRY and not self._is_batch(start, last_offset=indexed):
            self.rebuild_indexes()  # the index lies
            start = self._offset_index.position_for(offset)
        for damaged in self.damage:
            if damaged.end_offset <= offset:
                start = max(start, damaged.end_position)  # nothing is believed of what lies in between
        for place in self._places(start):
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
            return FileSlice(file=self.file, position=first.position, size_bytes=0)
        end = self._end_of_read(first, first.position + max_bytes, up_to_offset)
        if end <= first.position and at_least_one_batch:
            end = first.position + first.size_bytes
        return FileSlice(file=self.file, position=first.position, size_bytes=max(end - first.position, 0))

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
        for place in self._places(first.position, limit):
            place_end = place.position + place.size_bytes
            if place.base_offset >= up_to_offset:
                break
            if place_end - first.position > max_bytes and not (at_least_one_batch and place.position == first.position):
                break
            end = place_end
        return FileSlice(file=self.file, position=first.position, size_bytes=end - first.position)

    def view(self) -> SegmentView:
        """For a scan for damage, perhaps in another thread. It leaves the segment open or closed, as it is."""
        was_open = self.is_open or self._indexes_loaded
        self._load_indexes()
        view = SegmentView(file=self.file, base_offset=self.base_offset, next_offset=self.next_offset,
                           size_bytes=self.size_bytes, index=self._offset_index.packed())  # fmt: skip
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
        return self._offset_index.position_for(offset), self.base_offset

    def _end_of_read(self, first: BatchPlace, limit: int, up_to_offset: int) -> int:
        """The largest end of a batch that is not behind `limit`, nor behind the last batch that begins before
        `up_to_offset`."""
        end = self.size_bytes
        if up_to_offset < self.next_offset:
            last = self.batch_at(up_to_offset)  # None: it lies in a gap behind the last batch (compaction)
            last = self.batch_at(up_to_offset)  # None in a gap at the end, where a log was truncated inside of a gap
            if last is not None:
                end = last.position if last.base_offset >= up_to_offset else last.position + last.size_bytes
        if end <= limit:
            return end
        for place in self._places(self._indexed_before(limit, first.position)):
            if place.position + place.size_bytes > limit:
                return place.position
        return end

    def _indexed_before(self, limit: int, position: int) -> int:
        """Where the last batch begins that the index knows between the two; `position` when it knows none."""
        if not self._indexes_loaded:
            return position
        indexed, start = self._offset_index.offset_before(limit)
        if start <= position:
            return position
        if not self._is_batch(start, last_offset=indexed):
            self.rebuild_indexes()  # the index lies
            start = self._offset_index.offset_before(limit)[1]
        return max(start, position)

    def find_timestamp(self, timestamp_ms: int, *, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches from `from_offset` on that may hold a record as young as `timestamp_ms`, in order."""
        self._load_indexes()
        place = self.batch_at(max(self._trusted_offset_for(timestamp_ms), from_offset))
        if place is None:
            return
        for header, batch in self.batches(place.position, verify_crc=False, chunk_bytes=_LOOK_UP_CHUNK_BYTES):
            if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= from_offset:
                yield header, batch

    def _trusted_offset_for(self, timestamp_ms: int) -> int:
        """As TimeIndex.offset_for, with the entry compared with the batch that it names."""
        indexed_ms, offset = self._time_index.entry_before(timestamp_ms)
        if indexed_ms != NO_TIMESTAMP:
            place = self.batch_at(offset)
            header = self._header_at(place.position) if place is not None else None
            if header is None or header.max_timestamp_ms != indexed_ms:
                self.rebuild_indexes()
                return self._time_index.offset_for(timestamp_ms)
        return offset

    def _is_batch(self, position: int, *, last_offset: int) -> bool:
        """Whether there is a batch at this position, which ends with this offset."""
        header = self._header_at(position)
        return header is not None and header.last_offset == last_offset

    def _header_at(self, position: int) -> BatchHeader | None:
        """The header of the batch at a position; None when there is no such thing."""
        if position + HEADER_SIZE > self.size_bytes:
            return None
        try:
            header = peek_header(self.file.read_at(position, HEADER_SIZE))
        except CorruptRecordError:
            return None
        return header if position + header.size_bytes <= self.size_bytes else None

    def _places(self, position: int, end: int | None = None) -> Iterator[BatchPlace]:
        """Walk the batches from `position` on, looking at their places only."""
        file, end = self.file, self.size_bytes if end is None else end
        window = b""
        window_start = 0
        while position + HEADER_SIZE <= end:
            at = position - window_start
            if at + _PLACE.size > len(window):
                window_start, at = position, 0
                window = file.read_at(position, min(_SCAN_WINDOW_BYTES, end - position))
            base_offset, length, offset_delta = _PLACE.unpack_from(window, at)
            size_bytes = length + LOG_OVERHEAD
            if size_bytes < HEADER_SIZE or position + size_bytes > end:
                raise CorruptRecordError(
                    f"{self.path} is damaged at position {position}: what another replica in sync holds is copied from there"
                )
            yield BatchPlace(position, base_offset, base_offset + offset_delta, size_bytes)
            position += size_bytes

    def batches(
        self, position: int, *, verify_crc: bool, chunk_bytes: int = _RECOVERY_CHUNK_BYTES
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Walk the whole batches from `position` on, and end before a cut or bad one. Header positions mean nothing
        here."""
        end = self.size_bytes
        while position + HEADER_SIZE <= end:
            chunk = memoryview(self.file.read_at(position, min(chunk_bytes, end - position)))
            size_bytes = LENGTH.unpack_from(chunk, LENGTH_POSITION)[0] + LOG_OVERHEAD
            if not HEADER_SIZE <= size_bytes <= end - position:
                return
            if size_bytes > len(chunk):
                chunk = memoryview(self.file.read_at(position, size_bytes))
            walked = 0
            for header in _sound_headers(chunk, verify_crc=verify_crc):
                if (
                    not 0
                    <= header.base_offset - self.base_offset
                    <= header.last_offset - self.base_offset
                    <= MAX_RELATIVE_OFFSET
                ):
                    return
                yield header, chunk[header.position : header.position + header.size_bytes]
                walked = header.position + header.size_bytes
            if not walked:
                return
            position += walked

    # --- opening, closing, repairing ---

    def open_active(self, *, trusted_up_to: int | None = None) -> int:
        """Make this the active segment; return the position from which its batches must be noted again.

        Index entries are trusted up to the offset `trusted_up_to` (all of them when it is None).
        """
        self.is_active = True
        self._indexes_loaded = self._timestamps_known = True
        sound = self._offset_index.load(writable=True) & self._time_index.load(writable=True)
        if trusted_up_to is not None:
            self._offset_index.truncate_to(trusted_up_to)
            self._time_index.truncate_to(trusted_up_to)
        self.next_offset = self.base_offset
        if not sound or not self._last_entry_is_true() or self._lacks_timestamps():
            return self._forget_indexes()
        return self._start_of_unindexed()

    def _last_entry_is_true(self) -> bool:
        """Whether the last index entry points to the batch that it names."""
        last = self._offset_index.last_entry
        if last is None:
            return True
        return self._is_batch(last[1], last_offset=self.base_offset + last[0])

    def _lacks_timestamps(self) -> bool:
        """An empty time index is sound only if records have no timestamps (or if there is nothing to index yet)."""
        return not len(self._time_index) and len(self._offset_index) > 0 and self.first_timestamp_ms != NO_TIMESTAMP

    def start_empty(self) -> None:
        """Be a new active segment, whatever files a power loss has brought back from before a truncation."""
        for path in self._paths_in_log:
            if self._files.exists(path):
                self._files.remove(path)
        self.size_bytes = 0
        self.open_active()
        _ = self.file  # made now, since a log is known by its segment files
        self._file = None  # and opened by the first append: a log that stays empty costs no descriptor

    def _forget_indexes(self) -> int:
        self._offset_index.clear()
        self._time_index.clear()
        return self._start_of_unindexed()

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the log."""
        next_offset = self.next_offset
        self.note_batches(self._forget_indexes())
        # A sealed segment ends where the next one begins, which may be behind its last batch (compaction).
        self.next_offset = max(next_offset, self.next_offset)
        self._indexes_loaded = self._timestamps_known = True
        if not self.is_active:
            self._save_whole_indexes()

    def _load_indexes(self) -> None:
        if self._indexes_loaded:
            return
        sound = self._offset_index.load(writable=False) & self._time_index.load(writable=False)
        has_timestamps = self.size_bytes > 0 and self.first_timestamp_ms != NO_TIMESTAMP
        is_complete = len(self._time_index) > 0 or not has_timestamps
        if not (sound and is_complete and self._offset_index.fits(self.size_bytes)):
            self.rebuild_indexes()
            return
        self._indexes_loaded = True
        self._max_timestamp_ms, self._offset_of_max_timestamp = self._time_index.largest

    def save_indexes(self) -> None:
        """Write to the index files what they lack."""
        self._offset_index.save()
        self._time_index.save()

    def seal(self) -> None:
        """Grow no more. The last entry of the time index is the largest timestamp then."""
        self._save_whole_indexes()
        self.is_active = False

    def _save_whole_indexes(self) -> None:
        """A full disk must not prevent reads: without their files, the indexes are rebuilt when they are needed. A partial index
        file must not stay, because it could not be recognized."""
        self._time_index.append(self._max_timestamp_ms, self._offset_of_max_timestamp)
        try:
            self.save_indexes()
        except DiskFullError:
            self._offset_index.forget_file()
            self._time_index.forget_file()

    def files_to_flush(self) -> list[AppendFile]:
        """The log, and the indexes of a sealed segment. The caller can flush them without this object."""
        files = [self.file]
        if not self.is_active:
            files += [file for index in (self._offset_index, self._time_index) if (file := index.file_to_flush())]
        return files

    def flush_indexes(self) -> None:
        self._offset_index.flush()
        self._time_index.flush()

    def truncate_to(self, offset: int) -> None:
        """Cut off the batch that reaches `offset` and all behind it, durably."""
        assert self.is_active
        place = self.batch_at(offset)
        if place is None:
            return
        self._offset_index.truncate_to(place.base_offset)
        self._time_index.truncate_to(place.base_offset)
        self.transaction_index.truncate_to(place.base_offset)
        self.next_offset = place.base_offset
        self.cut_at(place.position)
        # What the time index does not know of the largest timestamp is read again, from the last entry on.
        self.next_offset = self.base_offset
        self.note_batches(self._start_of_unindexed())
        # In a gap that compaction left, and inside of a batch, the end is that of the batch before: what comes next is
        # fetched from there, and no gap is between this segment and the next one.

    def note_batches(self, position: int) -> None:
        """Take the batches from `position` on into the indexes, up to one whose offsets cannot be."""
        expected, end_offset = self.base_offset, None if self.is_active else self.next_offset
        for header, _ in self.batches(position, verify_crc=False):
            if header.base_offset < expected or (end_offset is not None and header.last_offset >= end_offset):
                break
            expected = header.next_offset
            self.note_batch(
                position, header.size_bytes, header.base_offset, header.last_offset, header.newest_record_ms
            )
            position += header.size_bytes

    def _start_of_unindexed(self) -> int:
        self._max_timestamp_ms, self._offset_of_max_timestamp = self._time_index.largest
        self._tail = BatchPlace(0, self.base_offset, _UNKNOWN, 0)
        self._bytes_since_index = 0
        last = self._offset_index.last_entry
        return last[1] if last is not None else 0

    def cut_at(self, position: int) -> None:
        """Cut the file, durably: the disk must not give the old bytes back behind what is appended next."""
        self.size_bytes = position  # first: bytes that may be gone are not read
        self.file.truncate(position)
        if position == 0:
            self._first_timestamp_ms = None
        self.file.flush()

    def release(self) -> None:
        """Let go of the file and the indexes; they open again by themselves. A slice that is being sent keeps its
        file."""
        self._file = None
        if not self.is_active:
            self._offset_index.clear()
            self._time_index.clear()
            self._indexes_loaded = False

    @property
    def deleted_paths(self) -> list[str]:
        """Where `rename_as_deleted` puts the files."""
        return [path + DELETED_SUFFIX for path in self._paths_in_log]

    @property
    def _paths_in_log(self) -> tuple[str, ...]:
        return self.path, self._offset_index.path, self._time_index.path, self.transaction_index.path

    def rename_as_deleted(self) -> None:
        """Take the files out of the log, the `.log` first: it decides. A damaged one is kept.

        Raises StorageError; `is_retired` tells whether the segment is out of the log all the same.
        """
        self.is_retired = True  # first: a reader in another thread that finds no file checks this flag
        try:
            if self.damage and self._files.exists(self.path):
                self._files.rename(self.path, self.path + DAMAGED_SUFFIX)
            elif self._files.exists(self.path):
                self._files.rename(self.path, self.path + DELETED_SUFFIX)
        except StorageError:
            self.is_retired = False
            raise
        for path in self._paths_in_log[1:]:
            if self._files.exists(path):
                self._files.rename(path, path + DELETED_SUFFIX)


def _sound_headers(chunk: memoryview, *, verify_crc: bool) -> Iterator[BatchHeader]:
    """Headers of the whole, sound batches at the start of the chunk."""
    position = 0
    while len(chunk) - position >= HEADER_SIZE:
        try:
            header = read_header(chunk, position)
            if verify_crc:
                check_crc(chunk, header)
        except CorruptRecordError:
            return
        yield header
        position += header.size_bytes


def segment_holding(segments: Sequence[LogSegment], offset: int) -> int:
    """The index in `segments` of the last one that begins at or before `offset`; -1 when none does."""
    return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1

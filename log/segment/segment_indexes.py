"""The offset index and the time index of one segment, which grow together, and what is known of the last batch.

The indexes of the active segment are in memory; those of a sealed one are mapped when they are used. No batch is read here: the
segment compares an entry with the batch that it names before it trusts the entry.
"""

from ..disk.files import AppendFile, Files
from ..format.record_batch import NO_TIMESTAMP
from ..vocabulary.errors import DiskFullError
from .file_records import BatchPlace
from .offset_index import OffsetIndex
from .time_index import TimeIndex

_UNKNOWN = -1


class SegmentIndexes:
    """An entry of each index for about every `interval_bytes` of batches."""

    def __init__(
        self, files: Files, stem: str, *, base_offset: int, interval_bytes: int, max_size_bytes: int, state_suffix: str
    ) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0
        self._max_timestamp_ms = NO_TIMESTAMP
        self._offset_of_max_timestamp = base_offset
        self.offsets = OffsetIndex(
            files, f"{stem}.index{state_suffix}", base_offset=base_offset, max_size_bytes=max_size_bytes
        )
        self.times = TimeIndex(
            files, f"{stem}.timeindex{state_suffix}", base_offset=base_offset, max_size_bytes=max_size_bytes
        )
        self.tail = BatchPlace(0, base_offset, _UNKNOWN, 0)  # the batch that was noted last; its last offset if known
        self.are_loaded = False
        self.are_full = False  # one of them takes no more entries: while the segment grows, or from its loading on
        self.know_timestamps = (
            False  # once known they stay so, also while the indexes of a sealed segment are not mapped
        )

    @property
    def largest_timestamp(self) -> tuple[int, int]:
        """The largest timestamp and the last offset of its batch; (NO_TIMESTAMP, base offset) when there is none."""
        return self._max_timestamp_ms, self._offset_of_max_timestamp

    def note(self, position: int, size_bytes: int, base_offset: int, last_offset: int, timestamp_ms: int) -> None:
        """A batch is in the file, behind those that were noted before."""
        if timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = timestamp_ms
            self._offset_of_max_timestamp = last_offset
        if self._bytes_since_entry > self._interval_bytes:
            self.offsets.append(last_offset, position)
            self.times.append(self._max_timestamp_ms, self._offset_of_max_timestamp)
            self._bytes_since_entry = 0
            self._note_size()
        self._bytes_since_entry += size_bytes
        self.tail = BatchPlace(position, base_offset, last_offset, size_bytes)

    def read_files(self, *, trusted_up_to: int | None) -> bool:
        """Load the indexes to let them grow, without entries that reach beyond the offset `trusted_up_to`. False when they are
        not sound."""
        self.are_loaded = self.know_timestamps = True
        is_sound = self.offsets.load(writable=True) & self.times.load(writable=True)
        if trusted_up_to is not None:
            self.offsets.truncate_to(trusted_up_to)
            self.times.truncate_to(trusted_up_to)
        self._note_size()
        return is_sound

    def _note_size(self) -> None:
        self.are_full = self.offsets.is_full or self.times.is_full

    def map_files(self) -> bool:
        """Load the indexes of a sealed segment. False when they are not sound; `are_loaded` is for the caller to say."""
        return self.offsets.load(writable=False) & self.times.load(writable=False)

    def take_largest_timestamp(self) -> None:
        """As the time index has it: after it was loaded."""
        self._max_timestamp_ms, self._offset_of_max_timestamp = self.times.largest

    def clear(self) -> None:
        self.offsets.clear()
        self.times.clear()
        self._note_size()

    def start_of_unindexed(self) -> int:
        """The position from which the batches must be noted again: that of the last entry."""
        self.take_largest_timestamp()
        self.tail = BatchPlace(0, self._base_offset, _UNKNOWN, 0)
        self._bytes_since_entry = 0
        last = self.offsets.last_entry
        return last[1] if last is not None else 0

    def truncate_to(self, end_offset: int) -> None:
        """Forget the batches that reach `end_offset` or beyond."""
        self.offsets.truncate_to(end_offset)
        self.times.truncate_to(end_offset)
        self._note_size()

    def save(self) -> None:
        """Write to the index files what they lack."""
        self.offsets.save()
        self.times.save()

    def save_whole(self) -> None:
        """The segment grows no more: the last entry of the time index is the largest timestamp then. A full disk must not prevent
        reads: without their files, the indexes are rebuilt when they are needed. A partial index file must not stay, because
        it could not be recognized."""
        self.times.append(self._max_timestamp_ms, self._offset_of_max_timestamp)
        try:
            self.save()
        except DiskFullError:
            self.offsets.forget_file()
            self.times.forget_file()

    def files_to_flush(self) -> list[AppendFile]:
        return [file for index in (self.offsets, self.times) if (file := index.file_to_flush())]

    def flush(self) -> None:
        self.offsets.flush()
        self.times.flush()

    def release(self) -> None:
        """Unmap the files of a sealed segment."""
        self.clear()
        self.are_loaded = False

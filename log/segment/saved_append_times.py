"""The append times of a partition with the file that keeps them over a restart, `append-times`.

The file is written with the recovery points (every minute) and when the log is closed. It is a hint with a CRC, never
flushed: what it lacks after a crash, or all of it when it is damaged or older than this version, is estimated from the
batches' timestamps, held within the times at which the segments' files were last written to.
"""

import struct
from collections.abc import Sequence

from crc32c import crc32c

from ..disk.files import Files
from ..format.record_batch import NO_TIMESTAMP, BatchHeader
from ..vocabulary.errors import CorruptRecordError
from .append_times import AppendTimes
from .segment import LogSegment, segment_holding

FILE_NAME = "append-times"
_CRC = struct.Struct(">I")
_MAX_ESTIMATED_SEGMENTS = (
    64  # an estimate needs a look at each of them; what is older counts as old as the oldest of them
)
_MAX_SAMPLES = 256  # of one segment


class SavedAppendTimes:
    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self._saved_end_offset = -1
        self.times = AppendTimes()

    def load(self, segments: Sequence[LogSegment], *, log_start_offset: int) -> None:
        """Read the times from the file, and estimate those that it lacks."""
        log_end_offset = segments[-1].next_offset
        self.times = self._read()
        self.times.truncate_to(log_end_offset)
        self.times.forget_before(log_start_offset)
        if self.times.end_offset < log_end_offset:
            self._estimate(segments, log_end_offset)
        else:
            self._saved_end_offset = log_end_offset

    def save(self) -> None:
        """Write the file, unless it is up to date. Raises StorageError."""
        if self._saved_end_offset != self.times.end_offset:
            data = self.times.to_bytes()
            file = self._files.open_append(self._path)
            file.truncate(0)
            file.append(_CRC.pack(crc32c(data)) + data)
            file.close()
            self._saved_end_offset = self.times.end_offset

    def note_replicated(self, header: BatchHeader, now_ms: int, *, is_fresh: bool) -> None:
        """A follower has appended a batch. `is_fresh`: its leader has just appended it; otherwise, use the batch's timestamp."""
        timestamp_ms = header.max_timestamp_ms
        if is_fresh:
            self.times.note(header.base_offset, header.next_offset, now_ms)
        else:
            # Times ahead of the broker's clock are not used: later records would never appear younger.
            time_ms = timestamp_ms if not now_ms or NO_TIMESTAMP < timestamp_ms < now_ms else now_ms
            self.times.note_estimate(header.base_offset, header.next_offset, time_ms)

    def truncate_to(self, end_offset: int) -> None:
        self.times.truncate_to(end_offset)
        self._saved_end_offset = -1

    def _read(self) -> AppendTimes:
        if not self._files.exists(self._path):
            return AppendTimes()
        data = self._files.read_bytes(self._path)
        try:
            if len(data) < _CRC.size or _CRC.unpack_from(data)[0] != crc32c(data[_CRC.size :]):
                raise CorruptRecordError("a crash has cut the append times")
            return AppendTimes.from_bytes(data[_CRC.size :])
        except CorruptRecordError:
            return AppendTimes()

    def _estimate(self, segments: Sequence[LogSegment], log_end_offset: int) -> None:
        known_end = self.times.end_offset
        first = max(segment_holding(list(segments), known_end), len(segments) - _MAX_ESTIMATED_SEGMENTS, 0)
        for number in range(first, len(segments)):
            segment = segments[number]
            if segment.size_bytes == 0:
                continue
            written_ms = self._files.modified_ms(segment.path)
            end_offset = min(segment.next_offset, log_end_offset)
            for offset, timestamp_ms in segment.timestamps(max(known_end, segment.base_offset), limit=_MAX_SAMPLES):
                if offset < end_offset:
                    time_ms = written_ms if timestamp_ms == NO_TIMESTAMP else min(timestamp_ms, written_ms)
                    self.times.note_estimate(offset, end_offset, time_ms)
        self.times.exact_from_offset = log_end_offset

"""The `.log` file of a segment: whole batches, one after the other. Everything here is found by position, never by an index.

The file opens when it is used, and `close` lets go of it.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ..disk.files import AppendFile, Files
from ..format.record_batch import (
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    peek_header,
    read_header,
)
from ..vocabulary.errors import CorruptRecordError, MissingFileError, StorageError
from .offset_index import MAX_RELATIVE_OFFSET

_SCAN_WINDOW_BYTES = 4096  # The stretch between two index entries of small batches, by default.
_RECOVERY_CHUNK_BYTES = 1024 * 1024
_PLACE = struct.Struct(">qi11xi")  # base offset, length, (epoch, magic, CRC, attributes), last offset delta


class BatchPlace(NamedTuple):
    """Where one batch lies in the file."""

    position: int
    base_offset: int
    last_offset: int
    size_bytes: int


class FileRecords:
    """`size_bytes` is how much of the file is read: an append that failed, and what is being cut off, is not."""

    def __init__(self, files: Files, path: str, *, base_offset: int) -> None:
        self._files = files
        self._base_offset = base_offset
        self._first_timestamp_ms: int | None = None
        self.path = path
        self.size_bytes = files.size_bytes(path) if files.exists(path) else 0
        self.opened: AppendFile | None = None  # None while it is closed: `file` opens it
        self.is_missing = False  # somebody removed the file: noticed when it is opened again
        self.is_retired = False  # the file was renamed, and is not needed any more

    @property
    def file(self) -> AppendFile:
        if self.opened is None:
            if self.is_retired:  # by now another segment may have the name
                raise StorageError(f"{self.path} is not part of its log any more: open the log again")
            try:
                self.opened = self._files.open_append(self.path, create=False)
            except MissingFileError:
                self.is_missing = not self.is_retired
                raise
        return self.opened

    def create(self) -> None:
        """A log is known by its segment files. The first append opens it: a log that stays empty costs no descriptor."""
        self._files.open_append(self.path)

    @property
    def is_open(self) -> bool:
        return self.opened is not None

    @property
    def failed(self) -> bool:
        return self.opened is not None and self.opened.failed

    @property
    def first_timestamp_ms(self) -> int:
        """Of the first batch, whose age is the age of the segment; NO_TIMESTAMP while there is none."""
        if self._first_timestamp_ms is None:
            if self.size_bytes < HEADER_SIZE:
                return NO_TIMESTAMP
            first = self.header_at(0)
            self._first_timestamp_ms = first.max_timestamp_ms if first is not None else NO_TIMESTAMP
        return self._first_timestamp_ms

    def header_at(self, position: int) -> BatchHeader | None:
        """The header of the batch at a position; None when there is no such thing."""
        if position + HEADER_SIZE > self.size_bytes:
            return None
        try:
            header = peek_header(self.file.read_at(position, HEADER_SIZE))
        except CorruptRecordError:
            return None
        return header if position + header.size_bytes <= self.size_bytes else None

    def is_batch(self, position: int, *, last_offset: int) -> bool:
        """Whether there is a batch at this position, which ends with this offset."""
        header = self.header_at(position)
        return header is not None and header.last_offset == last_offset

    def places(self, position: int, end: int | None = None) -> Iterator[BatchPlace]:
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
                first, last = header.base_offset - self._base_offset, header.last_offset - self._base_offset
                if not 0 <= first <= last <= MAX_RELATIVE_OFFSET:
                    return
                yield header, chunk[header.position : header.position + header.size_bytes]
                walked = header.position + header.size_bytes
            if not walked:
                return
            position += walked

    def cut_at(self, position: int) -> None:
        """Cut the file, durably: the disk must not give the old bytes back behind what is appended next."""
        self.size_bytes = position  # first: bytes that may be gone are not read
        self.file.truncate(position)
        if position == 0:
            self._first_timestamp_ms = None
        self.file.flush()

    def close(self) -> None:
        """A slice that is being sent keeps its file."""
        self.opened = None

    def retire(self, suffix: str) -> None:
        """Take the file out of its log, by another name. Raises StorageError; then it is still in the log."""
        self.is_retired = True  # first: a reader in another thread that finds no file checks this flag
        try:
            if self._files.exists(self.path):
                self._files.rename(self.path, self.path + suffix)
        except StorageError:
            self.is_retired = False
            raise


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

"""The walk over fetched batches: which of them have wanted records, and where the walk ends. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ..format.compression import compression_of, decompress
from ..format.record_batch import HEADER_SIZE, TIMESTAMP_TYPE_MASK, BatchHeader, Buffer, check_crc, read_header
from ..vocabulary.errors import CorruptRecordError
from .aborted import AbortedFilter
from .section import Section

MAX_OFFSET: Final = 2**63 - 1
_MIN_RECORD_BYTES: Final = 7  # Length, attributes, timestamp, offset, lengths of key and value, count of headers.


class Step(NamedTuple):
    """One batch; `section` is None if none of its records is wanted."""

    section: Section | None
    next_offset: int
    size_bytes: int
    leader_epoch: int


class BatchWalk:
    """Reads headers, checks CRCs, decompresses, and leaves out control batches and aborted transactions."""

    def __init__(
        self, start_offset: int, end_offset: int, aborted: AbortedFilter, *, check: bool, max_bytes: int
    ) -> None:
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._check = check
        self._max_bytes = max_bytes
        self._aborted = aborted
        self.damage: CorruptRecordError | None = None  # Of the batch that ended the walk.

    def steps(self, buffers: Iterable[Buffer]) -> list[Step]:
        """The batches to the end of the range, to the first damaged one, or to `max_bytes` of decompressed records."""
        found: list[Step] = []
        size_bytes = 0
        try:
            for step in self.walk(buffers):
                size_bytes += len(step.section.body) if step.section is not None else 0
                if found and size_bytes > self._max_bytes:
                    break
                found.append(step)
        except CorruptRecordError as error:
            self.damage = error
        return found

    def walk(self, buffers: Iterable[Buffer]) -> Iterator[Step]:
        leader_epoch = -1
        for buffer in buffers:
            position = 0
            while position < len(buffer):
                header = read_header(buffer, position)
                check_offsets(header)
                if self._check:
                    check_crc(buffer, header)
                if header.base_offset >= self._end_offset:
                    yield Step(None, header.base_offset, 0, leader_epoch)
                    return
                leader_epoch = header.leader_epoch
                is_wanted = not self._aborted.leaves_out(header, buffer) and header.next_offset > self._start_offset
                section = section_of(buffer, header, self._start_offset, self._end_offset) if is_wanted else None
                yield Step(section, header.next_offset, header.size_bytes, header.leader_epoch)
                position += header.size_bytes


def section_of(buffer: Buffer, header: BatchHeader, start_offset: int, end_offset: int) -> Section:
    """Decompress the records of a batch. Raises CorruptRecordError, UnsupportedCompressionError."""
    check_offsets(header)
    packed = memoryview(buffer)[header.position + HEADER_SIZE : header.position + header.size_bytes]
    # A batch that an earlier version of compaction has emptied may still name a codec.
    body = decompress(packed, compression_of(header.compression)) if header.compression and packed else packed
    if header.record_count > len(body) // _MIN_RECORD_BYTES:
        raise CorruptRecordError(f"a record batch announces {header.record_count} records in {len(body)} bytes")
    return Section(
        body=body,
        record_count=header.record_count,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp_ms=header.base_timestamp_ms,
        append_time_ms=header.max_timestamp_ms if header.attributes & TIMESTAMP_TYPE_MASK else None,
        start_offset=start_offset,
        end_offset=end_offset,
    )


def check_offsets(header: BatchHeader) -> None:
    """Raise CorruptRecordError unless all offsets of the batch, and the one after it, are offsets."""
    if not 0 <= header.base_offset <= MAX_OFFSET - header.last_offset_delta - 1:
        raise CorruptRecordError(f"a record batch has the offsets {header.base_offset} to {header.last_offset}")

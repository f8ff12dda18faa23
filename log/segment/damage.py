"""Damage at rest: finding batches that are not what was written, and what of a segment is still sound round them.

A disk may change bytes that were whole once (bit rot; Bairavasundaram et al., "An Analysis of Data Corruption in the Storage
Stack", FAST 2008). The CRC covers a batch but for its base offset, length and leader epoch, so those are checked by what
stands round them. Nothing is changed here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..disk.files import AppendFile
from ..format.record_batch import (
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    BatchHeader,
    check_crc,
    iter_headers,
    read_header,
)
from ..vocabulary.errors import CorruptRecordError
from .offset_index import ENTRY

SCAN_BYTES = 1024 * 1024  # bytes of one read
MIN_COST_BYTES = 4096  # of a batch, however small: checking it takes about as long as reading this many bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """Offsets [first_offset, end_offset) of one segment cannot be read; they lie at [position, end_position) of its file."""

    path: str
    segment_base_offset: int
    first_offset: int
    end_offset: int
    position: int
    end_position: int

    def refusal(self) -> CorruptRecordError:
        return CorruptRecordError(
            f"offsets {self.first_offset} to {self.end_offset - 1} are damaged in {self.path} (bytes {self.position} to "
            f"{self.end_position - 1}); another replica repairs them if one is in sync, else go on at offset {self.end_offset}"
        )

    def __str__(self) -> str:
        return f"offsets {self.first_offset}..{self.end_offset - 1} of {self.path} at byte {self.position}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """A segment as it was at one moment, for a scan that may run in another thread."""

    file: AppendFile
    base_offset: int
    next_offset: int
    size_bytes: int
    index: bytes  # entries of the offset index: where batches begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """How far a scan has come, and the damage that ended it. `is_done`: the end of the segment is reached."""

    position: int
    next_offset: int
    damage: DamagedRange | None = None
    cost_bytes: int = 0  # what it took, for a throttle: a tiny batch costs time rather than bytes
    is_done: bool = False


def scan(view: SegmentView, *, position: int, next_offset: int, most_bytes: int = SCAN_BYTES) -> Scan:
    """Check the batches from `position` on, about `most_bytes` of them. Raises StorageError."""
    chunk = memoryview(view.file.read_at(position, min(most_bytes, SCAN_BYTES, view.size_bytes - position)))
    walked, batches = 0, 0
    for header in _sound_headers(chunk):
        if not next_offset <= header.base_offset < header.next_offset <= view.next_offset:
            break
        walked, next_offset, batches = walked + header.size_bytes, header.next_offset, batches + 1
    cost_bytes = max(walked, batches * MIN_COST_BYTES)
    if walked:
        position += walked
        return Scan(
            position=position, next_offset=next_offset, cost_bytes=cost_bytes, is_done=position >= view.size_bytes
        )
    large = _sound_batch(view, position, next_offset)  # perhaps larger than the chunk
    if large is not None:
        position += large.size_bytes
        return Scan(position=position, next_offset=large.next_offset, cost_bytes=large.size_bytes,
                    is_done=position >= view.size_bytes)  # fmt: skip
    damage = _measure(view, position, next_offset)
    return Scan(position=damage.end_position, next_offset=damage.end_offset, damage=damage, cost_bytes=len(chunk),
                is_done=damage.end_position >= view.size_bytes)  # fmt: skip


def _sound_headers(chunk: memoryview) -> Iterator[BatchHeader]:
    """Of the batches that are whole in the chunk, up to the first bad one."""
    try:
        yield from iter_headers(chunk, verify_crc=True)
    except CorruptRecordError:
        return


def scan_all(view: SegmentView, *, position: int, next_offset: int, end_position: int) -> Iterator[DamagedRange]:
    """All damage from `position` to about `end_position`."""
    while position < min(end_position, view.size_bytes):
        found = scan(view, position=position, next_offset=next_offset, most_bytes=end_position - position)
        position, next_offset = found.position, found.next_offset
        if found.damage is not None:
            yield found.damage


def _sound_batch(view: SegmentView, position: int, next_offset: int) -> BatchHeader | None:
    """The header of a whole batch at `position` that may follow one that ended before `next_offset`."""
    if position + HEADER_SIZE > view.size_bytes:
        return None
    head = view.file.read_at(position, HEADER_SIZE)
    size_bytes = LENGTH.unpack_from(head, LENGTH_POSITION)[0] + LOG_OVERHEAD
    if not HEADER_SIZE <= size_bytes <= view.size_bytes - position:
        return None
    batch = view.file.read_at(position, size_bytes)
    try:
        header = read_header(batch)
        check_crc(batch, header)
    except CorruptRecordError:
        return None
    return header if next_offset <= header.base_offset < header.next_offset <= view.next_offset else None


def _measure(view: SegmentView, position: int, next_offset: int) -> DamagedRange:
    """Up to the next batch that is sound: right behind, if the length was spared, or where the index knows one."""
    end_position, end_offset = view.size_bytes, view.next_offset
    for candidate in _candidates(view, position):
        header = _sound_batch(view, candidate, next_offset)
        if header is not None:
            end_position, end_offset = candidate, header.base_offset
            break
    return DamagedRange(
        path=view.file.path,
        segment_base_offset=view.base_offset,
        first_offset=next_offset,
        end_offset=max(end_offset, next_offset + 1),
        position=position,
        end_position=end_position,
    )


def _candidates(view: SegmentView, position: int) -> Iterator[int]:
    if position + HEADER_SIZE <= view.size_bytes:
        length = LENGTH.unpack_from(view.file.read_at(position, HEADER_SIZE), LENGTH_POSITION)[0]
        if length + LOG_OVERHEAD >= HEADER_SIZE:
            yield position + length + LOG_OVERHEAD
    for _, indexed in ENTRY.iter_unpack(view.index):
        if indexed > position:
            yield indexed


def range_of(damage: Sequence[DamagedRange], offset: int) -> DamagedRange | None:
    """The one that `offset` lies in."""
    return next((found for found in damage if found.first_offset <= offset < found.end_offset), None)

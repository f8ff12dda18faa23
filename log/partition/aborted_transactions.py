"""The aborted transactions of one log, from the indexes of its segments: read_committed consumers leave them out (KIP-98)."""

from itertools import islice

from ..segment.segment import FileSlice, LogRead, LogSegment, segment_holding
from ..segment.transaction_index import AbortedTransaction
from .log_segments import LogSegments


class AbortedTransactions:
    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments

    def between(self, first_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Those that a reader of [first_offset, end_offset) must know."""
        segments = self._segments
        found: list[AbortedTransaction] = []
        for segment in islice(segments.all, max(segment_holding(segments.all, first_offset), 0), None):
            index = segment.transaction_index
            if index.is_empty:
                continue
            if segment is not segments.active:
                segments.opened.used(segment)
            found += index.aborted_between(first_offset, end_offset)
            if index.is_complete_up_to(end_offset):
                break
        return tuple(found)

    def in_read(self, read: LogRead, offset: int) -> tuple[AbortedTransaction, ...]:
        """Those that a reader of these batches must know, which were read from `offset` on just now: of what was read, and not of
        all that was asked for."""
        found = read.slice
        if isinstance(found, bytes) or not found.size_bytes:
            return ()
        all_segments = self._segments.all
        for segment in islice(all_segments, max(segment_holding(all_segments, offset), 0), None):
            if segment.records.opened is found.file:
                return self.between(offset, _end_offset(segment, found))
        raise AssertionError(f"{found.file.path} is no segment of this log")


def _end_offset(segment: LogSegment, found: FileSlice) -> int:
    """Behind the last batch of a slice. The index leads near to that batch, if it is true."""
    start, end = found.position, found.position + found.size_bytes
    if segment.indexes.are_loaded:
        last_offset, position = segment.indexes.offsets.offset_before(end - 1)
        if position > start and segment.records.is_batch(position, last_offset=last_offset):
            start = position
    *_, last = segment.records.places(start, end)
    return last.last_offset + 1

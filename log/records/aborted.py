"""`AbortedFilter`: which batches of one fetch answer a read_committed reader leaves out (KIP-98). Pure.

The answer names the aborted transactions among its records: by the offset where each begins, and by its producer, which has no
other transaction before the abort marker. Without such a list, as for read_uncommitted, nothing is left out but the markers.
"""

from collections.abc import Iterable
from heapq import heapify, heappop
from typing import Self

from ..format.record_batch import BatchHeader, Buffer, check_crc
from ..format.record_codec import is_abort_marker


class AbortedFilter:
    """Asked for each batch of the answer, in order."""

    __slots__ = ("_aborting", "_upcoming")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted`: (producer id, first offset), in any order."""
        self._upcoming = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapify(self._upcoming)
        self._aborting: set[int] = set()  # producers of aborted transactions that have begun and not ended here

    def copy(self) -> Self:
        """As it is now: for a reader that may have to show batches once more."""
        other = type(self)(())
        other._upcoming = list(self._upcoming)
        other._aborting = set(self._aborting)
        return other

    def take(self, other: Self) -> None:
        """Become what the other is."""
        self._upcoming, self._aborting = other._upcoming, other._aborting

    def leaves_out(self, header: BatchHeader, buffer: Buffer) -> bool:
        """Whether the records of the batch that has this header in the buffer are not for the application. A batch of records may
        be shown twice. Raises CorruptRecordError for a damaged marker."""
        if not header.is_transactional:
            return header.is_control
        while self._upcoming and self._upcoming[0][0] <= header.last_offset:
            self._aborting.add(heappop(self._upcoming)[1])
        if not header.is_control:
            return header.producer_id in self._aborting
        if header.producer_id in self._aborting:
            check_crc(buffer, header)
            if is_abort_marker(memoryview(buffer)[header.position : header.position + header.size_bytes]):
                self._aborting.discard(header.producer_id)
        return True

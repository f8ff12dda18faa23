"""What the sealed segments of a log are together: their size, and which of them is the first that may hold a timestamp.

Sealed segments do not change, so it is worked out once after their list has changed, and then costs the same for ten segments
and for ten thousand.
"""

from bisect import bisect_left
from itertools import accumulate, islice

from ..format.record_batch import NO_TIMESTAMP
from ..format.record_codec import LookIntoBatch
from .open_segments import OpenSegments
from .segment import LogSegment, segment_holding


class SealedSegments:
    """Stands on the log's own list, of which the last one is not sealed. `changed` must follow each change of the list."""

    def __init__(self, segments: list[LogSegment]) -> None:
        self._segments = segments
        self._size_bytes: int | None = None
        self._largest_up_to: list[int] | None = (
            None  # the largest timestamp of this segment and all before it: it rises
        )

    def changed(self) -> None:
        self._size_bytes = self._largest_up_to = None

    @property
    def size_bytes(self) -> int:
        if self._size_bytes is None:
            self._size_bytes = sum(segment.size_bytes for segment in self._segments[:-1])
        return self._size_bytes

    @property
    def largest_timestamp_ms(self) -> int:
        largest = self._largest()
        return largest[-1] if largest else NO_TIMESTAMP

    def first_as_young(self, timestamp_ms: int) -> int:
        """The number of the first segment with a record that is at least so young; the active one when no sealed one is."""
        return bisect_left(self._largest(), timestamp_ms)

    def find_timestamp(
        self, timestamp_ms: int, *, from_offset: int, opened: OpenSegments, look: LookIntoBatch
    ) -> tuple[int, int] | None:
        """The (offset, timestamp) of the first record of the log, from an offset on, that is at least so young. What `look`
        raises passes."""
        first = max(self.first_as_young(timestamp_ms), segment_holding(self._segments, from_offset))
        for segment in islice(self._segments, first, None):
            if not segment.is_active:
                opened.used(segment)
            if segment.largest_timestamp[0] < timestamp_ms:
                continue
            for _, batch in segment.find_timestamp(timestamp_ms, from_offset=from_offset):
                found = look(batch, timestamp_ms, from_offset)
                if found is not None:
                    return found
        return None

    def _largest(self) -> list[int]:
        if self._largest_up_to is None:
            self._largest_up_to = list(accumulate((one.largest_timestamp[0] for one in self._segments[:-1]), max))
        return self._largest_up_to

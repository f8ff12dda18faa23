"""From a time to an offset, over the segments of a log."""

from collections.abc import Sequence

from .open_segments import OpenSegments
from .record_batch import NO_TIMESTAMP
from .record_codec import first_record_at_or_after
from .segment import LogSegment


def offset_for_timestamp(
    segments: Sequence[LogSegment], open_segments: OpenSegments, timestamp_ms: int, *, from_offset: int
) -> tuple[int, int] | None:
    """The (offset, timestamp) of the first record from `from_offset` on that is at least as young as `timestamp_ms`."""
    for segment in segments:
        if segment.next_offset <= from_offset:
            continue
        open_segments.used(segment)
        if segment.largest_timestamp[0] < timestamp_ms:
            continue
        for _, batch in segment.find_timestamp(timestamp_ms, from_offset=from_offset):
            found = first_record_at_or_after(batch, timestamp_ms, from_offset=from_offset)
            if found is not None:
                return found
    return None


def largest_timestamp_ms(segments: Sequence[LogSegment]) -> int | None:
    """None when no record has a timestamp."""
    largest_ms = max(segment.largest_timestamp[0] for segment in segments)
    return None if largest_ms == NO_TIMESTAMP else largest_ms

"""`Section`: the decompressed records of one batch with what its header says of them; `Span`: where one of them is. Pure."""

from typing import NamedTuple

from ..format.record_batch import Buffer


class Section(NamedTuple):
    """Only the records from `start_offset` on and before `end_offset` are wanted; all of them are checked."""

    body: Buffer
    record_count: int
    base_offset: int
    last_offset_delta: int
    base_timestamp_ms: int
    append_time_ms: int | None  # of all its records, if the broker set it
    start_offset: int
    end_offset: int


# Start (of its length), content (after its length), end, offset delta, timestamp in ms as readers see it, key, whether its
# value is null. A plain tuple, since compaction asks for one of every record.
Span = tuple[int, int, int, int, int, bytes | None, bool]

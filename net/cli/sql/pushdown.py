"""Which records a filter can mean: bounds of offset and time, and partitions, from an Arrow expression.

An expression cannot be taken apart, but Arrow can say that it contradicts a guarantee, as it does to leave files out of a scan.
So a bound is the largest one for which "all records are below it" contradicts the filter: a binary search finds it. Where Arrow
cannot tell, more records are read than needed; the filter itself is applied to all that are read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow
import pyarrow.dataset
import pyarrow.fs

from barnabas.net.client.arrow.tables import SCHEMA

# DuckDB takes a dictionary as an enumeration, whose values it asks for before the scan: a topic is plain text here. Most
# functions of times with a zone need an extension that DuckDB downloads: times are UTC without a zone.
ROWS: Final = SCHEMA.set(0, pyarrow.field("topic", pyarrow.string(), nullable=False)).set(
    SCHEMA.names.index("timestamp"), pyarrow.field("timestamp", pyarrow.timestamp("ms"), nullable=False)
)
MAX_OFFSET: Final = 2**62
MAX_TIME_MS: Final = 2**53  # Far beyond the year 9999; Arrow's cast to coarser or finer units must not overflow.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Records outside of these cannot pass the filter."""

    partitions: tuple[int, ...]
    start_offset: int
    end_offset: int | None  # exclusive; None: no bound
    start_ms: int | None  # the first time that can pass; later records may be earlier, so there is no end


def bounds_of(condition: Any, partitions: Sequence[int]) -> Bounds:
    """`condition`: an Arrow expression over the columns of a topic; None: no filter."""
    if condition is None:
        return Bounds(partitions=tuple(partitions), start_offset=0, end_offset=None, start_ms=None)
    field = pyarrow.dataset.field

    def is_excluded(guarantee: Any) -> bool:
        return _contradict(condition, guarantee)

    stamp = ROWS.field("timestamp").type
    start_ms = _last(lambda ms: is_excluded(field("timestamp") < pyarrow.scalar(ms, stamp)), MAX_TIME_MS)
    start = _last(lambda offset: is_excluded(field("offset") < offset), MAX_OFFSET)
    end = MAX_OFFSET - _last(lambda room: is_excluded(field("offset") >= MAX_OFFSET - room), MAX_OFFSET)
    return Bounds(
        partitions=tuple(
            number for number in partitions if not is_excluded(field("partition") == pyarrow.scalar(number, "int32"))
        ),
        start_offset=start,
        end_offset=None if end == MAX_OFFSET else end,
        start_ms=start_ms or None,
    )


def _last(holds: Callable[[int], bool], limit: int) -> int:
    """The last number up to the limit for which it holds; it holds up to some number, and 0 counts as one."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _contradict(condition: Any, guarantee: Any) -> bool:
    """No record for which the guarantee holds can pass the condition. The file is never opened: it has no other purpose."""
    kind = pyarrow.dataset.IpcFileFormat()
    fragment = kind.make_fragment("-", pyarrow.fs.LocalFileSystem(), partition_expression=guarantee)
    dataset = pyarrow.dataset.FileSystemDataset([fragment], ROWS, kind)
    return next(iter(dataset.get_fragments(filter=condition)), None) is None

"""Records as columns in the memory layout of Arrow. Pure values: buffers and counts; this package never imports pyarrow.

    pyarrow.Array.from_buffers(pyarrow.binary(), count, [column.validity, column.offsets, column.data])

Numbers are in the byte order of the machine. Source: Arrow columnar format, "Physical Memory Layout".
"""

from dataclasses import dataclass

from ..format.record_batch import Buffer
from ..vocabulary.errors import InvalidRecordError
from .refusals import negative_start


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryColumn:
    """Arrow's variable-size binary or UTF-8 layout. Row `i` is entry `first + i` of all three buffers.

    What `decode` returns has `first` 0 and offsets of 32 bits: a call decodes less than 2 GiB.
    """

    offsets: Buffer  # int32, or int64 with `is_large`; one more than there are rows
    data: Buffer
    validity: Buffer | None = None  # one bit per row, the lowest first; None: no row is null
    null_count: int = 0
    first: int = 0
    is_large: bool = False

    def check(self, count: int) -> None:
        """Raise InvalidRecordError if the buffers are too short for `count` rows. What the offsets say is checked by row."""
        rows = self.first + count
        width = 8 if self.is_large else 4
        if self.first < 0 or (count and _size(self.offsets) < (rows + 1) * width):
            raise _too_short("the offsets of a column", self.offsets, rows)
        if self.validity is not None and _size(self.validity) * 8 < rows:
            raise _too_short("the validity of a column", self.validity, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderColumn:
    """list<struct<key: utf8, value: binary>>. A record without headers has an empty list."""

    offsets: Buffer  # int32: where the headers of each record begin in `names` and `values`
    names: BinaryColumn
    values: BinaryColumn
    count: int  # of all headers together
    first: int = 0

    def check(self, count: int) -> None:
        """As that of `BinaryColumn`."""
        rows = self.first + count
        if self.first < 0 or (count and _size(self.offsets) < (rows + 1) * 4):
            raise _too_short("the offsets of the headers", self.offsets, rows)
        self.names.check(self.count)
        self.values.check(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The records of consecutive batches, and where the next call of `decode` begins."""

    count: int  # rows of every column
    offsets: Buffer  # int64, ascending
    timestamps_ms: Buffer  # int64
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn
    append_time_runs: tuple[tuple[bool, int], ...]  # (the broker set the timestamps, rows): all rows, in order
    next_offset: int  # after the last batch that was read; batches before it may have had no record
    consumed_bytes: int  # of the buffers: all batches that were read or passed over
    leader_epoch: int  # of the last of them; -1 if there was none


def check_input(
    count: int,
    columns: "tuple[BinaryColumn | HeaderColumn | None, ...]",
    timestamps_ms: int | Buffer,
    rows: Buffer | None,
    start: int,
) -> None:
    """Raise InvalidRecordError unless all buffers have `count` rows, and `start` is not negative."""
    for column in columns:
        if column is not None:
            column.check(count)
    if not isinstance(timestamps_ms, int) and _size(timestamps_ms) != count * 8:
        raise InvalidRecordError(
            f"{_size(timestamps_ms)} bytes of timestamps for {count} rows; int64 has 8 bytes for each"
        )
    if rows is not None and _size(rows) % 8:
        raise InvalidRecordError(f"{_size(rows)} bytes of row numbers; int64 has 8 bytes for each")
    if start < 0:
        raise negative_start(start)


def _size(buffer: Buffer) -> int:
    return memoryview(buffer).nbytes


def _too_short(what: str, buffer: Buffer, rows: int) -> InvalidRecordError:
    return InvalidRecordError(f"{what} have {_size(buffer)} bytes, too few for {rows} rows: pass whole Arrow buffers")

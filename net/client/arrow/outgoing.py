"""Rows of any Arrow table as columns to encode, and the partition of each row. No row becomes a Python object.

Use it only after `extra.require("pyarrow", ...)`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.compute as pc

from barnabas.log.records.codec import murmur2_column
from barnabas.log.records.columns import BinaryColumn, HeaderColumn

from ..connection.errors import InvalidRequestError
from ..connection.records import HEADER_OVERHEAD
from .json_rows import decoded, json_objects
from .tables import SCHEMA

MAX_ROWS = 131_072  # Of one piece: enough for large batches in many partitions.
MAX_PIECE_BYTES = 32 << 20  # Of one piece. Three exist at a time: as it came, as columns, encoded.
_POSITIVE = 0x7FFFFFFF  # Kafka's toPositive: the sign bit is cut off, not negated.
STICKY = -1  # Rows without a key and without a chosen partition.
_TIMESTAMP = pyarrow.timestamp("ms")
_HEADERS = SCHEMA.field("headers").type


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns of equal length, and which rows go to which partition."""

    count: int
    values: BinaryColumn
    keys: BinaryColumn | None
    headers: HeaderColumn | None
    timestamps_ms: memoryview | None
    groups: "list[tuple[int | None, memoryview | None]]"  # (partition or None: sticky, numbers of rows or None: all)
    largest_bytes: int  # of a row's key, value and headers together


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """Which columns of a table are what. `value`: one column, several that become a JSON object, or None: all others."""

    key: str | None = None
    value: str | Sequence[str] | None = None
    headers: str | None = None
    timestamp: str | None = None
    partition: int | str | None = None  # an int: of all rows

    def pieces(self, table: Any) -> "Iterator[pyarrow.RecordBatch]":
        """The rows of anything with the Arrow PyCapsule interface, in pieces. Raises InvalidRequestError."""
        reader = _stream(table)
        self._check_names(reader.schema.names)
        for batch in reader:
            rows = max(1, min(MAX_ROWS, batch.num_rows * MAX_PIECE_BYTES // max(batch.nbytes, 1)))
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def rows(self, piece: "pyarrow.RecordBatch", partition_count: int) -> Rows:
        """Raises InvalidRequestError for columns of other types, and for partitions that do not exist."""
        value = _as_binary("the values", self._values(piece))
        key = None if self.key is None else _as_binary(f"column {self.key!r}", piece[self.key])
        keys = None if key is None else _column(key)
        headers = None if self.headers is None else _as_headers(self.headers, piece[self.headers])
        return Rows(
            count=piece.num_rows,
            values=_column(value),
            keys=keys,
            headers=None if headers is None else _header_column(headers),
            timestamps_ms=None if self.timestamp is None else _timestamps(self.timestamp, piece[self.timestamp]),
            groups=self._groups(piece, key, keys, partition_count),
            largest_bytes=_largest_bytes(value, key, headers),
        )

    @property
    def _named(self) -> list[str]:
        chosen = self.partition if isinstance(self.partition, str) else None
        return [name for name in (self.key, self.headers, self.timestamp, chosen) if name is not None]

    def _check_names(self, names: Sequence[str]) -> None:
        values = [self.value] if isinstance(self.value, str) else list(self.value or ())
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequestError(f"the table has several columns {name!r}: rename all but one")
        for name in (*self._named, *values):
            if name not in names:
                raise InvalidRequestError(f"the table has no column {name!r}; its columns are {', '.join(names)}")
        if not [name for name in names if name not in self._named] and not values:
            raise InvalidRequestError("the table has no column for the values")

    def _values(self, piece: "pyarrow.RecordBatch") -> pyarrow.Array:
        if isinstance(self.value, str):
            return piece[self.value]
        names = list(self.value or (name for name in piece.schema.names if name not in self._named))
        if self.value is None and len(names) == 1 and _is_text(piece[names[0]].type):
            return piece[names[0]]
        return json_objects(names, [piece[name] for name in names])

    def _groups(
        self, piece: "pyarrow.RecordBatch", key: Any, keys: BinaryColumn | None, partition_count: int
    ) -> "list[tuple[int | None, memoryview | None]]":
        if isinstance(self.partition, int):
            return [(self.partition, None)]
        if self.partition is not None:
            numbers = _partitions(self.partition, piece[self.partition], partition_count)
        elif keys is None:
            return [(None, None)]
        else:
            numbers = _hashed(key, keys, partition_count)
        order = pc.array_sort_indices(numbers)  # Stable: rows of one partition stay in order.
        runs = pc.run_end_encode(numbers.take(order))
        positions = memoryview(order.buffers()[1])
        found: list[tuple[int | None, memoryview | None]] = []
        start = 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            found.append((None if number == STICKY else number, positions[8 * start : 8 * end]))
            start = end
        return found


def partitions_of_keys(keys: pyarrow.Array, partition_count: int) -> pyarrow.Array:
    """The partition of each key of a column of bytes or text, as int32; STICKY where it is null."""
    key = _as_binary("keys", keys)
    return _hashed(key, _column(key), partition_count)


def _hashed(key: pyarrow.Array, column: BinaryColumn, partition_count: int) -> pyarrow.Array:
    hashes = pyarrow.py_buffer(murmur2_column(column, len(key)))
    hashed = pyarrow.Array.from_buffers(pyarrow.int32(), len(key), [None, hashes])
    numbers = _modulo(pc.bit_wise_and(hashed, pyarrow.scalar(_POSITIVE, pyarrow.int32())), partition_count)
    return pc.if_else(key.is_valid(), numbers, pyarrow.scalar(STICKY, pyarrow.int32()))


def _stream(table: Any) -> "pyarrow.RecordBatchReader":
    wanted = "send_table takes Arrow tables and what has __arrow_c_stream__ (pyarrow, polars, pandas, DuckDB)"
    if not hasattr(table, "__arrow_c_stream__"):
        raise InvalidRequestError(f"{wanted}, not {type(table).__name__}")
    try:
        return pyarrow.RecordBatchReader.from_stream(table)
    except pyarrow.ArrowInvalid as error:  # A single column has the interface, too.
        raise InvalidRequestError(f"{wanted}; {type(table).__name__} is no table of columns: {error}") from error


def _modulo(numbers: pyarrow.Array, divisor: int) -> pyarrow.Array:
    count = pyarrow.scalar(divisor, pyarrow.int32())
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, count), count))


def _partitions(name: str, column: pyarrow.Array, partition_count: int) -> pyarrow.Array:
    if not pyarrow.types.is_integer(column.type) or column.null_count:
        raise InvalidRequestError(f"column {name!r} has the type {column.type}, or nulls: partitions are integers")
    bounds = pc.min_max(column).as_py()
    if not 0 <= bounds["min"] <= bounds["max"] < partition_count:
        raise InvalidRequestError(
            f"column {name!r} has partitions {bounds['min']} to {bounds['max']}; the topic has 0 to {partition_count - 1}"
        )
    return column.cast(pyarrow.int32())


def _is_text(kind: pyarrow.DataType) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return str(kind) in ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def _as_binary(what: str, column: pyarrow.Array) -> pyarrow.Array:
    if pyarrow.types.is_null(column.type):  # No value was there to tell another type.
        return column.cast(pyarrow.binary())
    if not _is_text(column.type):
        raise InvalidRequestError(
            f"{what} must be bytes or text, not {column.type}: cast them, or omit `value` to send rows as JSON"
        )
    column = decoded(column)
    return column.cast(pyarrow.large_binary()) if str(column.type).endswith("_view") else column


def _column(array: pyarrow.Array) -> BinaryColumn:
    validity, offsets, data = array.buffers()
    return BinaryColumn(
        offsets=offsets,
        data=b"" if data is None else data,
        validity=validity,
        null_count=array.null_count,
        first=array.offset,
        is_large=str(array.type).startswith("large_"),
    )


def _largest_bytes(value: pyarrow.Array, key: pyarrow.Array | None, headers: pyarrow.Array | None) -> int:
    sizes = _lengths(value)
    if key is not None:
        sizes = pc.add(sizes, _lengths(key))
    if headers is not None:
        sizes = pc.add(sizes, _header_sizes(headers))
    return pc.max(sizes).as_py() or 0


def _lengths(column: pyarrow.Array) -> pyarrow.Array:
    lengths = pc.binary_length(column).cast(pyarrow.int64())
    return pc.fill_null(lengths, 0) if column.null_count else lengths


def _header_sizes(column: pyarrow.Array) -> pyarrow.Array:
    """The bytes of the headers of each row. Only the pairs of these rows are looked at: a piece is a slice."""
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    pairs = column.values.slice(first, last - first)
    sizes = pc.add(pc.add(_lengths(pairs.field(0)), _lengths(pairs.field(1))), HEADER_OVERHEAD)
    before = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int64()), pc.cumulative_sum(sizes)])
    bounds = before.take(pc.subtract(offsets, first))
    return pc.subtract(bounds.slice(1), bounds.slice(0, len(column)))


def _timestamps(name: str, column: pyarrow.Array) -> memoryview:
    if column.null_count or not (pyarrow.types.is_timestamp(column.type) or pyarrow.types.is_integer(column.type)):
        raise InvalidRequestError(f"column {name!r} has the type {column.type}, or nulls: timestamps have none")
    try:
        if pyarrow.types.is_timestamp(column.type):
            kind = pyarrow.timestamp("ms", column.type.tz)
            column = pc.cast(
                column, options=pc.CastOptions(kind, allow_time_truncate=True)
            )  # What overflows is refused.
        stamps = column.cast(pyarrow.int64())
    except pyarrow.ArrowInvalid as error:
        raise InvalidRequestError(f"column {name!r} has times that are no milliseconds of 64 bits: {error}") from error
    return memoryview(stamps.buffers()[1])[8 * stamps.offset : 8 * (stamps.offset + len(stamps))]


def _as_headers(name: str, column: pyarrow.Array) -> pyarrow.Array:
    try:
        column = column if column.type == _HEADERS else column.cast(_HEADERS)
    except pyarrow.ArrowException as error:
        raise InvalidRequestError(f"column {name!r} has the type {column.type}; headers are {_HEADERS}") from error
    if column.null_count:
        column = pc.fill_null(column, pyarrow.scalar([], _HEADERS))
    check_header_names(name, column)
    return column


def check_header_names(name: str, column: pyarrow.Array) -> None:
    """Of the rows of a list column of structs whose first field is the name, and not of what a slice leaves out. Raises
    InvalidRequestError."""
    pairs = column.flatten()
    if pairs.null_count or pairs.field(0).null_count:
        raise InvalidRequestError(f"column {name!r} has a header without a name: leave it out, or name it")


def _header_column(column: pyarrow.Array) -> HeaderColumn:
    pairs = column.values
    names, values = pairs.field(0), pairs.field(1)  # They begin and end where the pairs do.
    return HeaderColumn(
        offsets=column.buffers()[1],
        names=_column(names) if len(names) else _NO_CELLS,
        values=_column(values) if len(values) else _NO_CELLS,
        count=len(pairs),
        first=column.offset,
    )


_NO_CELLS = BinaryColumn(offsets=bytes(4), data=b"")

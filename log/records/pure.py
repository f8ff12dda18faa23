"""The records in a batch, read and written in Python: the specification of `_native`, and what runs where that was not built.

Both modules have the same names, results and errors; `codec` picks one. A record: length varint, attributes 0, timestamp delta
varint, offset delta varint, key and value with their lengths as varints (-1 for null), count of headers, headers.
"""

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import index, itemgetter
from typing import Any, Final, NamedTuple, NoReturn, Protocol, Self, TypeVar

from ..format.compression import Compression, compress
from ..format.record_batch import HEADER_SIZE, TRANSACTIONAL_MASK, Buffer
from ..format.record_codec import MAX_RECORDS_PER_BATCH, NOT_IDEMPOTENT, Headers, ProducerFields, seal_batch
from ..format.varint import VarintTable
from ..vocabulary.murmur2 import murmur2, murmur2_positive
from . import refusals
from .columns import BinaryColumn, HeaderColumn, check_input
from .faults import Fault, damaged
from .section import Section, Span

_MIN_I64: Final = -(2**63)
_MAX_I64: Final = 2**63 - 1
_CONTINUES: Final = 0x80
_LAST_SHIFT: Final = 63  # Of the tenth byte of a number, which has one bit left.
_MIN_HEADER_BYTES: Final = 2  # The lengths of its name and its value.
INTERFACE: Final = 6  # Of this module and its twin: one more with each change of a name, an argument or a result.
MAX_BATCH_BYTES: Final = 2**31 - 1  # Its length is an i32.
_BOUNDS: Final = struct.Struct("=2i")
_LARGE_BOUNDS: Final = struct.Struct("=2q")
_VARINTS = VarintTable()
SomeReceipt = TypeVar("SomeReceipt", bound="Receipt")


class RecordView(tuple[Any, ...]):
    """One record, from the sequence (offset, timestamp_ms, key, value, headers). The compiled twin decodes fields when they are
    read, and keeps the bytes of its batch alive."""

    __slots__ = ()
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def __new__(cls, fields: Sequence[Any]) -> Self:
        return tuple.__new__(cls, fields)


for _number, _name in enumerate(("offset", "timestamp_ms", "key", "value", "headers")):
    setattr(RecordView, _name, property(itemgetter(_number)))


# --- reading ---


class _Unreadable(Exception):
    def __init__(self, fault: Fault, position: int) -> None:
        super().__init__(fault, position)
        self.fault = fault
        self.position = position


class _Parsed(NamedTuple):
    content: int
    end: int
    offset_delta: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def _records(section: Section) -> Iterator[_Parsed]:
    """All records of a section, each checked. Raises DamagedRecordsError."""
    body = memoryview(section.body).cast("B")
    position = number = 0
    previous_delta = -1
    try:
        while number < section.record_count:
            length, at = _varint(body, position, len(body))
            if not 0 <= length <= len(body) - at:
                raise _Unreadable(Fault.RECORD_BEYOND_BATCH, position)
            end = at + length
            record = _record(body, at, end, section, previous_delta)
            previous_delta = record.offset_delta
            yield record
            position = end
            number += 1
        if position != len(body):
            raise _Unreadable(Fault.BYTES_LEFT, position)
    except _Unreadable as found:
        raise damaged(found.fault, section.base_offset, number, found.position) from None


def _record(body: memoryview, content: int, end: int, section: Section, previous_delta: int) -> _Parsed:
    if content == end:
        raise _Unreadable(Fault.EMPTY_RECORD, content)
    delta_ms, after = _varint(body, content + 1, end)  # after the attributes, which are not used
    timestamp_ms = section.base_timestamp_ms + delta_ms
    if not _MIN_I64 <= timestamp_ms <= _MAX_I64:
        raise _Unreadable(Fault.TIMESTAMP_RANGE, content + 1)
    offset_delta, at = _varint(body, after, end)
    if not previous_delta < offset_delta <= section.last_offset_delta:
        raise _Unreadable(Fault.OFFSET_ORDER, after)
    key, at = _field(body, at, end)
    value, at = _field(body, at, end)
    count, after = _varint(body, at, end)
    if not 0 <= count <= (end - after) // _MIN_HEADER_BYTES:
        raise _Unreadable(Fault.HEADER_COUNT, at)
    at = after
    headers = []
    for _ in range(count):
        name, after = _field(body, at, end)
        if name is None:
            raise _Unreadable(Fault.NO_HEADER_NAME, at)
        data, at = _field(body, after, end)
        headers.append((name, data))
    if at != end:
        raise _Unreadable(Fault.RECORD_NOT_FILLED, at)
    if section.append_time_ms is not None:
        timestamp_ms = section.append_time_ms
    return _Parsed(content, end, offset_delta, timestamp_ms, key, value, tuple(headers))


def _field(body: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    length, after = _varint(body, at, end)
    if length < 0:
        return None, after
    if length > end - after:
        raise _Unreadable(Fault.FIELD_BEYOND_RECORD, at)
    return bytes(body[after : after + length]), after + length


def _varint(body: memoryview, at: int, end: int) -> tuple[int, int]:
    """A zigzag number of up to 64 bits, and the position after it."""
    first = at
    shift = rest = 0
    while at < end:
        byte = body[at]
        at += 1
        if shift == _LAST_SHIFT and byte > 1:
            raise _Unreadable(Fault.LONG_NUMBER, first)
        rest |= (byte & 0x7F) << shift
        if byte < _CONTINUES:
            return (rest >> 1) ^ -(rest & 1), at
        shift += 7
    raise _Unreadable(Fault.CUT_NUMBER, first)


def _text(name: bytes) -> str:
    """As Java's clients do with a header's name that is not UTF-8."""
    return name.decode(errors="replace")


def read_records(section: Section, record_type: type[RecordView]) -> list[RecordView]:
    """The wanted records of a section. Raises DamagedRecordsError."""
    return [
        record_type(
            (
                section.base_offset + record.offset_delta,
                record.timestamp_ms,
                record.key,
                record.value,
                tuple((_text(name), value) for name, value in record.headers),
            )
        )
        for record in _records(section)
        if section.start_offset <= section.base_offset + record.offset_delta < section.end_offset
    ]


def read_spans(section: Section) -> list[Span]:
    """Where each record is, wanted or not. Raises DamagedRecordsError."""
    records = list(_records(section))
    starts = (0, *(record.end for record in records))
    return [(start, *record[:5], record.value is None) for start, record in zip(starts, records, strict=False)]


def read_lists(section: Section) -> tuple[list[int], list[int], list[bytes | None], list[bytes | None]]:
    """Offsets, timestamps, keys and values of the wanted records, as lists. Raises DamagedRecordsError."""
    records = [
        record
        for record in _records(section)
        if section.start_offset <= section.base_offset + record.offset_delta < section.end_offset
    ]
    return (
        [section.base_offset + record.offset_delta for record in records],
        [record.timestamp_ms for record in records],
        [record.key for record in records],
        [record.value for record in records],
    )


class _Cells:
    """A binary column that grows."""

    def __init__(self) -> None:
        self._cells: list[bytes | None] = []

    def __len__(self) -> int:
        return len(self._cells)

    def append(self, cell: bytes | None) -> None:
        self._cells.append(cell)

    def column(self) -> BinaryColumn:
        offsets = array("i", [0])
        for cell in self._cells:
            offsets.append(offsets[-1] + len(cell or b""))
        nulls = sum(cell is None for cell in self._cells)
        bits = bytearray((len(self._cells) + 7) // 8)
        for row, cell in enumerate(self._cells):
            bits[row >> 3] |= (cell is not None) << (row & 7)
        return BinaryColumn(
            offsets=offsets.tobytes(),
            data=b"".join(cell for cell in self._cells if cell is not None),
            validity=bytes(bits) if nulls else None,
            null_count=nulls,
        )


class ColumnBuilder:
    """Columns of the records of several sections. `max_rows` and `max_bytes` are upper bounds of what is added."""

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self._rows_left = max_rows
        self._bytes_left = max_bytes
        self._offsets = array("q")
        self._timestamps = array("q")
        self._keys, self._values = _Cells(), _Cells()
        self._header_offsets = array("i", [0])
        self._names, self._header_values = _Cells(), _Cells()

    @property
    def count(self) -> int:
        return len(self._offsets)

    def add(self, section: Section) -> int:
        """Append the wanted records; returns their number. Raises DamagedRecordsError, and then has appended none."""
        assert section.record_count <= self._rows_left
        assert len(section.body) <= self._bytes_left
        records = [
            record
            for record in _records(section)
            if section.start_offset <= section.base_offset + record.offset_delta < section.end_offset
        ]
        self._rows_left -= section.record_count
        self._bytes_left -= len(section.body)
        for record in records:
            self._offsets.append(section.base_offset + record.offset_delta)
            self._timestamps.append(record.timestamp_ms)
            self._keys.append(record.key)
            self._values.append(record.value)
            for name, value in record.headers:
                self._names.append(_text(name).encode())
                self._header_values.append(value)
            self._header_offsets.append(len(self._names))
        return len(records)

    def finish(self) -> tuple[Buffer, Buffer, BinaryColumn, BinaryColumn, HeaderColumn]:
        """Offsets, timestamps, keys, values and headers. The builder is used up."""
        assert self._bytes_left >= 0, "columns are finished once"
        self._rows_left = self._bytes_left = -1
        headers = HeaderColumn(
            offsets=self._header_offsets.tobytes(),
            names=self._names.column(),
            values=self._header_values.column(),
            count=len(self._names),
        )
        return (
            self._offsets.tobytes(),
            self._timestamps.tobytes(),
            self._keys.column(),
            self._values.column(),
            headers,
        )


# --- writing ---


class Receipt:
    """Where a record went: a batch, by the name that its owner gives it, and the record's number there."""

    __slots__ = ("batch", "position")

    def __init__(self, batch: Any, position: int) -> None:
        self.batch = batch
        self.position = position


class PassTime:
    """The wall time for all records of one pass of the event loop; 0: it was not read in this pass."""

    __slots__ = ("now_ms",)

    def __init__(self) -> None:
        self.now_ms = 0


class Owner(Protocol):
    """Of an accumulator that takes records at the time of a pass."""

    def restamp(self, stamp_ms: int) -> None:
        """The records that follow have this timestamp. Sets `stamp_ms` of the accumulator."""


class Accumulator:
    """Records that are encoded as they arrive, into a batch of at most `limit_bytes` before compression.

    A first record is taken whatever its size. Timestamps are relative to `base_timestamp_ms`, or else to the first one.
    """

    def __init__(self, limit_bytes: int, base_timestamp_ms: int | None = None) -> None:
        self._limit_bytes = min(limit_bytes, MAX_BATCH_BYTES)
        self._base_ms = base_timestamp_ms
        self._max_ms = -1
        self._records: list[bytes] = []
        self._owner: Owner | None = None
        self.stamp_ms = 0  # of the owner
        self.count = 0
        self.size_bytes = HEADER_SIZE  # of the batch, uncompressed

    def raise_limit(self, limit_bytes: int) -> None:
        """Make room for more records; a lower limit than before has no effect, nor has any once the batch is sealed."""
        if self._records or not self.count:
            self._limit_bytes = min(max(limit_bytes, self._limit_bytes), MAX_BATCH_BYTES)

    def append(
        self, value: bytes | None, key: bytes | None = None, headers: Headers = (), timestamp_ms: int = -1
    ) -> int:
        """Returns the record's number in the batch, or -1 if the batch has no room for it.

        Raises TypeError for anything but bytes, InvalidRecordError for a timestamp before -1 or of more than 64 bits.
        """
        timestamp_ms = _checked_stamp(timestamp_ms)
        fields = encoded_fields(key, value, headers)
        base_ms = timestamp_ms if self._base_ms is None else self._base_ms
        if timestamp_ms - base_ms > _MAX_I64:
            raise refusals.too_far_apart(base_ms, timestamp_ms)
        body = b"".join(
            (
                b"\x00",
                _VARINTS[timestamp_ms - base_ms],
                _VARINTS[self.count],
                fields,
            )
        )
        record = _VARINTS[len(body)] + body
        size_bytes = self.size_bytes + len(record)
        if self.count and (size_bytes > self._limit_bytes or self.count >= MAX_RECORDS_PER_BATCH):
            return -1
        if size_bytes > MAX_BATCH_BYTES:
            raise refusals.too_large(len(record))
        self._base_ms = base_ms
        self._max_ms = max(self._max_ms, timestamp_ms)
        self._records.append(record)
        self.size_bytes = size_bytes
        self.count += 1
        return self.count - 1

    def append_for(
        self,
        receipt_type: type[SomeReceipt],
        batch: object,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> SomeReceipt | None:
        """As `append`; returns a receipt for the record in `batch`, None if there is no room."""
        position = self.append(value, key, headers, timestamp_ms)
        return None if position < 0 else receipt_type(batch, position)

    def belong_to(self, owner: Owner, receipt_type: "type[Receipt]", time: PassTime, stamp_ms: int) -> None:
        """What `take` needs: the batch that receipts name, their type, and the time of the records that follow."""
        if not issubclass(receipt_type, Receipt):
            raise TypeError(f"{receipt_type.__name__} is not a Receipt")
        self._owner, self._receipt_type, self._time, self.stamp_ms = owner, receipt_type, time, stamp_ms

    def take(self, value: bytes | None, key: bytes | None = None) -> Any:
        """As `append_for`, for a record of bytes at the time of this pass. None, too, if it is another record, or the time is not
        known. Tells the owner of a new time: `owner.restamp(now_ms)`."""
        if self._owner is None or not (now_ms := self._time.now_ms):
            return None
        if type(value) is not bytes or not (key is None or type(key) is bytes):
            return None
        if now_ms != self.stamp_ms:
            self._owner.restamp(now_ms)
        return self.append_for(self._receipt_type, self._owner, value, key, (), now_ms)

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        timestamps_ms: int | Sequence[int] = -1,
        start: int = 0,
        rows: Sequence[int] | None = None,
    ) -> int:
        """Append the rows from `start` on until the batch is full; returns how many it took. `rows` picks and orders rows, and
        `start` counts in it. Raises InvalidRecordError for a negative `start`."""
        if start < 0:
            raise refusals.negative_start(start)
        chosen = range(len(values)) if rows is None else rows
        if isinstance(timestamps_ms, int) and start < len(chosen):
            _checked_stamp(timestamps_ms)
        for position in range(start, len(chosen)):
            row = chosen[position]
            stamp = timestamps_ms if isinstance(timestamps_ms, int) else _checked_stamp(timestamps_ms[row])
            key = None if keys is None else keys[row]
            if self.append(values[row], key, () if headers is None else headers[row], stamp) < 0:
                return position - start
        return max(len(chosen) - start, 0)

    def extend_columns(
        self,
        count: int,
        values: BinaryColumn | None,
        keys: BinaryColumn | None = None,
        headers: HeaderColumn | None = None,
        timestamps_ms: int | Buffer = -1,
        rows: Buffer | None = None,
        start: int = 0,
    ) -> int:
        """As `extend`, from `count` rows in Arrow's layout; None is a column of nulls. `rows` (int64) picks and orders rows, and
        `start` counts in it. Raises InvalidRecordError for offsets or rows that are out of range, and for a negative `start`."""
        check_input(count, (values, keys, headers), timestamps_ms, rows, start)
        chosen: Sequence[int] = range(count) if rows is None else memoryview(rows).cast("B").cast("q")
        stamps = None if isinstance(timestamps_ms, int) else memoryview(timestamps_ms).cast("B").cast("q")
        for position in range(start, len(chosen)):
            row = chosen[position]
            if not 0 <= row < count:
                raise refusals.no_such_row(row, count)
            stamp = timestamps_ms if isinstance(timestamps_ms, int) else (stamps or ())[row]
            record = (_cell(values, row), _cell(keys, row), _headers_at(headers, row))
            if self.append(*record, stamp) < 0:
                return position - start
        return max(len(chosen) - start, 0)

    def seal(self, compression: Compression = Compression.NONE, producer: ProducerFields = NOT_IDEMPOTENT) -> bytes:
        """The batch, with base offset 0. The accumulator takes no more records."""
        assert self._records, "a batch is sealed once, with at least one record"
        assert self._base_ms is not None
        body = b"".join(self._records)
        self._records = []
        self._limit_bytes = 0
        if compression:
            body = compress(body, compression)
        attributes = compression | (TRANSACTIONAL_MASK if producer.is_transactional else 0)
        return seal_batch(body, self.count, attributes, self._base_ms, self._max_ms, producer)


def _checked_stamp(timestamp_ms: int) -> int:
    stamp = index(timestamp_ms)
    if not -1 <= stamp <= _MAX_I64:
        raise refusals.timestamp(stamp)
    return stamp


def encoded_fields(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """The part of a record from its key on."""
    parts = [*_encoded(key), *_encoded(value)]
    pairs = [(*_encoded(_header_name(name)), *_encoded(data)) for name, data in headers or ()]
    return b"".join((*parts, _VARINTS[len(pairs)], *chain.from_iterable(pairs)))


def _encoded(data: bytes | None) -> tuple[bytes, bytes]:
    if data is None:
        return b"\x01", b""
    if not isinstance(data, bytes):
        raise refusals.not_bytes(data)
    return _VARINTS[len(data)], data


def _header_name(name: str) -> bytes:
    if not isinstance(name, str):
        raise refusals.not_text(name)
    return str.encode(name)  # Not what a subclass makes of it.


def _cell(column: BinaryColumn | None, row: int) -> bytes | None:
    if column is None:
        return None
    row += column.first
    if column.validity is not None and not memoryview(column.validity).cast("B")[row >> 3] >> (row & 7) & 1:
        return None
    start, end = (_LARGE_BOUNDS if column.is_large else _BOUNDS).unpack_from(
        column.offsets, row * (4, 8)[column.is_large]
    )
    data = memoryview(column.data).cast("B")
    if not 0 <= start <= end <= len(data):
        raise refusals.cell_out_of_range(row, start, end, len(data))
    return bytes(data[start:end])


def _headers_at(column: HeaderColumn | None, row: int) -> list[tuple[str, bytes | None]]:
    if column is None:
        return []
    start, end = _BOUNDS.unpack_from(column.offsets, 4 * (row + column.first))
    if not 0 <= start <= end <= column.count:
        raise refusals.headers_out_of_range(row, start, end, column.count)
    return [((_cell(column.names, entry) or b"").decode(), _cell(column.values, entry)) for entry in range(start, end)]


def murmur2_column(column: BinaryColumn, count: int) -> Buffer:
    """The hash of every row as int32; that of a null is 0. Raises InvalidRecordError for offsets that are out of range."""
    column.check(count)
    cells = (_cell(column, row) for row in range(count))
    return array("i", [0 if cell is None else murmur2(cell) for cell in cells]).tobytes()


def largest(column: Sequence[bytes | None]) -> int:
    """The size of the largest value; 0 without any. Raises TypeError for anything but bytes and None."""
    for cell in column:
        if cell is not None and not isinstance(cell, bytes):
            raise refusals.not_bytes(cell)
    return max((len(cell) for cell in column if cell is not None), default=0)


def rows_by_partition(keys: Sequence[bytes | None], partition_count: int) -> list[list[int]]:
    """The rows of each partition in Kafka's default partitioner, and last the rows without a key."""
    if partition_count < 1:
        raise ZeroDivisionError(f"{partition_count} partitions")
    rows: list[list[int]] = [[] for _ in range(partition_count + 1)]
    partitions: dict[bytes | None, int] = {None: partition_count}
    for row, key in enumerate(keys):
        partition = partitions.get(key)
        if partition is None:
            partition = partitions[key] = murmur2_positive(key or b"") % partition_count
        rows[partition].append(row)
    return rows


# --- single records on their way into open batches ---


class Ready:
    """A coroutine that is complete: to await it gives its result at once."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self._result = result

    def __await__(self) -> Self:
        return self

    __iter__ = __await__

    def __next__(self) -> NoReturn:
        raise StopIteration(self._result)

    def send(self, value: Any) -> NoReturn:
        raise StopIteration(self._result)

    def throw(self, kind: Any, error: Any = None, traceback: Any = None) -> NoReturn:
        raise kind if error is None else error

    def close(self) -> None:
        pass


class Intake:
    """The short way of a usual record into the open batch of its topic or key. `later(topic, value, key, headers, partition,
    timestamp_ms)` is a coroutine, for all others."""

    __slots__ = ("_later", "_open_batches", "_topics", "is_behind")

    def __init__(self, open_batches: dict[str, Any], topics: dict[str, Any], later: Callable[..., Any]) -> None:
        self._open_batches, self._topics, self._later = open_batches, topics, later
        self.is_behind = False  # A call of `later` has not begun: a record after it must not overtake it.

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        """Take the record now if a batch is open for it. What is returned must be awaited, and gives the receipt."""
        if not self.is_behind and partition is None and headers is None and timestamp_ms is None:
            batch = self._open_batches.get(topic) if key is None else self._batch_of(topic, key)
            if batch is not None and type(batch.records) is Accumulator:
                receipt = batch.records.take(value, key)
                if receipt is not None:
                    return Ready(receipt)
        self.is_behind = True
        return self._later(topic, value, key, headers, partition, timestamp_ms)

    def _batch_of(self, topic: str, key: Any) -> Any:
        state = self._topics.get(topic) if type(key) is bytes else None
        queue = None if state is None else state.by_key.get(key)
        return None if queue is None else queue.open

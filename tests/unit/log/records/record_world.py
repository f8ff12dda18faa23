"""Both implementations, strategies for records, and columns as plain values."""

from array import array
from struct import pack_into
from types import ModuleType
from typing import Any, NamedTuple

from crc32c import crc32c
from hypothesis import strategies as st

from barnabas.log.format.record_batch import NO_PRODUCER_ID, patch
from barnabas.log.format.record_codec import Headers, ProducerFields, encode_batch, iter_records, seal_batch
from barnabas.log.records import pure
from barnabas.log.records.codec import compiled
from barnabas.log.records.columns import BinaryColumn, Columns, HeaderColumn

NOW_MS = 1_700_000_000_000

data = st.one_of(st.binary(max_size=30), st.sampled_from([b"x" * n for n in (62, 63, 64, 65, 8190, 8192)]))
optional_data = st.one_of(st.none(), data)
stamps = st.one_of(st.integers(0, 2**41), st.integers(NOW_MS, NOW_MS + 200), st.sampled_from([-1, 0, 2**63 - 2, 2**62]))
headers = st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=8))), max_size=3)
record_rows = st.lists(st.tuples(stamps, optional_data, optional_data, headers), min_size=1, max_size=70)


class RecordColumns(NamedTuple):
    """The records of a batch as columns of equal length."""

    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]


def decode_columns(batch: bytes, *, check: bool = True) -> RecordColumns:
    """By the reader of a broker, which shares nothing with `log.records`."""
    records = list(iter_records(batch, check=check))
    return RecordColumns(
        offsets=[record.offset for record in records],
        timestamps_ms=[record.timestamp_ms for record in records],
        keys=[record.key for record in records],
        values=[record.value for record in records],
        headers=[record.headers for record in records],
    )


def implementations() -> list[ModuleType]:
    native = compiled()
    return [pure] if native is None else [pure, native]


def batch_at(offset: int, values: list[bytes | None], **options: Any) -> bytes:
    """A batch as a leader appends it."""
    batch = bytearray(encode_batch(values, **{"timestamps_ms": NOW_MS, **options}))
    patch(batch, 0, base_offset=offset, leader_epoch=7)
    return bytes(batch)


def marker_at(offset: int, *, producer_id: int, is_abort: bool) -> bytes:
    """A control batch at the end of a transaction."""
    kind = b"\x00" if is_abort else b"\x01"
    body = encode_batch([b"\x00" * 6], keys=[b"\x00\x00\x00" + kind], timestamps_ms=NOW_MS)[61:]
    batch = bytearray(seal_batch(body, 1, 0x30, NOW_MS, NOW_MS, ProducerFields(producer_id=producer_id)))
    patch(batch, 0, base_offset=offset, leader_epoch=7)
    return bytes(batch)


def forged(
    body: bytes, count: int, *, base_ms: int = 0, attributes: int = 0, last_offset_delta: int | None = None
) -> bytes:
    """A batch with a right CRC round any bytes, as a hostile client sends them."""
    batch = bytearray(seal_batch(body, count, attributes, base_ms, base_ms, ProducerFields(producer_id=NO_PRODUCER_ID)))
    if last_offset_delta is not None:
        pack_into(">i", batch, 23, last_offset_delta)
        pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def cells(column: BinaryColumn, count: int) -> list[bytes | None]:
    bounds = memoryview(column.offsets).cast("B").cast("i")
    assert len(bounds) == count + 1
    content = memoryview(column.data).cast("B")
    assert bounds[count] == len(content)
    bits = None if column.validity is None else memoryview(column.validity).cast("B")
    assert bits is None or len(bits) == (count + 7) // 8
    found = [
        None
        if bits is not None and not bits[row >> 3] >> (row & 7) & 1
        else bytes(content[bounds[row] : bounds[row + 1]])
        for row in range(count)
    ]
    assert found.count(None) == column.null_count
    return found


def header_rows(column: HeaderColumn, count: int) -> list[list[tuple[str, bytes | None]]]:
    bounds = memoryview(column.offsets).cast("B").cast("i")
    names, values = cells(column.names, column.count), cells(column.values, column.count)
    pairs = [((name or b"").decode(), value) for name, value in zip(names, values, strict=True)]
    return [pairs[bounds[row] : bounds[row + 1]] for row in range(count)]


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    """(offset, timestamp, key, value, headers) of every row."""
    count = columns.count
    offsets = memoryview(columns.offsets).cast("B").cast("q").tolist()
    stamps_ms = memoryview(columns.timestamps_ms).cast("B").cast("q").tolist()
    return list(
        zip(
            offsets,
            stamps_ms,
            cells(columns.keys, count),
            cells(columns.values, count),
            header_rows(columns.headers, count),
            strict=True,
        )
    )


def binary_column(values: list[bytes | None], *, is_large: bool = False, skip: int = 0) -> BinaryColumn:
    """As Arrow lays it out; with `skip` rows before the first, as in a slice."""
    padded = [b"skipped"] * skip + values
    offsets = array("q" if is_large else "i", [0])
    for value in padded:
        offsets.append(offsets[-1] + len(value or b""))
    bits = bytearray((len(padded) + 7) // 8)
    for row, value in enumerate(padded):
        bits[row >> 3] |= (value is not None) << (row & 7)
    return BinaryColumn(
        offsets=offsets.tobytes(),
        data=b"".join(value or b"" for value in padded),
        validity=bytes(bits) if None in values else None,
        null_count=values.count(None),
        first=skip,
        is_large=is_large,
    )


def header_column(rows: list[list[tuple[str, bytes | None]]], *, skip: int = 0) -> HeaderColumn:
    offsets = array("i", [0] * (skip + 1))
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    pairs = [pair for row in rows for pair in row]
    return HeaderColumn(
        offsets=offsets.tobytes(),
        names=binary_column([name.encode() for name, _ in pairs]),
        values=binary_column([value for _, value in pairs]),
        count=len(pairs),
        first=skip,
    )

"""Records inside of a batch v2, for the few that a broker writes and looks at. Many records are the affair of `log.records`.

A record: length varint, attributes 0, timestamp delta varint, offset delta varint, key and value with their lengths as
varints (-1 for null), count of headers, headers.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from ..vocabulary.errors import CorruptRecordError, InvalidRecordError
from .compression import Compression, compress, compression_of, decompress
from .record_batch import (
    ATTRIBUTES_POSITION,
    CONTROL_MASK,
    CRC_COVERS_FROM,
    CRC_POSITION,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    PRODUCER_POSITION,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    check_crc,
    read_header,
)
from .record_check import PAUSE_AFTER, no_pause
from .varint import VarintTable, decode_varint

# (batch, timestamp in ms, offset) -> (offset, timestamp in ms) of its first record at or after both.
LookIntoBatch = Callable[[Buffer, int, int], tuple[int, int] | None]
Headers = Sequence[tuple[str, bytes | None]]
MAX_RECORDS_PER_BATCH = 2**20  # offset deltas of up to three bytes; batches are cut by size long before
_NULL = b"\x01"  # the varint of -1
_MARKER_KEY = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_MARKER_VERSION = 0
_ABORT, _COMMIT = 0, 1
_UNKNOWN_EPOCH = -1
_PRODUCER = struct.Struct(">qhi")
_CRC = struct.Struct(">I")

_LENGTHS = VarintTable()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFields:
    """The fields of an idempotent or transactional producer in the header of a batch."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False


class PlainRecord(NamedTuple):
    """One record of a batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class EndMarker(NamedTuple):
    """The record of a control batch that ends a transaction (KIP-98)."""

    is_commit: bool
    coordinator_epoch: int  # of the transaction coordinator that decided; -1 when the marker does not say


NOT_IDEMPOTENT = ProducerFields()


# --- encoding ---


def encode_batch(
    values: Sequence[bytes | None],
    *,
    timestamps_ms: int | Sequence[int],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    compression: Compression = Compression.NONE,
    producer: ProducerFields = NOT_IDEMPOTENT,
) -> bytes:
    """Return one batch with base offset 0. Columns have equal lengths; one timestamp may be given for all.

    Raises InvalidRecordError for columns of different lengths.
    """
    count = len(values)
    if not 0 < count <= MAX_RECORDS_PER_BATCH:
        raise InvalidRecordError(f"a batch must have 1 to {MAX_RECORDS_PER_BATCH} records, not {count}")
    one_timestamp = timestamps_ms if isinstance(timestamps_ms, int) else None
    for column in (keys, headers, None if isinstance(timestamps_ms, int) else timestamps_ms):
        if column is not None and len(column) != count:
            raise InvalidRecordError(f"a column has {len(column)} entries for {count} values")
    stamps = timestamps_ms if not isinstance(timestamps_ms, int) else ()
    base_ms = one_timestamp if one_timestamp is not None else min(stamps)
    largest_ms = one_timestamp if one_timestamp is not None else max(stamps)
    deltas = None if base_ms == largest_ms else [stamp - base_ms for stamp in stamps]
    body = _encode_records(keys, values, deltas, headers)
    if compression:
        body = compress(body, compression)
    attributes = compression | (TRANSACTIONAL_MASK if producer.is_transactional else 0)
    return seal_batch(body, count, attributes, base_ms, largest_ms, producer)


def encode_marker(
    *, producer_id: int, producer_epoch: int, is_commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """The control batch that ends the producer's transaction in a partition, with base offset 0."""
    key = _MARKER_KEY.pack(_MARKER_VERSION, _COMMIT if is_commit else _ABORT)
    body = _encode_records([key], [_MARKER_VALUE.pack(_MARKER_VERSION, coordinator_epoch)], None, None)
    producer = ProducerFields(producer_id=producer_id, producer_epoch=producer_epoch)
    return seal_batch(body, 1, TRANSACTIONAL_MASK | CONTROL_MASK, timestamp_ms, timestamp_ms, producer)


def number_batch(batch: bytes, producer: ProducerFields) -> bytes:
    """The same batch with another producer id, epoch and sequence, transactional or not."""
    numbered = bytearray(batch)
    numbered[ATTRIBUTES_POSITION] &= ~TRANSACTIONAL_MASK
    if producer.is_transactional:
        numbered[ATTRIBUTES_POSITION] |= TRANSACTIONAL_MASK
    _PRODUCER.pack_into(
        numbered, PRODUCER_POSITION, producer.producer_id, producer.producer_epoch, producer.base_sequence
    )
    _CRC.pack_into(numbered, CRC_POSITION, crc32c(memoryview(numbered)[CRC_COVERS_FROM:]))
    return bytes(numbered)


def seal_batch(
    body: bytes, count: int, attributes: int, base_ms: int, largest_ms: int, producer: ProducerFields
) -> bytes:
    """Put the header before the records of a batch."""
    header = unsealed_header(len(body), count, attributes, base_ms, largest_ms, producer)
    crc = crc32c(body, crc32c(header[CRC_COVERS_FROM:]))
    return b"".join((header[:CRC_POSITION], _CRC.pack(crc), header[CRC_COVERS_FROM:], body))


def unsealed_header(
    body_bytes: int, count: int, attributes: int, base_ms: int, largest_ms: int, producer: ProducerFields
) -> bytes:
    """The header of a batch whose records have so many bytes, with a CRC of 0."""
    return HEADER.pack(
        0, HEADER_SIZE - LOG_OVERHEAD + body_bytes, -1, MAGIC, 0, attributes, count - 1, base_ms, largest_ms,
        producer.producer_id, producer.producer_epoch, producer.base_sequence, count,
    )  # fmt: skip


def _encode_records(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    deltas: list[int] | None,
    headers: Sequence[Headers] | None,
) -> bytes:
    """One record at a time."""
    parts: list[bytes] = []
    for number, value in enumerate(values):
        record = b"".join(
            (
                b"\x00",
                _LENGTHS[deltas[number]] if deltas is not None else b"\x00",
                _LENGTHS[number],
                *_field(keys[number] if keys is not None else None),
                *_field(value),
                _encode_headers(headers[number]) if headers is not None else b"\x00",
            )
        )
        parts += (_LENGTHS[len(record)], record)
    return b"".join(parts)


def _field(data: bytes | None) -> tuple[bytes, bytes]:
    return (_NULL, b"") if data is None else (_LENGTHS[len(data)], data)


def _encode_headers(headers: Headers) -> bytes:
    parts = [_LENGTHS[len(headers)]]
    for name, value in headers:
        parts += (*_field(name.encode()), *_field(value))
    return b"".join(parts)


# --- decoding ---


def iter_records(buffer: Buffer, *, check: bool = False) -> Iterator[PlainRecord]:
    """One record after the other, for the few accesses of a broker to records in a batch. Raises CorruptRecordError."""
    header = read_header(buffer)
    if check:
        check_crc(buffer, header)
    body = _body(buffer, header)
    append_time_ms = header.max_timestamp_ms if header.attributes & TIMESTAMP_TYPE_MASK else None
    position = 0
    for _ in range(header.record_count):
        length, position = decode_varint(body, position)
        end = position + length
        if length < 0 or end > len(body):
            raise CorruptRecordError("a record extends beyond the end of its batch")
        record = _read_record(body[position:end], header)
        yield record if append_time_ms is None else record._replace(timestamp_ms=append_time_ms)
        position = end


def first_record_at_or_after(
    buffer: Buffer, timestamp_ms: int, from_offset: int = 0, *, pause: Callable[[], None] = no_pause
) -> tuple[int, int] | None:
    """The (offset, timestamp) of the first record of a batch whose timestamp is at least `timestamp_ms`. `pause` is called after
    every PAUSE_AFTER records."""
    for number, record in enumerate(iter_records(buffer)):
        if number % PAUSE_AFTER == PAUSE_AFTER - 1:
            pause()
        if record.timestamp_ms >= timestamp_ms and record.offset >= from_offset:
            return record.offset, record.timestamp_ms
    return None


def read_marker(buffer: Buffer) -> EndMarker | None:
    """The marker in a control batch; None where compaction has emptied it, and for control records of another type."""
    record = next(iter_records(buffer), None)
    if record is None or record.key is None or len(record.key) < _MARKER_KEY.size:
        return None
    kind = _MARKER_KEY.unpack_from(record.key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    value = record.value or b""
    epoch = _MARKER_VALUE.unpack_from(value)[1] if len(value) >= _MARKER_VALUE.size else _UNKNOWN_EPOCH
    return EndMarker(is_commit=kind == _COMMIT, coordinator_epoch=epoch)


def is_abort_marker(buffer: Buffer) -> bool:
    """Whether a control batch says that its producer's transaction was aborted."""
    marker = read_marker(buffer)
    return marker is not None and not marker.is_commit


def _read_record(record: memoryview, header: BatchHeader) -> PlainRecord:
    if not record:
        raise CorruptRecordError("a record is empty")
    delta_ms, position = decode_varint(record, 1)  # after the attributes, which are not used
    offset_delta, position = decode_varint(record, position)
    key, position = _read_field(record, position)
    value, position = _read_field(record, position)
    headers, position = _read_headers(record, position)
    if position != len(record):
        raise CorruptRecordError("a record is longer than its fields")
    return PlainRecord(header.base_offset + offset_delta, header.base_timestamp_ms + delta_ms, key, value, headers)


def _read_headers(record: memoryview, position: int) -> tuple[Headers, int]:
    count, position = decode_varint(record, position)
    if not 0 <= count <= len(record):
        raise CorruptRecordError(f"a record has an invalid number of headers ({count})")
    headers = []
    for _ in range(count):
        name, position = _read_field(record, position)
        value, position = _read_field(record, position)
        if name is None:
            raise CorruptRecordError("a header has no name")
        headers.append((name.decode(errors="replace"), value))
    return headers, position


def _read_field(record: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(record, position)
    if length < 0:
        return None, position
    if position + length > len(record):
        raise CorruptRecordError("a field extends beyond the end of its record")
    return bytes(record[position : position + length]), position + length


def _body(buffer: Buffer, header: BatchHeader) -> memoryview:
    packed = memoryview(buffer)[header.position + HEADER_SIZE : header.position + header.size_bytes]
    codec = header.compression
    # A batch that an earlier version of compaction has emptied may still name a codec.
    return memoryview(decompress(packed, compression_of(codec))) if codec and packed else packed

"""Kafka's record batch v2: the one format on disk, between brokers and in both protocols.

This module has the 61-byte header: parsing, checks, and the two fields that a leader patches before it appends. It does not read
the records in a batch: see `record_codec`. Layout (big endian), with the position of each field:

    0  base offset          i64   patched by the leader
    8  batch length         i32   bytes after this field, so the whole batch has batch length + 12
    12 partition leader epoch i32 patched by the leader
    16 magic                i8    2
    17 CRC                  u32   CRC-32C of everything from `attributes` on, hence patching breaks nothing
    21 attributes           i16   bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
    23 last offset delta    i32
    27 base timestamp       i64   with bit 6 the delete horizon (KIP-534); timestamps of records are relative to it anyway
    35 max timestamp        i64
    43 producer id          i64
    51 producer epoch       i16
    53 base sequence        i32
    57 record count         i32

Source: Kafka documentation, "Record Batch"; KIP-98; KIP-534.
"""

import struct
from collections.abc import Iterator

from crc32c import crc32c
from msgspec import Struct

from ..vocabulary.errors import CorruptRecordError

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
LOG_OVERHEAD = 12  # base offset and batch length: bytes that the length field does not include
MAGIC = 2
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40
CRC_COVERS_FROM = 21
CRC_POSITION = 17
ATTRIBUTES_POSITION = 22  # of the lower byte; the upper one is not in use
MAX_TIMESTAMP_POSITION = 35
PRODUCER_POSITION = 43
SEQUENCE_POSITION = 53

HEADER = struct.Struct(">qiibIhiqqqhii")
_HEADER = HEADER
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
LENGTH = struct.Struct(">i")
LENGTH_POSITION = 8
SEQUENCE = struct.Struct(">i")
LEADER_EPOCH_POSITION = 12


class BatchHeader(Struct, frozen=True, kw_only=True):
    """The header of one batch, parsed and structurally checked. `position` is where the batch began in its buffer."""

    position: int
    base_offset: int
    size_bytes: int  # of the whole batch, header included
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """Inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which compaction may drop the batch's tombstones or marker; None before the first cleaning."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_MASK else None

    @property
    def newest_record_ms(self) -> int:
        """For the time index: a batch without remaining records has no time, although its header keeps one."""
        return self.max_timestamp_ms if self.record_count else NO_TIMESTAMP


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header of the batch at `position`. The batch must be whole in the buffer.

    Raises CorruptRecordError if it is truncated, is not of magic 2, or has impossible counts (CRC is not checked here).
    """
    header = peek_header(buffer, position)
    available = len(buffer) - position
    if header.size_bytes > available:
        raise CorruptRecordError(f"a record batch has length {header.size_bytes}, but only {available} bytes are there")
    return header


def peek_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """As `read_header`, where the rest of the batch need not be in the buffer."""
    available = len(buffer) - position
    if available < HEADER_SIZE:
        raise CorruptRecordError(
            f"a record batch is truncated: it has {available} bytes, its header alone has {HEADER_SIZE}"
        )
    (base_offset, length, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
     producer_id, producer_epoch, base_sequence, record_count) = _HEADER.unpack_from(buffer, position)  # fmt: skip
    if magic != MAGIC:
        raise CorruptRecordError(
            f"a record batch has magic {magic}; only magic {MAGIC} (Kafka 0.11 and later) is supported"
        )
    size_bytes = length + LOG_OVERHEAD
    if size_bytes < HEADER_SIZE:
        raise CorruptRecordError(
            f"a record batch has a length of {size_bytes} bytes, its header alone has {HEADER_SIZE}"
        )
    if last_offset_delta < 0 or record_count < 0:
        raise CorruptRecordError(
            f"a record batch has an invalid header: {record_count} records and last offset delta {last_offset_delta}"
        )
    return BatchHeader(
        position=position,
        base_offset=base_offset,
        size_bytes=size_bytes,
        leader_epoch=leader_epoch,
        crc=crc,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=base_timestamp,
        max_timestamp_ms=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )


def check_crc(buffer: Buffer, header: BatchHeader) -> None:
    """Raise CorruptRecordError unless the CRC-32C of the batch is right."""
    view = memoryview(buffer)[header.position + CRC_COVERS_FROM : header.position + header.size_bytes]
    if crc32c(view) != header.crc:
        raise CorruptRecordError(
            f"a record batch of {header.size_bytes} bytes fails its CRC: it was damaged in transit or on disk;"
            " send it again"
        )


def iter_headers(buffer: Buffer, *, verify_crc: bool = False) -> Iterator[BatchHeader]:
    """Walk the whole batches of a buffer. A truncated batch at the end (as in a fetch response) ends the walk without an error.

    Raises CorruptRecordError for a batch that is damaged rather than truncated.
    """
    position = 0
    end = len(buffer)
    while end - position >= LOG_OVERHEAD:
        size_bytes = LENGTH.unpack_from(buffer, position + LENGTH_POSITION)[0] + LOG_OVERHEAD
        if size_bytes >= HEADER_SIZE and size_bytes > end - position:
            return
        header = read_header(buffer, position)
        if verify_crc:
            check_crc(buffer, header)
        yield header
        position += header.size_bytes


def patch(buffer: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int) -> None:
    """Write the base offset and the leader epoch that the leader assigns to the batch; the CRC covers neither."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + LEADER_EPOCH_POSITION, leader_epoch)

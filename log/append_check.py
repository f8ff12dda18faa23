"""What a leader checks in the batches of a client before it appends them, and what a log says about an append.

Pure, and on the hot path: a header is unpacked into locals here, once, and not into a BatchHeader. Records inside of a
batch are not looked at (DESIGN.md, section 2), but for the keys of a compacted topic.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from .config import LogConfig
from .errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from .producer_state import AppendedBatch
from .quick_init import quick_init
from .record_batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    CRC_COVERS_FROM,
    CRC_POSITION,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP_POSITION,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    Buffer,
    read_header,
)
from .record_codec import MAX_RECORDS_PER_BATCH
from .record_scan import has_record_without_key

_HIGHEST_CODEC = 4
_UNUSUAL_MASK = (
    CONTROL_MASK | TIMESTAMP_TYPE_MASK | DELETE_HORIZON_MASK | 0x04
)  # 0x04: a codec of 4 and above, of which only 4 is one
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_CRC = struct.Struct(">I")
_unpack_header = HEADER.unpack_from


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class AppendInfo:
    """What became of the batches of one append."""

    first_offset: int
    last_offset: int  # inclusive
    log_append_time_ms: int  # -1 unless message.timestamp.type is LogAppendTime
    max_timestamp_ms: int
    size_bytes: int
    duplicate: bool = False  # the batch was in the log already; the offsets are those it has there


class PlacedBatch(NamedTuple):
    """Where a batch lies in its buffer and in the log. A tuple: one is made for each batch of the hot path."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    producer_id: int


def check_client_batches(
    buffer: Buffer, *, config: LogConfig, next_offset: int, now_ms: int, from_coordinator: bool = False
) -> list[PlacedBatch]:
    """Check every batch and say where it goes, from `next_offset` on; whatever base offset the client wrote is ignored.

    Raises CorruptRecordError, RecordTooLargeError, InvalidRecordError, InvalidTimestampError,
    UnsupportedCompressionError. Only a transaction coordinator may send control batches.
    """
    placed: list[PlacedBatch] = []
    view = memoryview(buffer)
    end = len(view)
    position = 0
    earliest_ms = now_ms - config.message_timestamp_before_max_ms
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    while position < end:
        if end - position < HEADER_SIZE:
            read_header(buffer, position)  # raises
        (_, length, _, magic, crc, attributes, offset_delta, _, max_timestamp_ms, producer_id, _, _, count
         ) = _unpack_header(view, position)  # fmt: skip
        size_bytes = length + LOG_OVERHEAD
        if magic != MAGIC or size_bytes < HEADER_SIZE or size_bytes > end - position:
            read_header(buffer, position)  # raises
        if size_bytes > config.max_message_bytes:
            raise RecordTooLargeError(
                f"a record batch has {size_bytes} bytes, max.message.bytes of the topic is {config.max_message_bytes}"
            )
        if crc32c(view[position + CRC_COVERS_FROM : position + size_bytes]) != crc:
            raise CorruptRecordError("a record batch fails its CRC: it was damaged on the way; send it again")
        if count != offset_delta + 1 or not 0 < count <= MAX_RECORDS_PER_BATCH:
            raise InvalidRecordError(f"a record batch says {count} records and last offset delta {offset_delta}")
        if attributes & _UNUSUAL_MASK:
            _check_attributes(attributes, from_coordinator)
        if not earliest_ms <= max_timestamp_ms <= latest_ms and max_timestamp_ms != NO_TIMESTAMP:
            _check_timestamp(max_timestamp_ms, now_ms, config)
        last_offset = next_offset + offset_delta
        placed.append(PlacedBatch(position, size_bytes, next_offset, last_offset, max_timestamp_ms, producer_id))
        next_offset = last_offset + 1
        position += size_bytes
    if not placed:
        raise InvalidRecordError("there is no record batch to append")
    return placed if not config.is_compacted or from_coordinator else _with_keys(view, placed)


def stamp_append_time(buffer: bytearray | memoryview, batch: PlacedBatch, now_ms: int) -> PlacedBatch:
    """Make `now_ms` the timestamp of all records (message.timestamp.type=LogAppendTime): that is a flag of the
    header."""
    position = batch.position
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + CRC_COVERS_FROM)
    _ATTRIBUTES.pack_into(buffer, position + CRC_COVERS_FROM, attributes | TIMESTAMP_TYPE_MASK)
    _TIMESTAMP.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, now_ms)
    covered = memoryview(buffer)[position + CRC_COVERS_FROM : position + batch.size_bytes]
    _CRC.pack_into(buffer, position + CRC_POSITION, crc32c(covered))
    return batch._replace(max_timestamp_ms=now_ms)


def is_readonly(buffer: Buffer) -> bool:
    return isinstance(buffer, bytes) or (isinstance(buffer, memoryview) and buffer.readonly)


def info_of_duplicate(batch: AppendedBatch) -> AppendInfo:
    return AppendInfo(first_offset=batch.first_offset, last_offset=batch.last_offset, log_append_time_ms=NO_TIMESTAMP,
                      max_timestamp_ms=batch.timestamp_ms, size_bytes=0, duplicate=True)  # fmt: skip


def _check_attributes(attributes: int, from_coordinator: bool) -> None:
    if attributes & COMPRESSION_MASK > _HIGHEST_CODEC:
        raise UnsupportedCompressionError(f"no codec has the number {attributes & COMPRESSION_MASK}")
    if attributes & CONTROL_MASK and not from_coordinator:
        raise InvalidRecordError("control batches are written by transaction coordinators only")
    if attributes & TIMESTAMP_TYPE_MASK:
        raise InvalidRecordError("a producer may not claim LogAppendTime for its records")
    if attributes & DELETE_HORIZON_MASK:
        raise InvalidRecordError("a delete horizon is set by compaction only")


def _with_keys(view: memoryview, placed: list[PlacedBatch]) -> list[PlacedBatch]:
    """The only look inside of a batch before it is appended: without keys there is nothing to compact by."""
    for batch in placed:
        whole = view[batch.position : batch.position + batch.size_bytes]
        if has_record_without_key(whole, read_header(whole)):
            raise InvalidRecordError("a record has no key, and the topic is compacted (cleanup.policy): give it one")
    return placed


def _check_timestamp(timestamp_ms: int, now_ms: int, config: LogConfig) -> None:
    if not config.uses_log_append_time:
        raise InvalidTimestampError(
            f"the timestamp {timestamp_ms} is too far from the clock {now_ms}; see message.timestamp.after.max.ms"
            f" ({config.message_timestamp_after_max_ms}) and .before.max.ms ({config.message_timestamp_before_max_ms})"
        )


def check_leader_batches(headers: Iterable[BatchHeader], *, log: object, next_offset: int, epoch: int) -> None:
    """What a follower checks besides CRCs: batches continue its log (which ends at `next_offset` in `epoch`). `log` is its
    name. One may begin behind the end: the leader may have compacted what lies between, under this configuration or a former.

    Raises OffsetOutOfRangeError for an offset, CorruptRecordError for an epoch that does not.
    """
    for header in headers:
        if header.base_offset < next_offset:
            raise OffsetOutOfRangeError(
                f"{log} ends at {next_offset}, its leader's batch begins at {header.base_offset}"
            )
        if header.leader_epoch < epoch:
            raise CorruptRecordError(f"{log} is in epoch {epoch}, a batch of its leader has {header.leader_epoch}")
        next_offset, epoch = header.next_offset, header.leader_epoch

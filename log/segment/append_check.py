"""The checks of a leader on the batches of a client before it appends them, and the result of an append.

Pure, and on the hot path: a header is unpacked into locals once, and not into a BatchHeader. In an uncompressed batch, only the
first record is checked: that detects a client that sends no valid records, at a cost of a microsecond per batch, where a check of
all records takes a microsecond per record. Compressed batches, and those of compacted topics, are checked completely before they
come here (`record_check`), off the event loop.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c
from msgspec import Struct, structs

from ..format.record_batch import (
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
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    read_header,
)
from ..format.record_codec import MAX_RECORDS_PER_BATCH
from ..format.varint import decode_varint
from ..settings.config import LogConfig
from ..vocabulary.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from .producer_state import AppendedBatch

UNKNOWN_OFFSET = -1
_HIGHEST_CODEC = 4
# 0x04: a codec of 4 and above, of which only 4 is one
_UNUSUAL_MASK = TRANSACTIONAL_MASK | CONTROL_MASK | TIMESTAMP_TYPE_MASK | DELETE_HORIZON_MASK | 0x04
_NO_KEY = 1  # the zigzag varint of -1
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_CRC = struct.Struct(">I")
_unpack_header = HEADER.unpack_from


class AppendInfo(Struct, frozen=True, kw_only=True):
    """The result of one append."""

    first_offset: int  # UNKNOWN_OFFSET if others lie between the batches, some of which were in the log already
    last_offset: int  # inclusive
    log_append_time_ms: int  # -1 unless message.timestamp.type is LogAppendTime
    max_timestamp_ms: int
    size_bytes: int
    duplicate: bool = False  # the batch was in the log already; the offsets are those it has there


class PlacedBatch(NamedTuple):
    """The position of a batch in its buffer and in the log. A tuple: there is one for each batch of the hot path."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    producer_id: int


def placed_batch(header: BatchHeader) -> PlacedBatch:
    return PlacedBatch(header.position, header.size_bytes, header.base_offset, header.last_offset, header.newest_record_ms,
                       header.producer_id)  # fmt: skip


def check_client_batches(
    buffer: Buffer, *, config: LogConfig, next_offset: int, now_ms: int, from_coordinator: bool = False
) -> list[PlacedBatch]:
    """Check every batch and assign its offsets, from `next_offset` on; the client's base offsets are ignored.

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
        (_, length, _, magic, crc, attributes, offset_delta, base_timestamp_ms, max_timestamp_ms, producer_id,
         producer_epoch, sequence, count) = _unpack_header(view, position)  # fmt: skip
        size_bytes = length + LOG_OVERHEAD
        if magic != MAGIC or size_bytes < HEADER_SIZE or size_bytes > end - position:
            read_header(buffer, position)  # raises
        if size_bytes > config.max_message_bytes:
            raise RecordTooLargeError(
                f"a record batch has {size_bytes} bytes, max.message.bytes of the topic is {config.max_message_bytes}"
            )
        if crc32c(view[position + CRC_COVERS_FROM : position + size_bytes]) != crc:
            raise CorruptRecordError("a record batch fails its CRC: it was damaged in transit; send it again")
        if count != offset_delta + 1 or not 0 < count <= MAX_RECORDS_PER_BATCH:
            raise InvalidRecordError(f"invalid record batch: {count} records and last offset delta {offset_delta}")
        if attributes & _UNUSUAL_MASK or producer_id != NO_PRODUCER_ID:
            _check_attributes(attributes, from_coordinator)
            _check_producer(producer_id, producer_epoch, sequence, attributes)
        if not (earliest_ms <= base_timestamp_ms and earliest_ms <= max_timestamp_ms <= latest_ms):
            _check_timestamps(base_timestamp_ms, max_timestamp_ms, now_ms, config)
        _check_first_record(attributes, view, position + HEADER_SIZE, position + size_bytes)
        last_offset = next_offset + offset_delta
        placed.append(PlacedBatch(position, size_bytes, next_offset, last_offset, max_timestamp_ms, producer_id))
        next_offset = last_offset + 1
        position += size_bytes
    if not placed:
        raise InvalidRecordError("there is no record batch to append")
    return placed


def stamp_append_time(buffer: bytearray | memoryview, batch: PlacedBatch, now_ms: int) -> PlacedBatch:
    """Set the timestamp of all records to `now_ms` (message.timestamp.type=LogAppendTime) by a flag of the header."""
    position = batch.position
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + CRC_COVERS_FROM)
    _ATTRIBUTES.pack_into(buffer, position + CRC_COVERS_FROM, attributes | TIMESTAMP_TYPE_MASK)
    _TIMESTAMP.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, now_ms)
    covered = memoryview(buffer)[position + CRC_COVERS_FROM : position + batch.size_bytes]
    _CRC.pack_into(buffer, position + CRC_POSITION, crc32c(covered))
    return batch._replace(max_timestamp_ms=now_ms)


def is_readonly(buffer: Buffer) -> bool:
    return isinstance(buffer, bytes) or (isinstance(buffer, memoryview) and buffer.readonly)


def info_of_repeated(batches: Sequence[AppendedBatch], config: LogConfig) -> AppendInfo:
    """All batches of a request are in the log already."""
    append_time_ms = batches[-1].timestamp_ms if config.uses_log_append_time else NO_TIMESTAMP
    return AppendInfo(first_offset=_first_offset(batches), last_offset=batches[-1].last_offset,
                      log_append_time_ms=append_time_ms, max_timestamp_ms=batches[-1].timestamp_ms, size_bytes=0,
                      duplicate=True)  # fmt: skip


def info_of_completed(repeated: Sequence[AppendedBatch], rest: AppendInfo) -> AppendInfo:
    """The first batches of a request were in the log already, and the rest was appended now."""
    is_whole = repeated[-1].last_offset + 1 == rest.first_offset
    return structs.replace(rest, first_offset=_first_offset(repeated) if is_whole else UNKNOWN_OFFSET)


def _first_offset(batches: Sequence[AppendedBatch]) -> int:
    """A response has one offset for all batches of a partition, so it must not be given if others lie between them."""
    is_whole = all(before.last_offset + 1 == behind.first_offset for before, behind in pairwise(batches))
    return batches[0].first_offset if is_whole else UNKNOWN_OFFSET


def _check_attributes(attributes: int, from_coordinator: bool) -> None:
    if attributes & COMPRESSION_MASK > _HIGHEST_CODEC:
        raise UnsupportedCompressionError(f"{attributes & COMPRESSION_MASK} is not the number of a codec")
    if attributes & CONTROL_MASK and not from_coordinator:
        raise InvalidRecordError("control batches are written by transaction coordinators only")
    if attributes & TIMESTAMP_TYPE_MASK:
        raise InvalidTimestampError("a producer may not claim LogAppendTime for its records")
    if attributes & DELETE_HORIZON_MASK:
        raise InvalidRecordError("a delete horizon is set by compaction only")


def _check_first_record(attributes: int, view: memoryview, position: int, end: int) -> None:
    """Length, offset delta, and the lengths of key and value of the first record must fit the batch, if it can be read."""
    if attributes & COMPRESSION_MASK:
        return
    try:
        length, start = decode_varint(view, position)
        if end - start > 2 and view[start + 1] == 0 == view[start + 2]:  # as nearly every batch begins
            delta, at = 0, start + 3
        else:
            _, at = decode_varint(view, start + 1)  # after the attributes: the timestamp
            delta, at = decode_varint(view, at)
        if at < end and view[at] == _NO_KEY:
            key_length, at = -1, at + 1
        else:
            key_length, at = decode_varint(view, at)
        value_length, at = decode_varint(view, at + max(key_length, 0))
        at += max(value_length, 0)
    except CorruptRecordError as error:
        raise InvalidRecordError(f"the first record of a batch cannot be read: {error.message}") from error
    if delta or not at < start + length <= end:
        raise InvalidRecordError(
            f"the first record of a batch claims offset delta {delta} and {length} bytes, and its fields take"
            f" {at - start}: the client that made it is at fault"
        )


def _check_producer(producer_id: int, producer_epoch: int, sequence: int, attributes: int) -> None:
    """A retry is recognized by its sequence. A marker of a coordinator has a producer and no sequence."""
    if producer_id == NO_PRODUCER_ID:
        if attributes & TRANSACTIONAL_MASK:
            raise InvalidRecordError("a transactional batch has no producer id")
        return
    if producer_id < 0 or producer_epoch < 0 or (sequence < 0 and not attributes & CONTROL_MASK):
        raise InvalidRecordError(
            f"a batch has producer id {producer_id}, producer epoch {producer_epoch} and base sequence {sequence}:"
            " either all of them must be at least 0, or the producer id must be -1"
        )


def check_epoch(epoch: int, *, log: object, latest_epoch: int) -> None:
    """A leader does not append in an epoch that is over. Raises FencedLeaderEpochError."""
    if epoch < latest_epoch:
        raise FencedLeaderEpochError(f"{log} is in leader epoch {latest_epoch}, an append claims epoch {epoch}")


def check_leader_batches(headers: Iterable[BatchHeader], *, log: object, next_offset: int, epoch: int) -> None:
    """A follower's checks besides CRCs: batches continue its log (which ends at `next_offset` in `epoch`). `log` is its name. A
    batch may begin after the end: the leader may have compacted the records between, with this configuration or an earlier one.

    Raises OffsetOutOfRangeError for a wrong offset, CorruptRecordError for an epoch that decreases.
    """
    for header in headers:
        if header.base_offset < next_offset:
            raise OffsetOutOfRangeError(
                f"{log} ends at {next_offset}, its leader's batch begins at {header.base_offset}"
            )
        if header.leader_epoch < epoch:
            raise CorruptRecordError(f"{log} is in epoch {epoch}, a batch of its leader has {header.leader_epoch}")
        next_offset, epoch = header.next_offset, header.leader_epoch


def _check_timestamps(base_ms: int, largest_ms: int, now_ms: int, config: LogConfig) -> None:
    """Raises InvalidTimestampError if a timestamp is out of bounds. A batch without timestamps has -1 for both (KIP-32)."""
    if config.uses_log_append_time:
        return
    for timestamp_ms in (base_ms, largest_ms):
        is_early = timestamp_ms < now_ms - config.message_timestamp_before_max_ms
        if timestamp_ms != NO_TIMESTAMP and (is_early or timestamp_ms > now_ms + config.message_timestamp_after_max_ms):
            raise InvalidTimestampError(
                f"the timestamp {timestamp_ms} is too far from the clock {now_ms}; see message.timestamp.after.max.ms"
                f" ({config.message_timestamp_after_max_ms}) and .before.max.ms"
                f" ({config.message_timestamp_before_max_ms})"
            )

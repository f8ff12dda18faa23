"""Recompression of batches, for topics that set their own `compression.type`. Pure, and slow: not for the event loop.

Only the records change; offsets, timestamps, and the producer's id and sequence stay as they are.
"""

import struct
from collections.abc import Callable, Iterator

from crc32c import crc32c

from ..vocabulary.errors import RecordTooLargeError
from .compression import Compression, compressed_pieces
from .record_batch import (
    COMPRESSION_MASK,
    CRC_COVERS_FROM,
    CRC_POSITION,
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    BatchHeader,
    Buffer,
)
from .record_check import RecordRules, checked_records, no_pause, whole_batches

AS_PRODUCED = "producer"
_UNCOMPRESSED = "uncompressed"
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")


def codec_named(compression_type: str) -> Compression:
    """The codec for a value of `compression.type` other than `producer`."""
    return Compression.NONE if compression_type == _UNCOMPRESSED else Compression[compression_type.upper()]


def is_stored_otherwise(batches: Buffer, compression_type: str) -> bool:
    """Whether the first batch has another codec than the topic requires. The log refuses truncated batches."""
    if compression_type == AS_PRODUCED or len(batches) < HEADER_SIZE:
        return False
    return batches[CRC_COVERS_FROM + 1] & COMPRESSION_MASK != codec_named(compression_type)


def recompressed(
    batches: Buffer,
    codec: Compression,
    rules: RecordRules,
    *,
    level: int | None = None,
    pause: Callable[[], None] = no_pause,
) -> bytearray:
    """The same whole batches, all with `codec`, with their records checked. Batches with this codec keep their level.

    Works piece by piece, so that neither form is in memory as a whole. Raises what `check_batches` raises.
    """
    made = bytearray()
    for header in whole_batches(batches, rules):
        records = checked_records(batches, header, rules, pause=pause)
        whole = memoryview(batches)[header.position : header.position + header.size_bytes]
        if header.compression == codec:
            for _ in records:
                pass
            made += whole
        else:
            made += _under(codec, level, whole, header, records, rules)
    return made


def _under(
    codec: Compression,
    level: int | None,
    whole: memoryview,
    header: BatchHeader,
    records: Iterator[bytes],
    rules: RecordRules,
) -> bytearray:
    made = bytearray(whole[:HEADER_SIZE])
    for piece in compressed_pieces(records, codec, level):
        made += piece
        if len(made) > rules.max_message_bytes:
            raise RecordTooLargeError(
                f"a record batch exceeds max.message.bytes of the topic ({rules.max_message_bytes}) with its"
                f" compression.type ({codec.name.lower()}); send smaller batches"
            )
    LENGTH.pack_into(made, LENGTH_POSITION, len(made) - LOG_OVERHEAD)
    _ATTRIBUTES.pack_into(made, CRC_COVERS_FROM, header.attributes & ~COMPRESSION_MASK | codec)
    _CRC.pack_into(made, CRC_POSITION, crc32c(memoryview(made)[CRC_COVERS_FROM:]))
    return made

"""Batches under another codec, for topics whose `compression.type` is their own business. Pure, and slow: off the loop.

Only the records change; offsets, timestamps, and the producer's id and sequence stay as they are.
"""

import struct

from crc32c import crc32c

from .compression import MAX_DECOMPRESSED_BYTES, Compression, compress, compression_of, decompress
from .errors import CorruptRecordError
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
    check_crc,
    read_header,
)

AS_PRODUCED = "producer"
_UNCOMPRESSED = "uncompressed"
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")


def codec_named(compression_type: str) -> Compression:
    """What a value of `compression.type` other than `producer` asks for."""
    return Compression.NONE if compression_type == _UNCOMPRESSED else Compression[compression_type.upper()]


def is_stored_otherwise(batches: Buffer, compression_type: str) -> bool:
    """Whether the first of the batches has another codec than the topic wants. What is cut is left to the log."""
    if compression_type == AS_PRODUCED or len(batches) < HEADER_SIZE:
        return False
    return batches[CRC_COVERS_FROM + 1] & COMPRESSION_MASK != codec_named(compression_type)


def recompressed(
    batches: Buffer, codec: Compression, level: int | None = None, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytearray:
    """The same whole batches, all under `codec`; those that are already are left alone, whatever their level.

    Raises CorruptRecordError for what is damaged, or unpacks to more than `max_bytes`; UnsupportedCompressionError.
    """
    made = bytearray()
    position = 0
    while position < len(batches):
        header = read_header(batches, position)
        check_crc(batches, header)
        whole = memoryview(batches)[position : position + header.size_bytes]
        made += whole if header.compression == codec else _under(codec, level, whole, header, max_bytes)
        position += header.size_bytes
    return made


def _under(codec: Compression, level: int | None, whole: memoryview, header: BatchHeader, max_bytes: int) -> bytearray:
    records = decompress(whole[HEADER_SIZE:], compression_of(header.compression), max_bytes=max_bytes)
    if header.record_count and not records:
        raise CorruptRecordError(f"a record batch of {header.record_count} records unpacks to nothing")
    made = bytearray(whole[:HEADER_SIZE])
    made += compress(records, codec, level)
    LENGTH.pack_into(made, LENGTH_POSITION, len(made) - LOG_OVERHEAD)
    _ATTRIBUTES.pack_into(made, CRC_COVERS_FROM, header.attributes & ~COMPRESSION_MASK | codec)
    _CRC.pack_into(made, CRC_POSITION, crc32c(memoryview(made)[CRC_COVERS_FROM:]))
    return made

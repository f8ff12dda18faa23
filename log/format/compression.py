"""The codecs of record batches. Their libraries are imported at their first use: a broker rarely needs one.

Every decompression has a limit, since a kilobyte may expand to a gigabyte.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any

from ..vocabulary.errors import CorruptRecordError, UnsupportedCompressionError
from .record_batch import Buffer

# A batch is at most a few MiB (max.message.bytes); text shrinks tenfold, rarely a hundredfold.
MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
PIECE_BYTES = 256 * 1024  # Bytes that are decompressed at once when a batch is read piece by piece.
_GZIP_WINDOW = 31  # zlib's value for "with a gzip header"
# Kafka's default levels (KIP-390).
GZIP_DEFAULT_LEVEL = -1  # zlib's own choice, 6
LZ4_DEFAULT_LEVEL = 9  # stands for the fast compressor; all others are levels of the slow one, as in Kafka's Java
ZSTD_DEFAULT_LEVEL = 3
_LZ4_FAST = 0  # what the library calls it
_LZ4_SLOW_FROM = 3  # its lowest level of the slow compressor
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024  # The size that snappy-java writes; its readers accept any.
_BLOCK_LENGTH = struct.Struct(">i")


class Compression(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compression_of(number: int) -> Compression:
    """Raises UnsupportedCompressionError for an unknown number."""
    try:
        return Compression(number)
    except ValueError as error:
        raise UnsupportedCompressionError(
            f"{number} is not the number of a codec; use gzip, snappy, lz4 or zstd"
        ) from error


def compress(data: bytes, codec: Compression, level: int | None = None) -> bytes:
    """`level` None is the codec's default; snappy and none have no levels."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            packer = zlib.compressobj(GZIP_DEFAULT_LEVEL if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
            return packer.compress(data) + packer.flush()
        case Compression.SNAPPY:
            return _compress_snappy(data)
        case Compression.LZ4:
            import lz4.frame

            # Kafka's readers in Java refuse blocks that depend on each other.
            return bytes(lz4.frame.compress(data, compression_level=_lz4_level(level), block_linked=False))
        case Compression.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=ZSTD_DEFAULT_LEVEL if level is None else level).compress(data)


def _lz4_level(level: int | None) -> int:
    return _LZ4_FAST if level in (None, LZ4_DEFAULT_LEVEL) else max(level, _LZ4_SLOW_FROM)


def decompress(data: Buffer, codec: Compression, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Raises CorruptRecordError if the data is damaged, truncated, or larger than `max_bytes`."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return b"".join(_bounded("gzip", _gzip_pieces(data, max_bytes + 1), max_bytes))
        case Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), max_bytes)
        case Compression.LZ4:
            return b"".join(_bounded("lz4", _lz4_pieces(data, max_bytes + 1), max_bytes))
        case Compression.ZSTD:
            return _decompress_zstd(data, max_bytes)


def decompressed_pieces(
    data: Buffer, codec: Compression, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[bytes]:
    """As `decompress`, one piece at a time: the decompressed data is never in memory as a whole.

    A piece has up to PIECE_BYTES; a block of snappy is one piece, whatever its size. Damage may be found late.
    """
    match codec:
        case Compression.NONE:
            return iter((bytes(data),))
        case Compression.GZIP:
            pieces = _gzip_pieces(data)
        case Compression.SNAPPY:
            return _snappy_pieces(memoryview(data), max_bytes)
        case Compression.LZ4:
            pieces = _lz4_pieces(data)
        case Compression.ZSTD:
            pieces = _zstd_pieces(data)
    return _bounded(codec.name.lower(), pieces, max_bytes)


def compressed_pieces(pieces: Iterable[bytes], codec: Compression, level: int | None = None) -> Iterator[bytes]:
    """As `compress`, for data that arrives in pieces. Some results may be empty."""
    match codec:
        case Compression.NONE:
            yield from pieces
        case Compression.GZIP:
            packer = zlib.compressobj(GZIP_DEFAULT_LEVEL if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
            yield from map(packer.compress, pieces)
            yield packer.flush()
        case Compression.SNAPPY:
            yield _XERIAL_HEADER
            for piece in pieces:
                yield from _snappy_blocks(piece)
        case Compression.LZ4:
            import lz4.frame

            frame = lz4.frame.LZ4FrameCompressor(block_linked=False, compression_level=_lz4_level(level))
            yield bytes(frame.begin())
            yield from map(frame.compress, pieces)
            yield bytes(frame.flush())
        case Compression.ZSTD:
            import zstandard

            stream = zstandard.ZstdCompressor(level=ZSTD_DEFAULT_LEVEL if level is None else level).compressobj()
            yield from map(stream.compress, pieces)
            yield stream.flush()


def _bounded(name: str, pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    left = max_bytes
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise _too_large(name, max_bytes)
        yield piece


def _gzip_pieces(data: Buffer, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    rest: Buffer = data
    try:
        while not unpacker.eof and (piece := unpacker.decompress(rest, piece_bytes)):
            yield piece
            rest = unpacker.unconsumed_tail
    except zlib.error as error:
        raise _damaged("gzip", error) from error
    if not unpacker.eof:
        raise _damaged("gzip", "the data is truncated")


def _lz4_pieces(data: Buffer, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    rest: Buffer = data
    try:
        while not unpacker.eof and (piece := unpacker.decompress(rest, max_length=piece_bytes)):
            yield piece
            rest = b""
    except (RuntimeError, EOFError) as error:
        raise _damaged("lz4", error) from error
    if not unpacker.eof:
        raise _damaged("lz4", "the data is truncated")


def _zstd_pieces(data: Buffer) -> Iterator[bytes]:
    import zstandard

    try:
        with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(PIECE_BYTES):
                yield piece
    except zstandard.ZstdError as error:
        raise _damaged("zstd", error) from error


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    # Java's client writes no content size, so the stream is read piecewise, up to the limit. A truncated frame ends the stream
    # without an error: the caller detects it by the number of records.
    return b"".join(_bounded("zstd", _zstd_pieces(data), max_bytes))


def _compress_snappy(data: bytes) -> bytes:
    """Java's client writes xerial's framing, and only newer clients read anything else, so Barnabas writes it, too."""
    return b"".join((_XERIAL_HEADER, *_snappy_blocks(data)))


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    snappy = _snappy()
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        yield _BLOCK_LENGTH.pack(len(block)) + block


def _decompress_snappy(data: memoryview, max_bytes: int) -> bytes:
    return b"".join(_snappy_pieces(data, max_bytes))


def _snappy_pieces(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield _decompress_snappy_block(data, max_bytes, max_bytes)
        return
    position = len(_XERIAL_HEADER)
    left = max_bytes
    while position < len(data):
        if position + _BLOCK_LENGTH.size > len(data):
            raise _damaged("snappy", "a block is cut")
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position += _BLOCK_LENGTH.size
        if length < 0 or position + length > len(data):
            raise _damaged("snappy", "a block is cut")
        piece = _decompress_snappy_block(data[position : position + length], max_bytes, left)
        left -= len(piece)
        position += length
        yield piece


def _decompress_snappy_block(block: memoryview, max_bytes: int, left: int) -> bytes:
    """`left` of the `max_bytes` of the whole batch."""
    snappy = _snappy()
    try:
        # The block begins with its decompressed length: nothing is allocated if it is too large.
        if snappy.decompress_raw_len(block) > left:
            raise _too_large("snappy", max_bytes)
        return bytes(snappy.decompress_raw(block))
    except _snappy_error() as error:
        raise _damaged("snappy", error) from error


def _snappy() -> Any:
    import cramjam

    return cramjam.snappy


def _snappy_error() -> type[Exception]:
    import cramjam

    error: type[Exception] = cramjam.DecompressionError
    return error


def _too_large(name: str, max_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"a {name} record batch decompresses to more than {max_bytes} bytes; send smaller batches"
    )


def _damaged(name: str, fault: object) -> CorruptRecordError:
    return CorruptRecordError(f"a {name} record batch cannot be decompressed: {fault}")

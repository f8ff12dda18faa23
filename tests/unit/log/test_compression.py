import gzip
import struct

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.format.compression import Compression, compress, compressed_pieces, compression_of, decompress
from barnabas.log.vocabulary.errors import CorruptRecordError, UnsupportedCompressionError

CODECS = [codec for codec in Compression if codec]


@given(st.binary(max_size=500), st.sampled_from(CODECS), st.integers(1, 300))
def test_round_trip(data, codec, times):
    assert decompress(memoryview(compress(data * times, codec)), codec) == data * times


def test_what_other_writers_write():
    data = b"some data " * 20_000
    assert decompress(gzip.compress(data), Compression.GZIP) == data
    assert decompress(lz4.frame.compress(data, content_checksum=True), Compression.LZ4) == data
    stream = zstandard.ZstdCompressor().compressobj()  # no content size in the frame, as Java writes
    assert decompress(stream.compress(data) + stream.flush(), Compression.ZSTD) == data
    assert decompress(bytes(cramjam.snappy.compress_raw(data)), Compression.SNAPPY) == data


def test_blocks_of_lz4_are_independent():
    """Java's decoder refuses a frame in which a block refers to the one before."""
    data = b"some data " * 20_000
    for frame in (compress(data, Compression.LZ4), b"".join(compressed_pieces([data], Compression.LZ4))):
        assert lz4.frame.get_frame_info(frame)["block_linked"] is False


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused(codec):
    bomb = compress(bytes(10_000_000), codec)
    with pytest.raises(CorruptRecordError, match="more than"):
        decompress(bomb, codec, max_bytes=1_000_000)
    assert len(decompress(bomb, codec, max_bytes=10_000_000)) == 10_000_000


def test_blocks_of_snappy_that_are_too_large_together():
    """The error names the limit of the batch, not what earlier blocks left of it."""
    packed = compress(bytes(200_000), Compression.SNAPPY)
    with pytest.raises(CorruptRecordError, match="more than 100000 bytes"):
        decompress(packed, Compression.SNAPPY, max_bytes=100_000)


def test_a_snappy_length_that_lies():
    with pytest.raises(CorruptRecordError):
        decompress(b"\xff\xff\xff\xff\x0f" + b"x" * 10, Compression.SNAPPY)
    with pytest.raises(CorruptRecordError):
        decompress(b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 2**31 - 1), Compression.SNAPPY)


@given(st.binary(max_size=200), st.sampled_from(CODECS))
def test_garbage(data, codec):
    try:
        decompress(data, codec, max_bytes=1 << 20)
    except CorruptRecordError:
        pass


def test_unknown_codec():
    with pytest.raises(UnsupportedCompressionError):
        compression_of(7)

"""Which batches the broker compresses anew."""

import pytest

from barnabas.log.format.compression import Compression
from barnabas.log.format.recompression import AS_PRODUCED, codec_named, is_stored_otherwise
from barnabas.log.format.record_batch import HEADER_SIZE
from barnabas.log.format.record_codec import encode_batch

WANTED = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


@pytest.mark.parametrize("name", WANTED)
def test_a_topic_names_the_codec_of_its_batches(name: str) -> None:
    assert codec_named(name) is WANTED[name]


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("produced", WANTED.values())
def test_batches_of_another_codec_are_stored_otherwise(wanted: str, produced: Compression) -> None:
    batch = encode_batch([b"x" * 100], timestamps_ms=1, compression=produced)
    assert is_stored_otherwise(batch, wanted) == (WANTED[wanted] is not produced)
    assert not is_stored_otherwise(batch, AS_PRODUCED)
    assert not is_stored_otherwise(batch[: HEADER_SIZE - 1], wanted), "what is cut is left to the log"

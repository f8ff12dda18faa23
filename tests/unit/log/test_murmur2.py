"""Kafka's own vectors (`UtilsTest.testMurmur2`): another hash would send keys and groups elsewhere than Kafka does."""

import pytest

from barnabas.log.vocabulary.murmur2 import murmur2, murmur2_positive

VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_hash_is_that_of_kafka(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_positive_hash_drops_the_sign_bit(data: bytes, expected: int) -> None:
    assert murmur2_positive(data) == expected & 0x7FFFFFFF

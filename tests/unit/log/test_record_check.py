"""Which records inside of a batch are taken for records."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.format.compression import (
    MAX_DECOMPRESSED_BYTES,
    Compression,
    compress,
    compressed_pieces,
    decompress,
    decompressed_pieces,
)
from barnabas.log.format.record_batch import HEADER_SIZE
from barnabas.log.format.record_check import PAUSE_AFTER, UNPACKED_RATIO, RecordRules, RecordWalk, check_batches
from barnabas.log.format.record_codec import ProducerFields, encode_batch, seal_batch
from barnabas.log.format.varint import encode_varint
from barnabas.log.records.codec import decode
from barnabas.log.vocabulary.errors import CorruptRecordError, InvalidRecordError, RecordTooLargeError

RULES = RecordRules(needs_keys=False, max_message_bytes=1 << 20)
KEYED = RecordRules(needs_keys=True, max_message_bytes=1 << 20)
CODECS = tuple(Compression)
Field = st.none() | st.binary(max_size=300)


def records(*values: bytes | None, **columns: Sequence[object]) -> bytes:
    return encode_batch(values, timestamps_ms=1, **columns)[HEADER_SIZE:]  # type: ignore[arg-type]


def walk(data: bytes, count: int, *, piece_bytes: int = 1 << 20, needs_keys: bool = False) -> None:
    made = RecordWalk(count, needs_keys=needs_keys)
    for start in range(0, len(data), piece_bytes):
        made.feed(data[start : start + piece_bytes])
    made.finish()


@given(st.lists(st.tuples(Field, Field, st.lists(st.tuples(st.text(max_size=5), Field), max_size=3)), min_size=1, max_size=80),
       st.integers(1, 700), st.sampled_from(CODECS))  # fmt: skip
def test_records_in_any_pieces(rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
                               piece_bytes: int, codec: Compression) -> None:  # fmt: skip
    keys, values, headers = zip(*rows, strict=True)
    batch = encode_batch(values, keys=keys, headers=headers, timestamps_ms=list(range(len(rows))), compression=codec)
    check_batches(batch + batch, RULES)
    walk(decompress(batch[HEADER_SIZE:], codec), len(rows), piece_bytes=piece_bytes)


@given(st.binary(max_size=400), st.integers(1, 5), st.integers(1, 50))
def test_nonsense_never_raises_anything_else(data: bytes, count: int, piece_bytes: int) -> None:
    try:
        walk(data, count, piece_bytes=piece_bytes)
    except InvalidRecordError:
        pass


@pytest.mark.parametrize(
    ("data", "count", "told"),
    [
        (b"", 1, "only 0 can be read"),
        (records(b"a"), 2, "only 1 can be read"),
        (records(b"a") + b"x", 1, "after its last record"),
        (records(b"a", b"b"), 1, "after its last record"),
        (b"\x00", 1, "invalid length 0"),
        (b"\x03", 1, "invalid length -2"),
        (b"\xff" * 20, 1, "more than ten bytes"),
        (records(b"abc")[:-1] + b"\x02", 1, r"number of headers \(1\)"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", 1, "do not fill its length"),
        (b"\x0e\x00\x00\x02\x01\x02a\x00", 1, "offset delta 1"),
        (b"\x0c\x00\x00\x00\x01\x01\x80", 1, "truncated inside a number"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x00", 1, "has no name"),
        (b"\x1e\x00\x00\x00" + b"\xff" * 9 + b"\x03\x01\x00", 1, "more than 64 bits"),
        (b"\x0c\x00\x00\x00\x01\x01\x7e", 1, r"number of headers \(63\)"),
    ],
)
def test_what_no_consumer_could_read_is_refused(data: bytes, count: int, told: str) -> None:
    with pytest.raises(InvalidRecordError, match=told):
        walk(data, count)


@given(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, 2**63 - 64, -(2**63), 63 - 2**63]),
       st.integers(-(2**64), 2**64) | st.integers(-64, 63))  # fmt: skip
def test_a_timestamp_is_taken_if_readers_can_read_it(base_ms: int, delta_ms: int) -> None:
    record = b"\x00" + encode_varint(delta_ms) + b"\x00\x01\x01\x00"
    batch = seal_batch(encode_varint(len(record)) + record, 1, 0, base_ms, 1, ProducerFields())
    try:
        decode([batch])
    except CorruptRecordError:
        with pytest.raises(InvalidRecordError, match="more than 64 bits"):
            check_batches(batch, RULES)
    else:
        check_batches(batch, RULES)


def test_a_number_may_take_more_bytes_than_it_needs() -> None:
    """A varint has no canonical form: Kafka's brokers read such a length, too."""
    data = records(b"", b"")
    assert data[0] < 0x80 and len(data) == 14
    walk(bytes([data[0] | 0x80, 0]) + data[1:7] + bytes([data[7] | 0x80, 0]) + data[8:], 2)


@pytest.mark.parametrize("position", [2, 3, 4, 5, 6])
def test_each_number_of_a_record_may_take_more_bytes_than_it_needs(position: int) -> None:
    """The timestamp, the offset, the lengths of key and value, and the number of headers."""
    data = records(b"")
    assert len(data) == 7 and data[position] < 0x80
    longer = bytes([data[0] + 2]) + data[1:position] + bytes([data[position] | 0x80, 0]) + data[position + 1 :]
    walk(longer, 1)


def test_keys_are_asked_of_compacted_topics_only() -> None:
    data = records(b"a", b"b", keys=[b"k", None])
    walk(data, 2)
    with pytest.raises(InvalidRecordError, match="no key"):
        walk(data, 2, needs_keys=True)


def test_long_walks_pause() -> None:
    pauses: list[None] = []
    batch = encode_batch([b""] * (3 * PAUSE_AFTER), timestamps_ms=1, compression=Compression.GZIP)
    check_batches(batch, RULES, pause=lambda: pauses.append(None))
    assert len(pauses) == 3
    headers = [[("n", None)] * (2 * PAUSE_AFTER)]
    check_batches(encode_batch([b""], headers=headers, timestamps_ms=1), RULES, pause=lambda: pauses.append(None))
    assert len(pauses) == 5


def test_what_a_batch_may_unpack_to() -> None:
    limit = UNPACKED_RATIO << 20
    assert RULES.max_unpacked_bytes == limit
    assert RecordRules(needs_keys=False, max_message_bytes=10).max_unpacked_bytes == limit
    assert RecordRules(needs_keys=False, max_message_bytes=1 << 30).max_unpacked_bytes == MAX_DECOMPRESSED_BYTES
    bomb = encode_batch([bytes(limit)], timestamps_ms=1, compression=Compression.ZSTD)
    with pytest.raises(InvalidRecordError, match="decompresses to more than"):
        check_batches(bomb, RULES)


def test_errors_say_whose_fault_it_is() -> None:
    batch = bytearray(encode_batch([b"value"] * 50, timestamps_ms=1, compression=Compression.LZ4))
    with pytest.raises(RecordTooLargeError, match="max.message.bytes"):
        check_batches(batch, RecordRules(needs_keys=False, max_message_bytes=len(batch) - 1))
    batch[-3] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        check_batches(batch, RULES)


@given(st.binary(max_size=2_000), st.integers(1, 200), st.sampled_from(CODECS), st.integers(1, 3_000))
def test_pieces_are_the_whole(data: bytes, times: int, codec: Compression, piece_bytes: int) -> None:
    plain = data * times
    pieces = [plain[start : start + piece_bytes] for start in range(0, len(plain), piece_bytes)]
    packed = b"".join(compressed_pieces(pieces, codec))
    assert decompress(packed, codec) == plain
    assert b"".join(decompressed_pieces(compress(plain, codec), codec)) == plain

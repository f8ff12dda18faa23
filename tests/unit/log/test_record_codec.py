import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.log.records.record_world import decode_columns

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import check_crc, read_header
from barnabas.log.format.record_codec import (
    EndMarker,
    ProducerFields,
    encode_batch,
    first_record_at_or_after,
    iter_records,
    number_batch,
    read_marker,
)
from barnabas.log.vocabulary.errors import CorruptRecordError, InvalidRecordError

_data = st.one_of(
    st.binary(max_size=30), st.sampled_from([b"x" * n for n in (62, 63, 64, 65, 8190, 8191, 8192, 70_000)])
)
_optional = st.one_of(st.none(), _data)
_stamps = st.one_of(st.integers(0, 2**41), st.integers(1_700_000_000_000, 1_700_000_000_200))
_headers = st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=8))), max_size=3)


def by_aiokafka(records):
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for number, (stamp, key, value, headers) in enumerate(records):
        builder.append(number, stamp, key, value, headers)
    return bytes(builder.build())


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(_stamps, _optional, _optional, _headers), min_size=1, max_size=140),
    st.sampled_from(["as is", "values", "keys", "one timestamp"]),
)
def test_encodes_as_aiokafka_does_and_decodes_what_it_encoded(records, shape):
    if shape != "as is":
        records = [(stamp, key or b"k", value or b"", []) for stamp, key, value, _ in records]
    if shape == "values":
        records = [(stamp, None, value, []) for stamp, _, value, _ in records]
    if shape == "one timestamp":
        records = [(records[0][0], key, value, headers) for _, key, value, headers in records]
    # aiokafka takes the first timestamp as the base, we the smallest: equal bytes when they are the same.
    records[0] = (min(record[0] for record in records), *records[0][1:])
    stamps, keys, values, headers = (list(column) for column in zip(*records, strict=True))
    encoded = encode_batch(values, keys=keys, timestamps_ms=stamps, headers=headers)
    theirs = by_aiokafka(records)
    assert encoded[21:] == theirs[21:]
    columns = decode_columns(encoded)
    assert (columns.keys, columns.values, columns.timestamps_ms) == (keys, values, stamps)
    assert columns.offsets == list(range(len(records)))
    assert [list(found) for found in columns.headers] == headers
    plain = list(iter_records(encoded, check=True))
    assert [record.value for record in plain] == values
    assert [record.timestamp_ms for record in plain] == stamps
    assert [list(record.headers) for record in plain] == headers


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize("has_keys", [False, True])
def test_many_records(count, has_keys):
    values = [b"%d" % number for number in range(count)]
    keys = values if has_keys else None
    columns = decode_columns(encode_batch(values, keys=keys, timestamps_ms=7))
    assert columns.values == values
    assert columns.offsets == list(range(count))
    assert columns.keys == (values if has_keys else [None] * count)


@pytest.mark.parametrize("compression", list(Compression))
def test_compressed_batches(compression):
    values = [b"some text %d" % number for number in range(1000)]
    producer = ProducerFields(producer_id=5, producer_epoch=2, base_sequence=9, is_transactional=True)
    encoded = encode_batch(values, timestamps_ms=1, compression=compression, producer=producer)
    header = read_header(encoded)
    assert (header.compression, header.producer_id, header.producer_epoch, header.base_sequence) == (
        compression,
        5,
        2,
        9,
    )
    assert header.is_transactional
    assert decode_columns(encoded).values == values


@settings(deadline=None, max_examples=500)
@given(st.data())
def test_damaged_records_are_an_error_and_nothing_worse(data):
    """The CRC is right and the records are not, as a hostile client sends them."""
    encoded = bytearray(encode_batch([b"a" * 10, b"bc", b"d"], keys=[b"k", b"l", b"m"], timestamps_ms=[1, 2, 3]))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(57, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    for read in (lambda: list(iter_records(encoded)), lambda: decode_columns(encoded, check=False)):
        try:
            read()
        except CorruptRecordError:
            pass


def test_wrong_crc():
    encoded = bytearray(encode_batch([b"a"], timestamps_ms=1))
    encoded[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        decode_columns(encoded)


def test_columns_that_do_not_fit():
    for arguments in (
        {"values": [], "timestamps_ms": 1},
        {"values": [b"a"], "timestamps_ms": [1, 2]},
        {"values": [b"a"], "timestamps_ms": 1, "keys": []},
        {"values": [b"a"], "timestamps_ms": 1, "headers": [[], []]},
    ):
        with pytest.raises(InvalidRecordError):
            encode_batch(arguments.pop("values"), **arguments)


def test_first_record_at_or_after():
    encoded = encode_batch([b"a", b"b", b"c"], timestamps_ms=[10, 30, 20])
    assert first_record_at_or_after(encoded, 11) == (1, 30)
    assert first_record_at_or_after(encoded, 11, from_offset=2) == (2, 20)
    assert first_record_at_or_after(encoded, 31) is None


def test_a_broker_imports_no_codec_before_it_needs_one():
    import subprocess
    import sys

    code = "import barnabas.log.folders.log_manager, sys; sys.exit(any(n in sys.modules for n in ('lz4', 'cramjam')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("is_transactional", [True, False])
def test_a_batch_with_another_number_is_the_same_in_everything_else(is_transactional):
    former = ProducerFields(producer_id=1, producer_epoch=2, base_sequence=3, is_transactional=not is_transactional)
    batch = encode_batch([b"a", b"b"], timestamps_ms=7, producer=former)
    producer = ProducerFields(producer_id=70, producer_epoch=8, base_sequence=90, is_transactional=is_transactional)
    numbered = number_batch(batch, producer)
    header = read_header(numbered)
    check_crc(numbered, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (70, 8, 90)
    assert numbered == encode_batch([b"a", b"b"], timestamps_ms=7, producer=producer)


@pytest.mark.parametrize(
    ("key", "value", "marker"),
    [
        (b"\0\0\0\0", b"\0\0\0\0\0\5", EndMarker(is_commit=False, coordinator_epoch=5)),
        (b"\0\0\0\1", b"\0\0\0\0\0\0", EndMarker(is_commit=True, coordinator_epoch=0)),
        (b"\0\0\0\1", b"", EndMarker(is_commit=True, coordinator_epoch=-1)),  # older than every coordinator
        (b"\0\0\0\1", None, EndMarker(is_commit=True, coordinator_epoch=-1)),
        (b"\0\0\0\2", b"", None),
        (b"\0\0\0", b"", None),
        (None, b"", None),
    ],
)
def test_what_a_control_batch_says(key, value, marker):
    assert read_marker(encode_batch([value], keys=[key], timestamps_ms=1)) == marker

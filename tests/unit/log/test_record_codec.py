import gc

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import read_header
from barnabas.log.format.record_codec import (
    EndMarker,
    ProducerFields,
    decode_batch,
    decode_columns,
    encode_batch,
    encode_marker,
    first_record_at_or_after,
    is_abort_marker,
    iter_records,
    read_marker,
)
from barnabas.log.vocabulary.errors import BarnabasError, CorruptRecordError, InvalidRecordError

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
    assert [record.value for record in decode_batch(encoded)] == values
    assert [record.value for record in iter_records(encoded)] == values


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
        decode_batch(encoded)


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


def test_the_collector_is_on_again():
    assert gc.isenabled()
    with pytest.raises(BarnabasError):
        decode_batch(b"x" * 70)
    assert gc.isenabled()


def test_a_broker_does_not_import_aiokafka():
    import subprocess
    import sys

    code = "import barnabas.log.folders.log_manager, sys; sys.exit(any(n in sys.modules for n in ('aiokafka', 'lz4', 'cramjam')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_aiokafkas_internals_are_those_that_decoding_was_measured_and_tested_with():
    """The class is no public name of aiokafka: a release may move it, or fall back to pure Python, ten times slower."""
    from aiokafka.record.default_records import DefaultRecordBatch

    assert DefaultRecordBatch.__module__ == "aiokafka.record._crecords.default_records"
    (record,) = DefaultRecordBatch(bytes(encode_batch([b"v"], timestamps_ms=[7], keys=[b"k"], headers=[[("h", b"x")]])))
    told = (record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
    assert told == (0, 7, b"k", b"v", (("h", b"x"),))


@pytest.mark.parametrize("is_commit", [False, True])
def test_markers_are_those_of_kafka(is_commit):
    data = encode_marker(
        producer_id=7, producer_epoch=3, is_commit=is_commit, coordinator_epoch=70_000, timestamp_ms=1_700_000_000_000
    )
    as_kafka = DefaultRecordBatch(data)
    assert as_kafka.is_control_batch and as_kafka.is_transactional and as_kafka.validate_crc()
    assert (as_kafka.producer_id, as_kafka.producer_epoch, as_kafka.base_sequence) == (7, 3, -1)
    (record,) = as_kafka
    assert record.key == b"\x00\x00\x00" + bytes([is_commit])
    assert record.value == b"\x00\x00" + (70_000).to_bytes(4, "big")
    assert read_marker(data) == EndMarker(is_commit=is_commit, coordinator_epoch=70_000)
    assert is_abort_marker(data) == (not is_commit)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (b"\x00\x00\x00\x00", b"", EndMarker(is_commit=False, coordinator_epoch=-1)),
        (b"\x00\x00\x00\x01", None, EndMarker(is_commit=True, coordinator_epoch=-1)),
        (b"\x00\x00\x00\x02", b"\x00" * 6, None),  # the leader of a KRaft quorum has changed
        (b"\x00\x00", b"\x00" * 6, None),
        (None, None, None),
    ],
)
def test_control_records_that_say_less_than_a_marker(key, value, expected):
    assert read_marker(encode_batch([value], keys=[key], timestamps_ms=1)) == expected

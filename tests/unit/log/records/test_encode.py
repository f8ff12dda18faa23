"""Values into batches: the same bytes from every way in."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.log.records.record_world import NOW_MS, binary_column, header_column, optional_data, record_rows

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import read_header
from barnabas.log.format.record_codec import ProducerFields, decode_columns, encode_batch
from barnabas.log.records.columns import BinaryColumn, HeaderColumn
from barnabas.log.vocabulary.errors import InvalidRecordError
from barnabas.log.vocabulary.murmur2 import murmur2, murmur2_positive

PRODUCER = ProducerFields(producer_id=9, producer_epoch=3, base_sequence=70, is_transactional=True)
shared_fixtures = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@shared_fixtures
@given(record_rows, st.sampled_from(list(Compression)), st.booleans())
def test_encode_writes_the_bytes_of_encode_batch(codec, records, compression, is_one_time):
    stamps, keys, values, headers = (list(column) for column in zip(*records, strict=True))
    options = {
        "timestamps_ms": stamps[0] if is_one_time else stamps,
        "keys": keys,
        "headers": headers,
        "compression": compression,
        "producer": PRODUCER,
    }
    assert codec.encode(values, **options) == encode_batch(values, **options)


def test_columns_that_do_not_fit(codec):
    for arguments in (
        {"values": [], "timestamps_ms": 1},
        {"values": [b"a"], "timestamps_ms": [1, 2]},
        {"values": [b"a"], "timestamps_ms": 1, "keys": []},
        {"values": [b"a"], "timestamps_ms": 1, "headers": [[], []]},
    ):
        with pytest.raises(InvalidRecordError):
            codec.encode(arguments.pop("values"), **arguments)


@shared_fixtures
@given(record_rows, st.integers(100, 3000))
def test_an_accumulator_knows_its_size_and_stops_at_its_limit(implementation, records, limit):
    """Appended one by one, and all at once: the same batches."""
    batches, taken = [], 0
    while taken < len(records):
        one, many = implementation.Accumulator(limit), implementation.Accumulator(limit)
        rows = records[taken:]
        for number, (stamp, key, value, headers) in enumerate(rows):
            before = (one.count, one.size_bytes)
            if one.append(value, key, headers, stamp) < 0:
                assert number > 0
                assert (one.count, one.size_bytes) == before
                break
            assert one.count == number + 1
            assert number == 0 or one.size_bytes <= limit
        stamps, keys, values, headers = (list(column) for column in zip(*records, strict=True))
        assert many.extend(values, keys, headers, stamps, taken) == one.count
        size_bytes = one.size_bytes
        assert many.size_bytes == size_bytes
        batch = one.seal(producer=PRODUCER)
        assert len(batch) == size_bytes
        assert many.seal(producer=PRODUCER) == batch
        count = read_header(batch).record_count
        assert count > 0
        batches.append(decode_columns(batch))
        taken += count
    assert [(key, value) for batch in batches for key, value in zip(batch.keys, batch.values, strict=True)] == [
        (key, value) for _, key, value, _ in records
    ]
    assert [stamp for batch in batches for stamp in batch.timestamps_ms] == [stamp for stamp, *_ in records]


@shared_fixtures
@given(record_rows, st.booleans(), st.integers(0, 9), st.booleans())
def test_columns_of_arrow_give_the_same_bytes(implementation, records, is_large, skip, is_reversed):
    rows = list(range(len(records)))[:: -1 if is_reversed else 1]
    stamps, keys, values, headers = (list(column) for column in zip(*records, strict=True))
    expected = implementation.Accumulator(2**20)
    expected.extend(*([column[row] for row in rows] for column in (values, keys, headers, stamps)))
    found = implementation.Accumulator(2**20)
    number = found.extend_columns(
        len(records),
        binary_column(values, is_large=is_large, skip=skip),
        binary_column(keys, skip=skip),
        header_column(headers, skip=skip),
        b"".join(stamp.to_bytes(8, "little", signed=True) for stamp in stamps),
        b"".join(row.to_bytes(8, "little") for row in rows) if is_reversed else None,
    )
    assert number == found.count == expected.count
    assert found.seal() == expected.seal()


def test_columns_are_taken_until_the_batch_is_full_and_from_a_start(implementation):
    values = [b"x" * 100] * 10
    batch = implementation.Accumulator(61 + 330)
    assert batch.extend_columns(10, binary_column(values), timestamps_ms=NOW_MS) == 3
    assert batch.extend_columns(10, binary_column(values), timestamps_ms=NOW_MS, start=3) == 0
    assert implementation.Accumulator(9999).extend_columns(10, binary_column(values), start=8) == 2
    assert implementation.Accumulator(9999).extend_columns(10, None, start=12) == 0
    assert implementation.Accumulator(9999).extend(values, start=12) == 0


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ({"values": BinaryColumn(offsets=b"\x00" * 4 + b"\x05" + b"\x00" * 3, data=b"four")}, None),
        ({"values": BinaryColumn(offsets=b"\x02" + b"\x00" * 7, data=b"four")}, None),
        ({"values": BinaryColumn(offsets=b"\xff" * 4 + b"\x00" * 4, data=b"four")}, None),
        ({"values": BinaryColumn(offsets=b"\x00" * 4, data=b"four")}, None),
        ({"values": BinaryColumn(offsets=b"\x00" * 8, data=b"", validity=b"")}, None),
        ({"values": BinaryColumn(offsets=b"\x00" * 8, data=b"", first=-1)}, None),
        ({"values": None, "timestamps_ms": b"\x00" * 7}, None),
        ({"values": None}, b"\x01" + b"\x00" * 7),
        ({"values": None}, b"\xff" * 8),
        ({"values": None}, b"\x00" * 9),
        (
            {
                "values": None,
                "headers": HeaderColumn(
                    offsets=b"\x00" * 4 + b"\x02" + b"\x00" * 3,
                    names=BinaryColumn(offsets=b"\x00" * 8, data=b""),
                    values=BinaryColumn(offsets=b"\x00" * 8, data=b""),
                    count=1,
                ),
            },
            None,
        ),
    ],
)
def test_columns_that_lie_are_refused(implementation, columns, rows):
    batch = implementation.Accumulator(9999)
    with pytest.raises(InvalidRecordError):
        batch.extend_columns(1, **columns, rows=rows)
    assert batch.count == 0


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (("text",), TypeError),
        ((b"v", "text"), TypeError),
        ((b"v", bytearray(b"k")), TypeError),
        ((b"v", None, [("h", "text")]), TypeError),
        ((b"v", None, [(b"h", b"v")]), TypeError),
        ((b"v", None, [("\ud800", b"v")]), UnicodeEncodeError),
        ((b"v", None, (), -2), InvalidRecordError),
        ((b"v", None, (), 2**63), InvalidRecordError),
        ((b"v", None, (), None), TypeError),
    ],
)
def test_what_is_no_record_changes_nothing(implementation, record, error):
    batch, twin = implementation.Accumulator(9999), implementation.Accumulator(9999)
    for accumulator in (batch, twin):
        accumulator.append(b"first", None, (), 5)
    with pytest.raises(error):
        batch.append(*record)
    for accumulator in (batch, twin):
        accumulator.append(b"second", b"key", [("h", None)], 7)
    assert batch.seal() == twin.seal()


def test_a_first_record_may_be_larger_than_the_limit(implementation):
    batch = implementation.Accumulator(100)
    assert batch.append(b"x" * 200_000) == 0
    assert batch.append(b"") == -1
    assert decode_columns(batch.seal()).values == [b"x" * 200_000]


def test_a_batch_has_at_most_so_many_records(implementation):
    batch = implementation.Accumulator(2**31 - 1)
    assert batch.extend([b""] * (2**20 + 1)) == 2**20


@shared_fixtures
@given(st.lists(optional_data, max_size=20), st.integers(0, 3))
def test_the_hash_of_a_column(implementation, keys, skip):
    column = binary_column(keys, skip=skip)
    found = memoryview(implementation.murmur2_column(column, len(keys))).cast("B").cast("i").tolist()
    assert found == [0 if key is None else murmur2(key) for key in keys]


@shared_fixtures
@given(st.lists(optional_data, max_size=30), st.integers(1, 7))
def test_rows_by_partition(implementation, keys, count):
    rows = implementation.rows_by_partition(keys, count)
    assert len(rows) == count + 1
    assert rows[count] == [row for row, key in enumerate(keys) if key is None]
    for partition in range(count):
        assert rows[partition] == [
            row for row, key in enumerate(keys) if key is not None and murmur2_positive(key) % count == partition
        ]
    assert implementation.largest(keys) == max((len(key) for key in keys if key is not None), default=0)


def test_the_largest_value_is_of_bytes(implementation):
    assert implementation.largest((b"", None)) == 0
    with pytest.raises(TypeError, match="not str"):
        implementation.largest([b"", "text"])


def test_chosen_rows_of_lists(implementation):
    values = [b"a", b"b", b"c"]
    batch = implementation.Accumulator(9999)
    assert batch.extend(values, values, None, [1, 2, 3], 1, [0, 2, 1]) == 2
    columns = decode_columns(batch.seal())
    assert (columns.values, columns.keys, columns.timestamps_ms) == ([b"c", b"b"], [b"c", b"b"], [3, 2])
    with pytest.raises(IndexError):
        implementation.Accumulator(9999).extend(values, rows=[3])


def test_a_batch_is_sealed_once_and_takes_nothing_afterwards(implementation):
    with pytest.raises(AssertionError):
        implementation.Accumulator(9999).seal()
    batch = implementation.Accumulator(9999)
    batch.append(b"v")
    batch.seal()
    assert batch.append(b"w") == -1
    with pytest.raises(AssertionError):
        batch.seal()
    with pytest.raises(ZeroDivisionError):
        implementation.rows_by_partition([b"k"], 0)


def test_a_receipt_names_the_batch_and_the_record(implementation):
    class Named(implementation.Receipt):
        __slots__ = ()

    batch = implementation.Accumulator(61 + 30)
    first, second = (batch.append_for(Named, "owner", b"x" * 5, None, (), 7) for _ in range(2))
    assert [(type(found), found.batch, found.position) for found in (first, second)] == [
        (Named, "owner", 0),
        (Named, "owner", 1),
    ]
    assert batch.append_for(Named, "owner", b"x" * 5, None, (), 7) is None
    with pytest.raises(TypeError):
        batch.append_for(Named, "owner", "text", None, (), 7)
    made = Named("other", 3)
    assert (made.batch, made.position) == ("other", 3)

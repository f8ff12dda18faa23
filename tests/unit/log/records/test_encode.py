"""Values into batches: the same bytes from every way in."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.log.records.record_world import (
    NOW_MS,
    binary_column,
    decode_columns,
    header_column,
    optional_data,
    record_rows,
)

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import read_header
from barnabas.log.format.record_codec import ProducerFields, encode_batch
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
        ((b"v", None, (), 7.5), TypeError),
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


class Lying(list[Any]):
    """Says that it has one entry."""

    def __len__(self) -> int:
        return 1


def test_headers_are_counted_as_they_are_iterated(implementation):
    """A buffer of the size that `len` announces would be written beyond its end."""
    pairs = [("h", b"")] * 20_000
    lying, honest = implementation.Accumulator(2**20), implementation.Accumulator(2**20)
    lying.append(b"v", None, Lying(pairs))
    honest.append(b"v", None, pairs)
    assert lying.seal() == honest.seal()


def test_the_name_of_a_header_is_its_text(implementation):
    class Name(str):
        __slots__ = ()

        def encode(self, *_):
            return None

    batch = implementation.Accumulator(2**20)
    batch.append(b"v", None, [(Name("h"), b"")])
    assert decode_columns(batch.seal()).headers == [[("h", b"")]]


def test_no_headers_may_be_none(implementation):
    one, other = implementation.Accumulator(2**20), implementation.Accumulator(2**20)
    one.extend([b"v", b"w"], headers=[None, []])
    other.extend([b"v", b"w"])
    assert one.seal() == other.seal()


def test_a_negative_start_is_refused(implementation):
    """Of columns, it would be read before the start of a buffer."""
    batch = implementation.Accumulator(2**20)
    with pytest.raises(InvalidRecordError, match="-1"):
        batch.extend([b"v"], start=-1)
    with pytest.raises(InvalidRecordError, match="-4"):
        batch.extend_columns(3, None, rows=bytes(24), start=-4)
    assert batch.count == 0


def test_a_batch_that_is_filled_while_headers_are_read_stays_whole(implementation):
    """Python code of a header may append to the same batch."""
    batch = implementation.Accumulator(2**20)

    class Pairs(list[Any]):
        def __iter__(self):
            batch.append(b"inner", None, (), 2**62)
            return super().__iter__()

    batch.append(b"outer", None, Pairs([("h", b"")]), 5)
    columns = decode_columns(batch.seal())
    assert (columns.values, columns.timestamps_ms) == ([b"inner", b"outer"], [2**62, 5])


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
    batch.raise_limit(99_999)
    assert batch.append(b"w") == -1
    with pytest.raises(AssertionError):
        batch.seal()


@pytest.mark.parametrize("keys", [[], [None], [b"k"]])
def test_there_are_no_rows_by_no_partition(implementation, keys):
    with pytest.raises(ZeroDivisionError):
        implementation.rows_by_partition(keys, 0)


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


class Taking:
    """An accumulator that takes records at the time of a pass, and its owner."""

    def __init__(self, implementation, receipt_type=None, limit_bytes=61 + 30):
        self.records = implementation.Accumulator(limit_bytes)
        self.time = implementation.PassTime()
        self.restamped = []
        self.records.belong_to(self, receipt_type or implementation.Receipt, self.time, 5)

    def restamp(self, stamp_ms):
        self.restamped.append(stamp_ms)
        self.records.stamp_ms = stamp_ms


def test_records_are_taken_at_the_time_of_the_pass(implementation):
    taking = Taking(implementation, limit_bytes=1000)
    take = taking.records.take
    assert take(b"a") is None, "the time is not known"
    taking.time.now_ms = 5
    first = take(b"a")
    assert (first.batch, first.position) == (taking, 0)
    assert take(b"b", b"key").position == 1
    taking.time.now_ms = 8
    assert take(b"c", None).position == 2
    assert take(b"d").position == 3
    assert taking.restamped == [8]
    found = decode_columns(taking.records.seal())
    assert (found.values, found.keys) == ([b"a", b"b", b"c", b"d"], [None, b"key", None, None])
    assert found.timestamps_ms == [5, 5, 8, 8]
    assert take(b"e") is None, "it is sealed"


def test_other_records_are_left_to_append(implementation):
    class Data(bytes):
        pass

    taking = Taking(implementation)
    taking.time.now_ms = 5
    for value, key in ((None, None), ("text", None), (bytearray(b"a"), None), (Data(b"a"), None), (b"a", "text")):
        assert taking.records.take(value, key) is None
    assert (taking.records.count, taking.restamped) == (0, [])
    taking.records.take(b"x" * 20)
    assert taking.records.take(b"x" * 20) is None, "there is no room"
    assert implementation.Accumulator(100).take(b"a") is None, "it belongs to nothing"
    with pytest.raises(TypeError):
        Taking(implementation, receipt_type=dict)


def test_a_limit_that_is_raised_makes_room_and_leaves_the_records_as_they_are(implementation):
    values = [b"%05d" % number + bytes(995) for number in range(600)]
    batch, whole = implementation.Accumulator(65_536), implementation.Accumulator(1 << 20)
    assert whole.extend(values, None, None, 5) == len(values)
    taken, raises = 0, 0
    while (taken := taken + batch.extend(values, None, None, 5, taken)) < len(values):
        assert batch.append(values[taken], None, (), 5) == -1
        assert batch.size_bytes <= 65_536 * (raises + 1)
        raises += 1
        batch.raise_limit(65_536 * (raises + 1))
    assert raises == 9
    batch.raise_limit(1_000)  # Not below what there was.
    assert batch.append(b"last", None, (), 5) == len(values) == whole.append(b"last", None, (), 5)
    assert batch.seal() == whole.seal()


def test_a_time_is_judged_only_where_a_record_takes_it(implementation):
    for start, count in ((0, 0), (2, 2), (5, 2)):
        batch = implementation.Accumulator(2**20)
        assert batch.extend([b"v"] * count, None, None, -5, start) == 0
        assert batch.count == 0
    with pytest.raises(InvalidRecordError):
        implementation.Accumulator(2**20).extend([b"v"] * 3, None, None, -5, 2)

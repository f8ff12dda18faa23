"""Whole batches into columns and views."""

import struct
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.log.records.record_world import NOW_MS, batch_at, cells, forged, marker_at, record_rows, rows_of

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import HEADER_SIZE, TIMESTAMP_TYPE_MASK, read_header
from barnabas.log.format.record_codec import ProducerFields, encode_batch, iter_records
from barnabas.log.format.varint import decode_varint
from barnabas.log.records import pure
from barnabas.log.records.aborted import AbortedFilter
from barnabas.log.records.columns import Columns
from barnabas.log.records.walk import section_of
from barnabas.log.vocabulary.errors import CorruptRecordError, UnsupportedCompressionError

shared_fixtures = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def values_of(columns: Columns) -> list[bytes | None]:
    return cells(columns.values, columns.count)


def offsets_of(columns: Columns) -> list[int]:
    return memoryview(columns.offsets).cast("B").cast("q").tolist()


@shared_fixtures
@given(record_rows, st.sampled_from(list(Compression)))
def test_columns_have_what_was_encoded(codec, records, compression):
    stamps, keys, values, headers = (list(column) for column in zip(*records, strict=True))
    batch = batch_at(40, values, keys=keys, timestamps_ms=stamps, headers=headers, compression=compression)
    columns = codec.decode([batch])
    expected = [
        (40 + number, stamp, key, value, pairs)
        for number, (stamp, key, value, pairs) in enumerate(zip(stamps, keys, values, headers, strict=True))
    ]
    assert rows_of(columns) == expected
    assert (columns.next_offset, columns.consumed_bytes, columns.leader_epoch) == (40 + len(values), len(batch), 7)
    assert columns.append_time_runs == ((False, len(values)),)


@shared_fixtures
@given(record_rows, st.integers(0, 150), st.integers(0, 150))
def test_views_have_what_the_broker_reads(codec, implementation, records, start, end):
    stamps, keys, values, headers = (list(column) for column in zip(*records, strict=True))
    batch = batch_at(5, values, keys=keys, timestamps_ms=stamps, headers=headers)
    views = codec.records_of(batch, read_header(batch), implementation.RecordView, start, end)
    found = [(view.offset, view.timestamp_ms, view.key, view.value, list(view.headers)) for view in views]
    assert found == [(*record[:4], list(record[4])) for record in iter_records(batch) if start <= record[0] < end]
    lists = codec.lists_of(batch, read_header(batch), start, end)
    assert list(zip(*lists, strict=True)) == [record[:4] for record in found]


@shared_fixtures
@given(record_rows, st.sampled_from(list(Compression)))
def test_spans_say_where_each_record_is(codec, records, compression):
    """Records that are kept as they are, one after the other, are a batch again."""
    stamps, keys, values, headers = (list(column) for column in zip(*records, strict=True))
    batch = batch_at(5, values, keys=keys, timestamps_ms=stamps, headers=headers, compression=compression)
    body, spans = codec.spans_of(batch, read_header(batch))
    plain = encode_batch(values, keys=keys, timestamps_ms=stamps, headers=headers)[HEADER_SIZE:]
    assert b"".join(body[start:end] for start, _, end, *_ in spans) == bytes(body) == plain
    assert [decode_varint(body, start) for start, *_ in spans] == [(end - at, at) for _, at, end, *_ in spans]
    assert [fields for _, _, _, *fields in spans] == [
        [number, stamp, key, value is None] for number, (stamp, key, value, _) in enumerate(records)
    ]


def test_other_threads_run_while_the_spans_of_a_large_batch_are_read(implementation):
    count = 200_000
    body = encode_batch([b""] * count, timestamps_ms=1)
    section = section_of(body, read_header(body), 0, count)
    turns, ends = [0], threading.Event()

    def take_turns() -> None:
        while not ends.is_set():
            turns[0] += 1

    other = threading.Thread(target=take_turns)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    other.start()
    try:
        before = turns[0]
        spans = implementation.read_spans(section)
        meanwhile = turns[0] - before
    finally:
        ends.set()
        other.join()
        sys.setswitchinterval(interval_s)
    assert len(spans) == count
    assert meanwhile, "the interpreter's lock was held throughout"


def test_a_span_has_the_timestamp_that_readers_see(codec):
    body = encode_batch([b"a", b"b"], timestamps_ms=[3, 4])[HEADER_SIZE:]
    appended = forged(body, 2, base_ms=3, attributes=TIMESTAMP_TYPE_MASK)
    stamp = read_header(appended).max_timestamp_ms
    _, spans = codec.spans_of(appended, read_header(appended))
    assert [span[4] for span in spans] == [stamp, stamp]


def test_batches_of_several_buffers_from_the_middle_to_the_middle(codec):
    first = batch_at(10, [b"a", b"b", b"c"]) + batch_at(13, [b"d"])
    last = batch_at(20, [b"e", b"f"]) + batch_at(22, [b"g", b"h"]) + batch_at(24, [b"i"])
    columns = codec.decode([first, bytearray(last)], 11, 23)
    assert values_of(columns) == [b"b", b"c", b"d", b"e", b"f", b"g"]
    assert offsets_of(columns) == [11, 12, 13, 20, 21, 22]
    assert columns.next_offset == 24
    assert columns.consumed_bytes == len(first) + len(last) - len(batch_at(24, [b"i"]))


@pytest.mark.parametrize("buffers", [[], [b""]])
def test_nothing(codec, buffers):
    columns = codec.decode(buffers, 9)
    assert (rows_of(columns), columns.next_offset, columns.consumed_bytes, columns.leader_epoch) == ([], 9, 0, -1)


def test_a_range_that_compaction_emptied_ends_at_the_next_batch(codec):
    columns = codec.decode([batch_at(3, [b"a"]) + batch_at(90, [b"b"])], 0, 50)
    assert (values_of(columns), columns.next_offset) == ([b"a"], 90)


@pytest.mark.parametrize("codec_number", list(Compression))
def test_a_batch_that_an_earlier_compaction_emptied_may_still_name_its_codec(codec, implementation, codec_number):
    emptied = forged(b"", 0, attributes=codec_number, last_offset_delta=4)
    columns = codec.decode([emptied + batch_at(5, [b"next"])])
    assert (values_of(columns), offsets_of(columns)) == ([b"next"], [5])
    assert codec.records_of(emptied, read_header(emptied), implementation.RecordView) == []
    assert codec.spans_of(emptied, read_header(emptied))[1] == list(iter_records(emptied)) == []


def test_a_batch_that_begins_at_the_end_is_left_for_the_next_reader(codec):
    first = batch_at(3, [b"a"])
    columns = codec.decode([first + batch_at(4, [b"b"])], 0, 4)
    assert (values_of(columns), columns.next_offset, columns.consumed_bytes) == ([b"a"], 4, len(first))


def test_only_nulls_and_no_nulls(codec):
    columns = codec.decode([batch_at(0, [None] * 9, keys=[b"k"] * 9)])
    assert (columns.values.null_count, bytes(columns.values.data)) == (9, b"")
    assert columns.values.validity is not None
    assert columns.keys.validity is None


def test_timestamps_of_the_broker(codec, implementation):
    appended = bytearray(batch_at(0, [b"a", b"b"], timestamps_ms=[5, 6]))
    struct.pack_into(">h", appended, 21, 8)
    struct.pack_into(">q", appended, 35, 77)
    columns = codec.decode([appended, batch_at(2, [b"c"], timestamps_ms=9)], check=False)
    assert memoryview(columns.timestamps_ms).cast("B").cast("q").tolist() == [77, 77, 9]
    assert columns.append_time_runs == ((True, 2), (False, 1))
    views = codec.records_of(appended, read_header(appended), implementation.RecordView, check=False)
    assert [view.timestamp_ms for view in views] == [77, 77]


def written(offset, value, producer_id):
    producer = ProducerFields(producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
    return batch_at(offset, [value], producer=producer)


def test_control_batches_and_aborted_transactions_are_left_out(codec):
    log = b"".join(
        (
            written(0, b"committed before", 1),
            marker_at(1, producer_id=1, is_abort=False),
            written(2, b"aborted", 1),
            written(3, b"of another", 2),
            batch_at(4, [b"of none"]),
            marker_at(5, producer_id=1, is_abort=True),
            written(6, b"committed after", 1),
            marker_at(7, producer_id=2, is_abort=False),
        )
    )
    aborted = [(1, 2)]
    columns = codec.decode([log], aborted=AbortedFilter(aborted))
    assert values_of(columns) == [b"committed before", b"of another", b"of none", b"committed after"]
    assert columns.next_offset == 8
    assert values_of(codec.decode([log], 3, aborted=AbortedFilter(aborted))) == [
        b"of another",
        b"of none",
        b"committed after",
    ]
    assert len(values_of(codec.decode([log]))) == 5


def test_decoding_stops_at_the_limit_and_goes_on_where_it_stopped(codec):
    batches = [batch_at(number, [b"x" * 1000], compression=Compression.GZIP) for number in range(10)]
    log, offset, found = b"".join(batches), 0, []
    while offset < 10:
        columns = codec.decode([log], offset, max_bytes=2500)
        assert 1 <= columns.count <= 2
        found += offsets_of(columns)
        offset = columns.next_offset
    assert found == list(range(10))


def test_what_comes_before_a_damaged_batch_is_handed_out_first(codec):
    good, bad = batch_at(0, [b"a", b"b"]), bytearray(batch_at(2, [b"c"]))
    bad[-1] ^= 1
    columns = codec.decode([good + bad])
    assert (values_of(columns), columns.next_offset, columns.consumed_bytes) == ([b"a", b"b"], 2, len(good))
    with pytest.raises(CorruptRecordError, match="CRC"):
        codec.decode([good + bad], 2)


def test_records_before_a_damaged_record_of_the_same_batch_are_not_returned(codec):
    body = encode_batch([b"a", b"b"], timestamps_ms=0)[61:]
    damaged = forged(body[:-1] + b"\x02", 2)
    with pytest.raises(CorruptRecordError):
        codec.decode([damaged])
    after = bytearray(damaged)
    struct.pack_into(">q", after, 0, 3)
    columns = codec.decode([batch_at(0, [b"x", None, b"z"], keys=[None, b"k", None]), after])
    assert (values_of(columns), columns.next_offset) == ([b"x", None, b"z"], 3)
    assert cells(columns.keys, 3) == [None, b"k", None]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda batch: batch[:-1], "only .* bytes are there"),
        (lambda batch: batch[:30], "truncated"),
        (lambda batch: b"\xff" + batch[1:], "offsets"),
        (lambda batch: b"\x7f" + b"\xff" * 7 + batch[8:], "offsets"),
        (lambda batch: batch[:16] + b"\x01" + batch[17:], "magic"),
    ],
)
def test_damaged_headers(codec, damage, reason):
    with pytest.raises(CorruptRecordError, match=reason):
        codec.decode([damage(batch_at(0, [b"a"]))])


def test_more_records_than_bytes_for_them(codec):
    with pytest.raises(CorruptRecordError, match="announces 2000000000 records in 8 bytes"):
        codec.decode([forged(b"\x00" * 8, 2_000_000_000)])


def test_an_unknown_compression(codec):
    with pytest.raises(UnsupportedCompressionError):
        codec.decode([forged(b"\x00" * 8, 1, attributes=5)])


def test_views_keep_their_bytes_when_the_buffer_is_used_again(codec, implementation):
    buffer = bytearray(batch_at(0, [b"value"], keys=[b"key"], headers=[[("name", b"data")]]))
    (view,) = codec.records_of(buffer, read_header(buffer), implementation.RecordView)
    buffer[:] = bytes(len(buffer))
    assert (view.key, view.value, list(view.headers)) == (b"key", b"value", [("name", b"data")])


def test_names_of_headers_that_are_not_utf8_are_readable(codec, implementation):
    body = encode_batch([b"v"], headers=[[("ab", None)]], timestamps_ms=NOW_MS)[61:].replace(b"ab", b"a\xff")
    batch = forged(body, 1)
    ((*_, headers),) = rows_of(codec.decode([batch]))
    (view,) = codec.records_of(batch, read_header(batch), implementation.RecordView)
    assert headers == list(view.headers) == [("a\ufffd", None)]


def test_a_view_from_fields(implementation):
    class Named(implementation.RecordView):
        __slots__ = ()
        name = "class"

    fields = (5, 6, b"k", None, (("h", b"v"), ("i", None)))
    view = Named(fields)
    assert (view.offset, view.timestamp_ms, view.key, view.value, tuple(view.headers)) == fields
    assert tuple(view) == fields
    assert len(view) == 5
    assert (view[0], view[-2]) == (5, None)
    assert view.name == "class"


def test_a_builder_takes_no_more_than_was_announced_and_nothing_after_its_end(implementation):
    batch = batch_at(0, [b"value"])
    section = section_of(batch, read_header(batch), 0, 9)
    for rows, size_bytes in ((0, len(section.body)), (1, len(section.body) - 1)):
        with pytest.raises(AssertionError):
            implementation.ColumnBuilder(rows, size_bytes).add(section)
    builder = implementation.ColumnBuilder(2, 2 * len(section.body))
    builder.add(section)
    builder.finish()
    with pytest.raises(AssertionError):
        builder.finish()
    with pytest.raises(AssertionError):
        builder.add(section)


def test_a_filter_of_aborted_transactions_knows_the_batches_before_the_next_offset(codec):
    """Read in pieces, also before a damaged batch: what comes after an abort marker decides nothing about what is before it."""
    batches = [
        written(0, b"aborted", 1),
        marker_at(1, producer_id=1, is_abort=True),
        written(2, b"committed", 1),
        damaged_records(written(3, b"damaged", 2)),
        written(4, b"aborted too", 3),
        marker_at(5, producer_id=3, is_abort=True),
    ]
    log = b"".join(map(bytes, batches))
    aborted = AbortedFilter([(1, 0), (3, 4)])
    first = codec.decode([log], aborted=aborted, check=False)
    assert values_of(first) == [b"committed"] and first.next_offset == 3
    rest = log[first.consumed_bytes + len(batches[3]) :]
    assert values_of(codec.decode([rest], 4, aborted=aborted, check=False)) == []
    again = AbortedFilter([(1, 0)])
    parts, start, position = [], 0, 0
    while start < 3:
        part = codec.decode([memoryview(log)[position:]], start, 3, aborted=again, max_bytes=1)
        parts += values_of(part)
        start, position = part.next_offset, position + part.consumed_bytes
    assert parts == [b"committed"]


def damaged_records(batch):
    """Its first record says that it is longer than the batch."""
    found = bytearray(batch)
    found[61] = 0x7E
    return bytes(found)


def test_rows_that_were_taken_back_leave_nothing(implementation):
    """A section that fails at its second record has appended the first: not even its bit of validity stays."""

    def section(batch):
        return section_of(batch, read_header(batch), 0, 2**63 - 1)

    body = encode_batch([b"v", b"w"], keys=[b"k", b"l"], timestamps_ms=1)[61:]
    builder = implementation.ColumnBuilder(4, 1000)
    with pytest.raises(CorruptRecordError):
        builder.add(section(forged(body[:-1], 2)))
    builder.add(section(encode_batch([None], timestamps_ms=1)))
    _, _, keys, values, _ = builder.finish()
    assert (cells(keys, 1), cells(values, 1)) == ([None], [None])


def test_every_byte_that_is_no_text_is_replaced_in_names(codec):
    """Arrow's text must be valid UTF-8: a lone byte from 0x80 on is not."""
    for byte in range(0x80, 0x100):
        batch = encode_batch([b"v"], headers=[[("h", b"")]], timestamps_ms=1)
        body = batch[61:].replace(b"\x02h", b"\x02" + bytes([byte]))
        (row,) = rows_of(codec.decode([forged(body, 1)]))
        assert row[4] == [("\ufffd", b"")]


def test_memory_is_used_again_only_when_nobody_has_it(codec):
    """The compiled module keeps large blocks for the next columns."""
    value = bytes(100_000)
    kept = memoryview(codec.decode([batch_at(0, [b"a" + value, b"b" + value])]).values.data)
    for letter in (b"c", b"d"):
        codec.decode([batch_at(0, [letter + value, letter + value])])
    assert (kept[:1], kept[len(value) + 1 : len(value) + 2]) == (b"a", b"b")


def test_used_memory_leaves_nothing_in_the_next_columns(codec, implementation):
    count = 100 if implementation is pure else 600_000  # Then the bits of validity are a block that is kept.
    full: list[bytes | None] = [*[b""] * count, None]
    empty: list[bytes | None] = [*[None] * count, b""]
    for values in (full, empty):
        columns = codec.decode([batch_at(0, values)])
        assert values_of(columns) == values
        del columns

"""Hostile bytes: an error that says where, the same from both implementations, and nothing worse."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.log.records.record_world import batch_at, forged, implementations, rows_of

from barnabas.log.format.record_batch import HEADER_SIZE, read_header
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.format.varint import encode_varint
from barnabas.log.records.codec import Codec
from barnabas.log.records.faults import DamagedRecordsError, Fault
from barnabas.log.vocabulary.errors import CorruptRecordError

HUGE = b"\xff" * 9 + b"\x01"  # -2**63


def record(*fields: bytes, length: int | None = None) -> bytes:
    body = b"".join(fields)
    return encode_varint(len(body) if length is None else length) + body


def varints(*numbers: int) -> bytes:
    return b"".join(map(encode_varint, numbers))


PLAIN = (b"\x00", varints(0, 0, -1, 1), b"v", varints(0))
FAULTS = [
    (Fault.CUT_NUMBER, b"\x80" * 7, 1, 0, 0),
    (Fault.LONG_NUMBER, b"\xff" * 9 + b"\x02" + b"\x00" * 3, 1, 0, 0),
    (Fault.RECORD_BEYOND_BATCH, record(*PLAIN, length=8), 1, 0, 0),
    (Fault.RECORD_BEYOND_BATCH, record(*PLAIN, length=-1), 1, 0, 0),
    (Fault.RECORD_BEYOND_BATCH, HUGE + b"\x00" * 8, 1, 0, 0),
    (Fault.EMPTY_RECORD, record() + b"\x00" * 7, 1, 0, 1),
    (Fault.TIMESTAMP_RANGE, record(b"\x00", varints(2**63 - 1, 0, -1, -1, 0)), 1, 0, 2),
    (Fault.OFFSET_ORDER, record(b"\x00", varints(0, 1, -1, -1, 0)), 1, 0, 3),
    (Fault.OFFSET_ORDER, record(b"\x00", varints(0, -1, -1, -1, 0)), 1, 0, 3),
    (Fault.OFFSET_ORDER, record(*PLAIN) * 2, 2, 1, 11),
    (Fault.FIELD_BEYOND_RECORD, record(b"\x00", varints(0, 0, 4), b"key"), 1, 0, 4),
    (Fault.FIELD_BEYOND_RECORD, record(b"\x00", varints(0, 0), b"\xfe" + b"\xff" * 8 + b"\x01"), 1, 0, 4),
    (Fault.FIELD_BEYOND_RECORD, record(b"\x00", varints(0, 0, -1, 4), b"val"), 1, 0, 5),
    (Fault.HEADER_COUNT, record(b"\x00", varints(0, 0, -1, -1, -1)), 1, 0, 6),
    (Fault.HEADER_COUNT, record(b"\x00", varints(0, 0, -1, -1, 2), b"\x00\x00\x00"), 1, 0, 6),
    (Fault.NO_HEADER_NAME, record(b"\x00", varints(0, 0, -1, -1, 1, -1, -1)), 1, 0, 7),
    (Fault.FIELD_BEYOND_RECORD, record(b"\x00", varints(0, 0, -1, -1, 1, 2), b"n"), 1, 0, 7),
    (Fault.FIELD_BEYOND_RECORD, record(b"\x00", varints(0, 0, -1, -1, 1, 1), b"n", varints(1)), 1, 0, 9),
    (Fault.CUT_NUMBER, record(b"\x00", varints(0, 0, -1, -1, 1, 2), b"na"), 1, 0, 10),
    (Fault.RECORD_NOT_FILLED, record(*PLAIN, b"\x00"), 1, 0, 8),
    (Fault.BYTES_LEFT, record(*PLAIN) + b"\x00", 1, 1, 8),
]


@pytest.mark.parametrize("read", ["columns", "views", "lists", "spans"])
@pytest.mark.parametrize(("fault", "body", "count", "number", "position"), FAULTS)
def test_each_fault_is_named_with_its_record_and_position(
    codec, implementation, fault, body, count, number, position, read
):
    batch = forged(body, count, base_ms=1)
    with pytest.raises(DamagedRecordsError) as raised:
        if read == "columns":
            codec.decode([batch])
        elif read == "lists":
            codec.lists_of(batch, read_header(batch))
        elif read == "spans":
            codec.spans_of(batch, read_header(batch))
        else:
            codec.records_of(batch, read_header(batch), implementation.RecordView)
    error = raised.value
    assert (error.fault, error.base_offset, error.number, error.position) == (fault, 0, number, position)
    assert f"record {number} of the batch at offset 0 cannot be read at byte {position}" in error.message


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CorruptRecordError as error:
        return type(error), error.message


def told(implementation: ModuleType, batch: bytes, start: int, end: int) -> list[Any]:
    codec, view = Codec(implementation), implementation.RecordView
    return [
        outcome(lambda: rows_of(codec.decode([batch], start, end))),
        outcome(lambda: fields_of(codec.records_of(batch, read_header(batch), view, start, end))),
        outcome(lambda: codec.lists_of(batch, read_header(batch), start, end)),
        outcome(lambda: codec.spans_of(batch, read_header(batch))[1]),
    ]


def fields_of(views: list[Any]) -> list[tuple[Any, ...]]:
    return [(view.offset, view.timestamp_ms, view.key, view.value, tuple(view.headers)) for view in views]


BODY = encode_batch(
    [b"a" * 10, None, b"d"],
    keys=[b"k", b"l", None],
    timestamps_ms=[1, 2, 3],
    headers=[[("h", b"x")], [], [("i", None)]],
)[HEADER_SIZE:]


@settings(deadline=None, max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, len(BODY) - 1), st.integers(0, 255)), max_size=5),
    st.integers(0, len(BODY)),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
)
@example([], len(BODY), 3, 0, 4)
def test_both_implementations_say_the_same_of_any_bytes(changes, size, count, start, end):
    body = bytearray(BODY)
    for position, byte in changes:
        body[position] = byte
    batch = forged(bytes(body[:size]), count, base_ms=1, last_offset_delta=3)
    expected, *others = (told(implementation, batch, start, end) for implementation in implementations())
    assert others == [expected] * len(others)


def test_a_view_of_a_batch_with_a_wrong_crc(codec, implementation):
    batch = bytearray(batch_at(0, [b"a"]))
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        codec.records_of(batch, read_header(batch), implementation.RecordView)

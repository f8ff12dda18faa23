"""The messages of pgoutput, and values of PostgreSQL's types as JSON."""

import json
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.net.connect.postgres import wal

from barnabas.net.programs.connect.postgres.changes.faults import UnreadableMessageError
from barnabas.net.programs.connect.postgres.changes.lsn import lsn_of, lsn_text
from barnabas.net.programs.connect.postgres.changes.pgoutput import (
    POSTGRES_EPOCH_MS,
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Identity,
    Insert,
    Relation,
    Truncate,
    TypeName,
    Update,
    decode,
)
from barnabas.net.programs.connect.postgres.changes.values import TypeRow, Types


@given(st.integers(0, 2**64 - 1))
def test_log_sequence_numbers_are_written_as_the_server_writes_them(lsn: int) -> None:
    assert lsn_of(lsn_text(lsn)) == lsn
    assert lsn_text(0x16B374D848) == "16/B374D848"


def test_each_kind_of_message_is_read() -> None:
    assert decode(wal.begin(500, xid=9, commit_us=2_000_000)) == Begin(
        commit_lsn=500, commit_ms=POSTGRES_EPOCH_MS + 2000, xid=9
    )
    assert decode(wal.commit(500, 540)) == Commit(commit_lsn=500, end_lsn=540, commit_ms=POSTGRES_EPOCH_MS)
    assert decode(wal.relation(3, "public", "t", [("id", 23, True), ("v", 25, False)], "f")) == Relation(
        oid=3,
        schema="public",
        name="t",
        identity=Identity.FULL,
        columns=(Column(name="id", type_oid=23, is_identity=True), Column(name="v", type_oid=25, is_identity=False)),
    )
    assert decode(wal.insert(3, "1", None, "ü")) == Insert(3, ("1", None, "ü"))
    assert decode(wal.update(3, ["1", ...])) == Update(3, None, False, ("1", UNCHANGED))
    assert decode(wal.update(3, ["2", "b"], ["1", None])) == Update(3, ("1", None), False, ("2", "b"))
    assert decode(wal.update(3, ["2", ...], ["1", "a"], "O")) == Update(3, ("1", "a"), True, ("2", UNCHANGED))
    assert decode(wal.delete(3, ["1", None])) == Delete(3, ("1", None), False)
    assert decode(wal.delete(3, ["1", "a"], "O")) == Delete(3, ("1", "a"), True)
    assert decode(wal.truncate(3, 4)) == Truncate((3, 4))
    assert decode(wal.type_name(70, "shop", "mood")) == TypeName(oid=70, name="mood")
    assert decode(b"Oignored") is None


MESSAGES = (
    wal.begin(1),
    wal.commit(1, 2),
    wal.relation(3, "s", "t", [("a", 1, True)]),
    wal.insert(3, "1", None, "ü"),
    wal.update(3, ["1", ...]),
    wal.update(3, ["2", "b"], ["1", None]),
    wal.delete(3, ["1", "a"], "O"),
    wal.truncate(3, 4),
    wal.type_name(70, "shop", "mood"),
)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_ends_early_is_an_error(message: bytes) -> None:
    for size in range(len(message)):
        with pytest.raises(UnreadableMessageError, match="cannot be read|behind the message|begins with|unknown kind"):
            decode(message[:size])
    with pytest.raises(UnreadableMessageError, match="unknown kind"):
        decode(b"?" + message)


@pytest.mark.parametrize(
    "message",
    [
        b"I" + struct.pack("!I", 3) + b"N" + struct.pack("!H", 1) + b"t" + b"\xff\xff\xff\xff" + b"x",
        b"I" + struct.pack("!I", 3) + b"N" + struct.pack("!H", 1) + b"t" + b"\x7f\xff\xff\xff" + b"x",
        b"I" + struct.pack("!I", 3) + b"N" + b"\xff\xff" + b"n" * 10,
        b"T" + b"\xff\xff\xff\xff" + b"\0" + b"\0" * 400,
        b"R" + struct.pack("!I", 3) + b"s\0t\0d" + b"\xff\xff",
        b"R" + struct.pack("!I", 3) + b"s\0t\0?" + b"\0\0",
        b"R" + struct.pack("!I", 3) + b"\xff\0t\0d" + b"\0\0",
        b"U" + struct.pack("!I", 3) + b"X" + wal.row(["1"]),
        b"D" + struct.pack("!I", 3) + b"N" + wal.row(["1"]),
    ],
)
def test_sizes_and_kinds_that_lie_take_no_memory(message: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableMessageError, match="The connector has stopped before this message"):
            decode(message)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_messages_are_read_or_refused(message: bytes, data: st.DataObject) -> None:
    damaged = bytearray(message)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(damaged))
    except UnreadableMessageError as error:
        assert "PostgreSQL server" in error.message


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for kind in b"BCRIUDT":
        try:
            decode(bytes((kind,)) + data)
        except UnreadableMessageError as error:
            assert "PostgreSQL server" in error.message


TYPES = Types(
    {
        row.oid: row
        for row in (
            TypeRow(oid=16, name="bool"),
            TypeRow(oid=17, name="bytea"),
            TypeRow(oid=20, name="int8"),
            TypeRow(oid=25, name="text"),
            TypeRow(oid=701, name="float8"),
            TypeRow(oid=1114, name="timestamp"),
            TypeRow(oid=1184, name="timestamptz"),
            TypeRow(oid=1700, name="numeric"),
            TypeRow(oid=1009, name="_text", element_oid=25),
            TypeRow(oid=1016, name="_int8", element_oid=20),
            TypeRow(oid=1001, name="_bytea", element_oid=17),
            TypeRow(oid=1020, name="_box", element_oid=603, delimiter=";"),
            TypeRow(oid=90_000, name="amount", base_oid=20),
        )
    }
)


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (20, "9223372036854775807", 9223372036854775807),
        (90_000, "7", 7),
        (701, "1e+20", 1e20),
        (701, "NaN", "NaN"),
        (701, "-Infinity", "-Infinity"),
        (1700, "0.10", "0.10"),
        (16, "t", True),
        (16, "f", False),
        (17, "\\x0001ff", "AAH/"),
        (17, "\\x", ""),
        (25, 'a "b"\n\\', 'a "b"\n\\'),
        (1114, "2026-01-02 03:04:05.5", "2026-01-02T03:04:05.5"),
        (1114, "infinity", "infinity"),
        (1184, "2026-01-02 03:04:05.000001+00", "2026-01-02T03:04:05.000001Z"),
        (1184, "-infinity", "-infinity"),
        (1016, "{}", []),
        (1016, "{{1,NULL},{3,4}}", [[1, None], [3, 4]]),
        (1016, "[2:3]={1,2}", [1, 2]),
        (1009, '{a,"b,c","d \\"e\\" \\\\","NULL",NULL,"{"}', ["a", "b,c", 'd "e" \\', "NULL", None, "{"]),
        (1001, '{"\\\\x00ff"}', ["AP8="]),
        (1020, "{(1,1),(0,0);(2,2),(1,1)}", ["(1,1),(0,0)", "(2,2),(1,1)"]),
        (12_345, "unknown types are text", "unknown types are text"),
    ],
)
def test_values_are_json(oid: int, text: str, value: object) -> None:
    assert json.loads(TYPES.converter(oid)(text)) == value


def test_a_domain_has_the_name_of_its_base() -> None:
    assert TYPES.name(90_000) == "int8" and TYPES.name(4711) == ""

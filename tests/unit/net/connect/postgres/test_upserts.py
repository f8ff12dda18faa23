"""Records as changes of a target table: values as PostgreSQL reads them, and batches that hold one change for each key."""

import json

import pytest

from barnabas.net.programs.connect.postgres.changes.faults import SchemaConflictError
from barnabas.net.programs.connect.postgres.changes.upserts import (
    SourceTable,
    TableBatch,
    TableChange,
    TargetTable,
    change_of,
    source_table,
)

TABLE = TargetTable(
    schema="public",
    name="t",
    types={
        "id": "int8",
        "v": "text",
        "b": "bytea",
        "a": "_text",
        "m": "_bytea",
        "f": "float8",
        "ok": "bool",
        "j": "jsonb",
    },
)


def value(op: str = "c", after: object = None, **source: object) -> bytes:
    said = {"schema": "public", "table": "t", "commit_lsn": 100, "generation": 2, **source}
    return json.dumps({"op": op, "after": after, "source": said, "transaction": {"total_order": 3}}).encode()


def change(key: object, data: bytes | None) -> TableChange:
    return change_of(json.dumps(key).encode(), data, TABLE, "topic")


def test_each_kind_of_record() -> None:
    inserted = change({"id": 1}, value(after={"id": 1, "v": "x"}))
    assert (inserted.key, inserted.row, inserted.order) == ({"id": "1"}, {"id": "1", "v": "x"}, (2, 100, 3))
    partial = change({"id": 1}, value("u", {"id": 1, "v": "__debezium_unavailable_value"}, unchanged=["v"]))
    assert (partial.row, partial.missing) == ({"id": "1"}, frozenset({"v"}))
    assert change({"id": 1}, value("d")).row is None
    assert change({"id": 1}, value("d", new_key={"id": 2})).new_key == {"id": "2"}
    assert change({"__op": "t"}, value("t")).is_truncation
    assert change({"id": 1}, None).row is None
    assert change({"__op": "t"}, None).key == {}
    assert source_table(value(), "topic") == SourceTable(schema="public", name="t")


@pytest.mark.parametrize(
    ("column", "given", "text"),
    [
        ("id", 9223372036854775807, "9223372036854775807"),
        ("f", 1e20, "1e+20"),
        ("f", "NaN", "NaN"),
        ("ok", True, "t"),
        ("ok", False, "f"),
        ("b", "AAH/", "\\x0001ff"),
        ("b", "not base64", "not base64"),
        ("a", ["a", None, 'b "c" \\', "NULL"], '{"a",NULL,"b \\"c\\" \\\\","NULL"}'),
        ("a", [["a"], ["b"]], '{{"a"},{"b"}}'),
        ("a", [], "{}"),
        ("m", ["AP8="], '{"\\\\x00ff"}'),
        ("j", '{"x": 1}', '{"x": 1}'),
        ("j", {"x": "y"}, '{"x": "y"}'),
        ("v", None, None),
    ],
)
def test_values_are_written_as_the_server_reads_them(column: str, given: object, text: str | None) -> None:
    row = change({"id": 1}, value(after={"id": 1, column: given})).row
    assert row is not None and row[column] == text


@pytest.mark.parametrize(
    ("key", "data", "says"),
    [
        (b'{"id":1}', value(after={"id": 1, "new": 5}), "ALTER TABLE public.t ADD COLUMN new"),
        (b"{", value(), "key of a record of topic topic is no JSON"),
        (b"[1]", value(), "no JSON object"),
        (b'{"id":1}', b"\xff", "value of a record of topic topic is no JSON"),
        (b'{"id":1}', b'{"op":"c"}', "no change of a postgres-source"),
        (None, value(), "has no key"),
    ],
)
def test_what_cannot_be_written_is_an_error_that_says_why(key: bytes | None, data: bytes, says: str) -> None:
    with pytest.raises(SchemaConflictError, match=says):
        change_of(key, data, TABLE, "topic")
    with pytest.raises(SchemaConflictError, match=r"source\.table"):
        source_table(b'{"op":"c"}', "topic")


def test_a_batch_holds_the_result_of_all_changes_of_a_key() -> None:
    batch = TableBatch()
    batch.add(change({"id": 1}, value(after={"id": 1, "v": "large", "f": 1})))
    batch.add(change({"id": 2}, value(after={"id": 2, "v": "x", "f": 1})))
    batch.add(change({"id": 1}, value("u", {"id": 1, "f": 2}, unchanged=["v"])))
    batch.add(change({"id": 2}, value("d")))
    batch.add(change({"id": 3}, value("u", {"id": 3, "f": 5}, unchanged=["v"])))
    merged, deleted, partial = batch.take()
    assert merged.row == {"v": "large", "id": "1", "f": "2"} and not merged.missing
    assert deleted.key == {"id": "2"} and deleted.row is None
    assert partial.missing == {"v"}
    assert batch.take() == []

"""Values of records as columns: what fits each format, and the reason for each value that does not."""

import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from barnabas.net.cli.pipeline.postgres_checks import fits
from barnabas.net.programs.pipeline.spec import ValueField, ValueSpec
from barnabas.spark_connector.pipeline.values import PARSED, REASON, with_parsed

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
FIELDS = tuple(
    ValueField(name=name, type_name=kind)
    for name, kind in (("id", "bigint"), ("a b", "decimal(10,2)"), ("tags", "array<string>"), ("at", "timestamp"))
)
JSON = ValueSpec(format="json", fields=FIELDS, required=("id",))
CSV = ValueSpec(
    format="csv",
    fields=(ValueField(name="id", type_name="bigint"), ValueField(name="name", type_name="string")),
    delimiter=";",
    has_header=True,
    required=("name",),
)
CHANGES = ValueSpec(
    format="changes",
    fields=(
        ValueField(name="id", type_name="bigint"),
        ValueField(name="a b", type_name="decimal(10,2)"),
        ValueField(name="at", type_name="timestamp"),
    ),
    required=("a b",),
)
ACCESS = ValueSpec(format="access_log")
LINE = b'1.2.3.4 - eve [17/May/2015:10:05:03 +0200] "GET /a?b HTTP/1.1" 200 - "http://r/" "a \\"b\\""'


def parsed(spark: SparkSession, spec: ValueSpec, *values: bytes | None) -> list[Row]:
    frame = spark.createDataFrame([(value,) for value in values], "value binary")
    return with_parsed(frame, spec).select(PARSED, REASON).collect()


def dump(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def change(op: str, before: object = None, after: object = None, **source: object) -> bytes:
    said = {"commit_lsn": 100, "generation": 1, "ts_ms": 1_000, **source}
    return dump(op=op, before=before, after=after, source=said, transaction={"id": "7:100", "total_order": 3})


@pytest.mark.parametrize(
    ("spec", "value", "reason"),
    [
        (CHANGES, change("c", after={"id": 1, "a b": "5.50", "other": 3}), None),
        (CHANGES, change("r", after={"id": 1, "a b": "5.50", "at": "2026-01-02T03:04:05Z"}), None),
        (CHANGES, change("d", before={"id": 1}), None),
        (CHANGES, change("t"), None),
        (CHANGES, change("u", after={"id": 1}), "the field a b is missing"),
        (CHANGES, change("u", after={"id": 1, "a b": "x"}), "the field a b is x, which is no decimal(10,2)"),
        (CHANGES, change("d", before={"id": "x"}), "the field id is x, which is no bigint"),
        (
            CHANGES,
            change("u", after={"id": 1, "a b": "1"}, unchanged=["v", "w"]),
            "the change lacks the large values of v, w: ALTER TABLE ... REPLICA IDENTITY FULL in the source",
        ),
        (CHANGES, dump(id=1), "the value is no change of a table, as `barnabas connect` writes it"),
        (CHANGES, change("x"), "the value is no change of a table, as `barnabas connect` writes it"),
        (CHANGES, change("c", commit_lsn=None), "the value is no change of a table, as `barnabas connect` writes it"),
        (CHANGES, b"{", "the value is no change of a table, as `barnabas connect` writes it"),
        (JSON, dump(id=1), None),
        (JSON, dump(id=1, other=[1]), None),
        (JSON, b' {"id": 1} ', None),
        (JSON, None, "the record has no value"),
        (JSON, b"", "the value is not valid JSON"),
        (JSON, b"{", "the value is not valid JSON"),
        (JSON, b'{"id": 1} {"id": 2}', "the value is not valid JSON"),
        (JSON, b"[1]", "the value is not a JSON object"),
        (JSON, b'[{"id": 1}]', "the value is not a JSON object"),
        (JSON, b"3", "the value is not a JSON object"),
        (JSON, b"\xff", "the value is not UTF-8 text"),
        (JSON, dump(id="x"), "the field id is x, which is no bigint"),
        (JSON, dump(id=1, **{"a b": "y"}), "the field a b is y, which is no decimal(10,2)"),
        (JSON, dump(id=1, tags=3), "the field tags is 3, which is no array<string>"),
        (JSON, dump(id=1, at="never"), "the field at is never, which is no timestamp"),
        (JSON, dump(tags=[]), "the field id is missing"),
        (JSON, dump(id=None), "the field id is missing"),
        (CSV, b"1;a", None),
        (CSV, b'1;"a;b"', None),
        (CSV, b"1;a;b", "the line does not have 2 fields"),
        (CSV, b"1", "the line does not have 2 fields"),
        (CSV, b"x;a", "the field id is x, which is no bigint"),
        (CSV, b"1;", "the field name is missing"),
        (ACCESS, LINE, None),
        (ACCESS, LINE.partition(b' "http')[0], None),
        (ACCESS, LINE + b"\n", "the line is not in the format of an access log"),
        (ACCESS, b"GET /", "the line is not in the format of an access log"),
        (ACCESS, LINE.replace(b"May", b"Mai"), "the time cannot be read: 17/Mai/2015:10:05:03 +0200"),
        (ValueSpec(format="text"), b"any", None),
        (ValueSpec(format="text"), b"\xff", "the value is not UTF-8 text"),
        (ValueSpec(format="raw"), b"\xff", None),
    ],
)
def test_each_value_fits_or_has_a_reason(
    spark: SparkSession, spec: ValueSpec, value: bytes | None, reason: str
) -> None:
    (row,) = parsed(spark, spec, value)
    assert row[REASON] == reason


def test_a_change_is_the_row_after_it_or_the_key_that_was_deleted(spark: SparkSession) -> None:
    values = (
        change("u", before={"id": 1, "a b": "1"}, after={"id": 1, "a b": "5.50", "at": "2026-01-02T03:04:05Z"}),
        None,  # a tombstone
        change("d", before={"id": 2}),
        change("t", commit_lsn=2**62),
    )
    rows = [row[PARSED] for row in parsed(spark, CHANGES, *values)]
    assert [(row["id"], row["a b"], row["change_op"]) for row in rows] == [
        (1, Decimal("5.50"), "u"),
        (2, None, "d"),
        (None, None, "t"),
    ]
    assert [(row.change_generation, row.change_lsn, row.change_order) for row in rows] == [
        (1, 100, 3),
        (1, 100, 3),
        (1, 2**62, 3),
    ]
    assert rows[0].at.isoformat().startswith("2026-01-02") and rows[0].change_time is not None


def test_fields_of_json(spark: SparkSession) -> None:
    (row,) = parsed(spark, JSON, dump(id=7, tags=["x"], at="2026-01-31T07:00:00Z", **{"a b": 1.5}))
    found = row[PARSED].asDict()
    assert (found["id"], str(found["a b"]), found["tags"]) == (7, "1.50", ["x"])
    assert parsed(spark, JSON, dump(id=7))[0][PARSED].tags is None, "a field that old records lack is null"


def test_the_header_of_csv_is_left_out(spark: SparkSession) -> None:
    assert [row[PARSED].id for row in parsed(spark, CSV, b"id;name", b"1;a")] == [1]


def test_fields_of_an_access_log(spark: SparkSession) -> None:
    (row,) = parsed(spark, ACCESS, LINE)
    found = row[PARSED].asDict()
    assert found.pop("time").isoformat() == "2015-05-17T08:05:03"
    assert found == {
        "client": "1.2.3.4",
        "user": "eve",
        "request": "GET /a?b HTTP/1.1",
        "method": "GET",
        "path": "/a?b",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 0,
        "referer": "http://r/",
        "agent": 'a \\"b\\"',
    }


def test_the_types_that_a_check_allows_are_those_that_spark_reads(spark: SparkSession) -> None:
    """`pipeline validate` refuses a type for a column exactly where Spark would make a bad record of the value."""
    values = {
        "int2": "5", "int8": "5", "float8": "1.5", "numeric": '"12.50"', "bool": "true", "date": '"2026-01-02"',
        "timestamp": '"2026-01-02T03:04:05.123456"', "timestamptz": '"2026-01-02T03:04:05.123Z"', "bytea": '"aGk="',
        "text": '"abc"', "_int4": "[1,2]", "_text": '["a"]', "uuid": '"a-b"',
    }  # fmt: skip
    types = [
        "bigint",
        "int",
        "double",
        "decimal(10,2)",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
        "binary",
        "string",
    ]
    pairs = [(kind, name) for kind in (*types, "array<int>", "array<string>", "struct<a:int>") for name in values]
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "wrong"}
    read = [
        F.from_json(F.lit(f'{{"v":{values[name]}}}'), f"v {kind}, wrong string", options)["v"].isNotNull()
        for kind, name in pairs
    ]
    found = spark.range(1).select(*(column.alias(str(number)) for number, column in enumerate(read))).first()
    assert found is not None
    assert [pair for pair, is_read in zip(pairs, found, strict=True) if is_read != fits(*pair)] == []

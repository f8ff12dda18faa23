"""Values of records as columns: what fits each format, and the reason for each value that does not."""

import json
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from barnabas.net.pipeline.spec import ValueField, ValueSpec
from barnabas.spark_connector.pipeline.values import PARSED, REASON, with_parsed

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
ACCESS = ValueSpec(format="access_log")
LINE = b'1.2.3.4 - eve [17/May/2015:10:05:03 +0200] "GET /a?b HTTP/1.1" 200 - "http://r/" "a \\"b\\""'


def parsed(spark: SparkSession, spec: ValueSpec, *values: bytes | None) -> list[Row]:
    frame = spark.createDataFrame([(value,) for value in values], "value binary")
    return with_parsed(frame, spec).select(PARSED, REASON).collect()


def dump(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("spec", "value", "reason"),
    [
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

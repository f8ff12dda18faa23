"""Rows become columns of records: their topics and partitions, and what a row may not be."""

import pyarrow
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.log.vocabulary.errors import InvalidConfigError, InvalidRequestError
from barnabas.net.client.producer.partitioner import partition_of_key
from barnabas.spark_connector.common.schema import HEADERS_TYPE, arrow_schema
from barnabas.spark_connector.write.sink_columns import SinkColumns, SinkRows, check_columns

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "headers": HEADERS_TYPE,
    "map": MapType(StringType(), BinaryType()),
    "struct": StructType([StructField("a", IntegerType())]),
}


def schema_of(columns: str) -> StructType:
    """Spark's own reader of such a text needs a session."""
    pairs = [column.split() for column in columns.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def table(columns: str, rows: list[tuple[object, ...]]) -> pyarrow.RecordBatch:
    schema = arrow_schema(schema_of(columns))
    return pyarrow.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def rows_of(batch: pyarrow.RecordBatch, *, topic: str | None = "t", partitions: int = 3) -> list[SinkRows]:
    return list(SinkColumns(topic=topic, partition_count=lambda name: partitions).rows(batch))


def test_rows_without_keys_may_go_anywhere() -> None:
    (rows,) = rows_of(table("value string", [("a",), (None,), ("",)]))
    assert rows.may_go_anywhere and rows.columns == {"value": "value"}
    assert rows.table.to_pydict() == {"value": [b"a", None, b""]}
    (rows,) = rows_of(table("key string, value binary, partition int", [(None, b"a", None), (None, b"b", None)]))
    assert rows.may_go_anywhere and rows.table.to_pydict() == {"value": [b"a", b"b"]}


def test_the_keys_decide_on_the_partitions() -> None:
    """`send_table` hashes them."""
    (rows,) = rows_of(table("key string, value string", [("k", "a"), (None, "b")]))
    assert not rows.may_go_anywhere and rows.columns == {"value": "value", "key": "key"}
    assert rows.table.to_pydict() == {"value": [b"a", b"b"], "key": [b"k", None]}


def test_a_partition_goes_before_the_key_and_null_leaves_it_to_the_key() -> None:
    batch = table(
        "key string, value string, partition int",
        [("k", "a", 2), ("k", "b", None), (None, "c", None), (None, "d", 0)],
    )
    named, others = rows_of(batch)
    of_key = partition_of_key(b"k", 3)
    assert named.columns["partition"] == "partition" and not named.may_go_anywhere
    assert named.table.to_pydict() == {
        "value": [b"a", b"b", b"d"],
        "key": [b"k", b"k", None],
        "partition": [2, of_key, 0],
    }
    assert others.may_go_anywhere and others.table.to_pydict() == {"value": [b"c"]}


def test_partitions_without_keys() -> None:
    (named,) = rows_of(table("value string, partition int", [("a", 2), ("b", 0)]))
    assert named.table.to_pydict() == {"value": [b"a", b"b"], "partition": [2, 0]}
    named, others = rows_of(table("value string, partition int", [("a", 2), ("b", None)]))
    assert [rows.table["value"].to_pylist() for rows in (named, others)] == [[b"a"], [b"b"]]
    assert not named.may_go_anywhere and others.may_go_anywhere


def test_topics_by_column_and_the_option_before_it() -> None:
    batch = table("value string, topic string", [("1", "a"), ("2", "b"), ("3", "a")])
    by_column = [(rows.topic, rows.table["value"].to_pylist()) for rows in rows_of(batch, topic=None)]
    assert by_column == [("a", [b"1", b"3"]), ("b", [b"2"])]
    (rows,) = rows_of(batch)
    assert (rows.topic, rows.table.num_rows) == ("t", 3)


def test_headers() -> None:
    pairs = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    batch = table("value string, headers headers", [("a", pairs), ("b", None), ("c", [])])
    (rows,) = rows_of(batch)
    assert rows.columns["headers"] == "headers" and rows.table["headers"].to_pylist() == [pairs, None, []]
    (rows,) = rows_of(table("value string, headers headers", [("a", None)]))
    assert "headers" not in rows.columns
    batch = table("value string, partition int, headers headers", [("a", 1, pairs), ("b", None, pairs)])
    assert [rows.table["headers"].to_pylist() for rows in rows_of(batch)] == [[pairs], [pairs]]


def test_a_slice_and_an_empty_batch() -> None:
    """Only the rows of a slice count, not those that its buffers have beside it."""
    named, unnamed = ([{"key": name, "value": b"1"}] for name in ("h", None))
    batch = table("value string, headers headers", [("a", unnamed), ("b", named), ("c", unnamed)])
    (rows,) = rows_of(batch.slice(1, 1))
    assert rows.table.to_pydict() == {"value": [b"b"], "headers": [named]}
    assert rows_of(batch.slice(1, 0)) == []


@pytest.mark.parametrize(
    ("columns", "row", "cure"),
    [
        ("value string, topic string", ("v", None), r'topic is null in 1 of 1 rows: .option\("topic", NAME\)'),
        ("value string, partition int", ("v", 3), "partition 3 of 1 rows: topic 't' has partitions 0 to 2"),
        ("value string, partition int", ("v", -1), "null leaves the choice to the key"),
        ("value string, headers headers", ("v", [{"key": None, "value": b"1"}]), "a header without a name"),
    ],
)
def test_a_row_that_cannot_be_a_record(columns: str, row: tuple[object, ...], cure: str) -> None:
    with pytest.raises(InvalidRequestError, match=cure):
        rows_of(table(columns, [row]), topic=None if "topic" in columns else "t")


@pytest.mark.parametrize(
    ("columns", "topic", "cure"),
    [
        ("key string", "t", "there is no column 'value': select one"),
        ("value string", None, 'there is no topic: .option("topic", NAME)'),
        ("value int", "t", "column 'value' is int where string or binary is needed"),
        ("key bigint, value string", "t", "column 'key' is bigint"),
        ("value string, partition bigint", "t", "column 'partition' is bigint where int is needed"),
        ("value string, topic binary", "t", "where string is needed"),
        ("value string, headers map", "t", "array<struct<key:string,value:binary>> is needed"),
        ("vaule string", "t", "did you mean value?"),
        ("value string, city string", "t", "to_json(struct(...)) AS value, or drop it"),
        ("value struct", "t", "to_json(struct(...)) AS value"),
    ],
)
def test_columns_that_a_topic_cannot_take(columns: str, topic: str | None, cure: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        check_columns(schema_of(columns), topic=topic)
    assert cure in str(caught.value)


def test_what_was_read_from_a_topic_can_be_written_to_another() -> None:
    read = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
        "headers headers"
    )
    check_columns(schema_of(read), topic=None)

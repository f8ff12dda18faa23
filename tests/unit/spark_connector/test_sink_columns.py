"""Rows become columns of records: the partitioner for whole columns, grouping, and what a row may not be."""

from random import Random

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
from barnabas.spark_connector.write.key_partitions import NO_KEY, partitions_of_keys
from barnabas.spark_connector.write.sink_columns import Rows, SinkColumns, check_columns

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


def rows_of(batch: pyarrow.RecordBatch, *, topic: str | None = "t", partitions: int = 3) -> list[Rows]:
    return list(SinkColumns(topic=topic, partition_count=lambda name: partitions).rows(batch))


@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_column_of_keys_goes_where_each_of_them_goes(count: int) -> None:
    random = Random(count)
    keys = [random.randbytes(length) for length in [*range(40), *(random.randrange(300) for _ in range(300))]]
    random.shuffle(keys)
    assert partitions_of_keys(pyarrow.array(keys), count).tolist() == [partition_of_key(key, count) for key in keys]


def test_null_keys_and_parts_of_a_column() -> None:
    keys = [b"a", None, b"", b"abcdefgh", None, b"last"]
    expected = [NO_KEY if key is None else partition_of_key(key, 5) for key in keys]
    column = pyarrow.array(keys, pyarrow.binary())
    assert partitions_of_keys(column, 5).tolist() == expected
    for start in range(len(keys)):
        assert partitions_of_keys(column.slice(start, 2), 5).tolist() == expected[start : start + 2]


def test_rows_without_keys_stay_together() -> None:
    (rows,) = rows_of(table("value string", [("a",), (None,), ("",)]))
    assert rows == Rows(topic="t", partition=None, values=[b"a", None, b""], keys=None, headers=None)
    (rows,) = rows_of(table("key string, value binary", [(None, b"a"), (None, b"b")]))
    assert rows.partition is None and rows.keys is None


def test_rows_keep_their_order_within_a_partition() -> None:
    keys = [f"k{number % 7}" for number in range(100)]
    batch = table("key string, value string", [(key, str(number)) for number, key in enumerate(keys)])
    found = rows_of(batch)
    assert sum(len(rows.values) for rows in found) == 100
    for rows in found:
        numbers = [int(value or b"") for value in rows.values]
        assert numbers == sorted(numbers)
        assert [keys[number].encode() for number in numbers] == rows.keys
        assert {partition_of_key(key or b"", 3) for key in rows.keys or ()} == {rows.partition}


def test_a_partition_goes_before_the_key_and_null_leaves_it_to_the_key() -> None:
    batch = table("key string, value string, partition int", [("k", "a", 2), ("k", "b", None), (None, "c", None)])
    found = {rows.partition: rows.values for rows in rows_of(batch)}
    expected: dict[int | None, list[bytes | None]] = {None: [b"c"]}
    for partition, value in ((2, b"a"), (partition_of_key(b"k", 3), b"b")):
        expected.setdefault(partition, []).append(value)
    assert found == expected


def test_topics_by_column_and_the_option_before_it() -> None:
    batch = table("value string, topic string", [("1", "a"), ("2", "b"), ("3", "a")])
    assert [(rows.topic, rows.values) for rows in rows_of(batch, topic=None)] == [("a", [b"1", b"3"]), ("b", [b"2"])]
    assert [(rows.topic, rows.values) for rows in rows_of(batch)] == [("t", [b"1", b"2", b"3"])]


def test_headers() -> None:
    pairs = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    batch = table("value string, headers headers", [("a", pairs), ("b", None), ("c", [])])
    (rows,) = rows_of(batch)
    assert rows.headers == [[("h", b"1"), ("n", None)], [], []]
    (rows,) = rows_of(table("value string, headers headers", [("a", None)]))
    assert rows.headers is None


@pytest.mark.parametrize(
    ("columns", "row", "cure"),
    [
        ("value string, topic string", ("v", None), r'topic is null in 1 of 1 rows: .option\("topic", NAME\)'),
        ("value string, partition int", ("v", 3), "partition 3 of 1 rows: topic 't' has partitions 0 to 2"),
        ("value string, partition int", ("v", -1), "null leaves the choice to the key"),
        ("value string, headers headers", ("v", [{"key": None, "value": b"1"}]), "a header has no key"),
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

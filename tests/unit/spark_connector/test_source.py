"""How Spark meets the source: found without Java, cheap to make, refusing what it cannot do; and columns without Spark."""

import pickle
import struct
import subprocess
import sys
from typing import Any

import pyarrow
import pytest
from crc32c import crc32c
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.range_reader import Chunk, columns_of
from barnabas.spark_connector.common.schema import arrow_schema, check_projection, source_schema
from barnabas.spark_connector.read.columns import ArrowColumns
from barnabas.spark_connector.source import BarnabasDataSource

FULL = source_schema(includes_headers=True)
GIVEN = {"bootstrap.servers": "no-such-host:1", "subscribe": "t"}


def test_the_thin_package_is_harmless_where_pyspark_is_missing() -> None:
    """An error in any `pyspark_*` package hides the sources of all of them."""
    script = (
        "import sys; sys.modules['pyspark.sql.datasource'] = None\n"
        "import pyspark_barnabas as p; print(hasattr(p, 'DefaultSource'), 'pyspark.sql.datasource' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "True"]


def test_importing_the_thin_package_costs_nothing() -> None:
    script = (
        "import sys, pyspark_barnabas; print(any(name.startswith(('pyspark.', 'barnabas.')) for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_what_spark_makes_again_and_again_connects_to_nothing_and_can_be_pickled() -> None:
    source = pickle.loads(pickle.dumps(BarnabasDataSource(dict(GIVEN))))
    assert source.name() == "barnabas" and source.schema() == source_schema(includes_headers=False)
    for reader in (source.reader(source.schema()), source.streamReader(source.schema())):
        assert type(pickle.loads(pickle.dumps(reader))) is type(reader)


def test_wrong_options_are_refused_before_anything_is_asked() -> None:
    with pytest.raises(InvalidConfigError, match="did you mean subscribe"):
        BarnabasDataSource({"bootstrap.servers": "h:1", "subscribed": "t"}).reader(FULL)


def test_a_schema_may_name_some_columns_with_their_types() -> None:
    check_projection(StructType([StructField("offset", LongType()), StructField("value", BinaryType())]))
    with pytest.raises(InvalidConfigError, match="read it as binary and cast"):
        check_projection(StructType([StructField("value", StringType())]))
    with pytest.raises(InvalidConfigError, match="no column 'Value'"):
        check_projection(StructType([StructField("Value", BinaryType())]))


def rows(schema: StructType, batch: bytes, *, start: int = 0, end: int = 1 << 40) -> list[dict[str, Any]]:
    arrow = ArrowColumns(schema, TopicPartition("t", 3))
    found = [arrow.batch_of(columns) for columns in columns_of(TopicPartition("t", 0), Chunk(start, batch), end=end)]
    assert all(part.schema.equals(arrow_schema(schema)) for part in found)
    return [row for part in found for row in part.to_pylist()]


def test_columns_are_to_the_letter_what_spark_compares() -> None:
    batch = encode_batch(
        [b"a", None], keys=[None, b"k"], timestamps_ms=[1_500, 1_700], headers=[(("h", b"x"), ("n", None)), ()]
    )
    first, second = rows(FULL, batch)
    assert {**first, "timestamp": first["timestamp"].timestamp()} == {
        "key": None,
        "value": b"a",
        "topic": "t",
        "partition": 3,
        "offset": 0,
        "timestamp": 1.5,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
    }
    assert (second["key"], second["value"], second["headers"], second["offset"]) == (b"k", None, None, 1)


def test_only_what_is_asked_for_is_there_within_its_range() -> None:
    schema = StructType([StructField("offset", LongType())])
    batch = encode_batch([b"%d" % n for n in range(10)], timestamps_ms=1)
    assert rows(schema, batch, start=3, end=6) == [{"offset": 3}, {"offset": 4}, {"offset": 5}]


def test_the_topics_id_is_a_column_on_request() -> None:
    schema = StructType([StructField("topicId", StringType()), StructField("offset", LongType())])
    check_projection(schema)
    (columns,) = columns_of(TopicPartition("t", 3), Chunk(0, encode_batch([b"a"] * 2, timestamps_ms=1)), end=9)
    found = ArrowColumns(schema, TopicPartition("t", 3), "id-of-t").batch_of(columns).to_pylist()
    assert found == [{"topicId": "id-of-t", "offset": 0}, {"topicId": "id-of-t", "offset": 1}]
    assert "topicId" not in source_schema(includes_headers=True).names


def test_batches_of_other_sizes() -> None:
    arrow = ArrowColumns(FULL, TopicPartition("t", 3))
    for count in (3, 1, 5):
        (columns,) = columns_of(TopicPartition("t", 0), Chunk(0, encode_batch([b"v"] * count, timestamps_ms=1)), end=99)
        found = arrow.batch_of(columns)
        assert isinstance(found, pyarrow.RecordBatch) and found.column("topic").to_pylist() == ["t"] * count
        found.validate(full=True)


def test_times_of_the_broker_have_their_type() -> None:
    created, appended = encode_batch([b"a"], timestamps_ms=1_000), bytearray(encode_batch([b"b"], timestamps_ms=5))
    struct.pack_into(">q", appended, 0, 1)
    struct.pack_into(">h", appended, 21, 8)
    struct.pack_into(">q", appended, 35, 2_000)
    struct.pack_into(">I", appended, 17, crc32c(memoryview(appended)[21:]))
    found = rows(FULL, created + appended)
    assert [(row["timestamp"].timestamp(), row["timestampType"]) for row in found] == [(1.0, 0), (2.0, 1)]

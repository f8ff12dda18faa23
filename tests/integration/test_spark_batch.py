"""spark.read on real Spark and three real brokers: columns, ranges by offsets and by time, partitions, refusals."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from integration.cluster import Cluster
from integration.spark_world import FORMAT, create_topic, in_admin, load, numbers, send, values_of
from pyspark.sql import SparkSession

from barnabas import sync

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
HOUR_MS = 3_600_000
T0_MS = 1_700_000_000_000


def refused(make: Callable[[], object]) -> str:
    """What Spark tells of a failure, all of it."""
    with pytest.raises(Exception) as caught:
        make()
    return str(caught.value)


def test_every_column_is_what_was_sent(spark: SparkSession, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "columns", partitions=1)
    send(spark_cluster, "columns", [b"v"], key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=T0_MS)
    send(spark_cluster, "columns", [None], key=b"\x00\xff", timestamp_ms=T0_MS + 1)
    send(spark_cluster, "columns", [b""])

    frame = load(spark, spark_cluster, subscribe="columns", includeHeaders="true")
    assert frame.columns == [*COLUMNS, "headers"]
    first, second, third = frame.orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition, first.offset) == (
        b"k",
        b"v",
        "columns",
        0,
        0,
    )
    assert [(item.key, item.value) for item in first.headers] == [("h", b"1"), ("n", None)]
    assert first.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(T0_MS / 1000, UTC) and first.timestampType == 0
    assert (bytes(second.key), second.value, second.headers) == (b"\x00\xff", None, None)
    assert second.timestamp.microsecond == 1000
    assert (third.key, bytes(third.value), third.offset) == (None, b"", 2)
    assert load(spark, spark_cluster, subscribe="columns").columns == COLUMNS


def test_log_append_time_and_compression(spark: SparkSession, spark_cluster: Cluster) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        topic = create_topic(
            spark_cluster, f"codec-{codec}", compression_type=codec, message_timestamp_type="LogAppendTime"
        )
        send(spark_cluster, topic, numbers(0, 300), timestamp_ms=T0_MS)
    frame = load(spark, spark_cluster, subscribePattern="codec-.*")
    assert values_of(frame) == sorted([*range(300)] * 4)
    assert {row.timestampType for row in frame.select("timestampType").distinct().collect()} == {1}
    assert frame.where(f"timestamp <= timestamp_millis({T0_MS})").count() == 0


def test_topics_by_name_by_pattern_and_by_partition(spark: SparkSession, spark_cluster: Cluster) -> None:
    for number, topic in enumerate(("by-name-a", "by-name-b", "other-by-name-c")):
        create_topic(spark_cluster, topic)
        send(spark_cluster, topic, numbers(10 * number, 10 * number + 5), partition=0)
        send(spark_cluster, topic, numbers(10 * number + 5, 10 * number + 10), partition=1)
    assert values_of(load(spark, spark_cluster, subscribe="by-name-a,by-name-b")) == list(range(20))
    assert values_of(load(spark, spark_cluster, subscribePattern="by-name-[bc]")) == list(range(10, 20))
    chosen = json.dumps({"by-name-a": [1], "other-by-name-c": [0]})
    assert values_of(load(spark, spark_cluster, assign=chosen)) == [5, 6, 7, 8, 9, 20, 21, 22, 23, 24]


def test_ranges_by_offset(spark: SparkSession, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "ranged")
    send(spark_cluster, "ranged", numbers(0, 50), partition=0)
    send(spark_cluster, "ranged", numbers(100, 150), partition=1)

    def read(start: object, end: object) -> list[int]:
        offsets = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}
        return values_of(load(spark, spark_cluster, subscribe="ranged", **offsets))

    assert read({"ranged": {"0": 10, "1": -2}}, {"ranged": {"0": 12, "1": 3}}) == [10, 11, 100, 101, 102]
    assert read({"ranged": {"0": 49, "1": 50}}, {"ranged": {"0": -1, "1": -1}}) == [49]
    assert read({"ranged": {"0": 20, "1": 5}}, {"ranged": {"0": 20, "1": 5}}) == []


def test_ranges_by_time_and_their_precedence(spark: SparkSession, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "timed")
    for number in range(10):
        send(
            spark_cluster,
            "timed",
            numbers(number, number + 1),
            partition=number % 2,
            timestamp_ms=T0_MS + number * HOUR_MS,
        )

    def read(**options: str | int) -> list[int]:
        return values_of(load(spark, spark_cluster, subscribe="timed", **options))

    assert read(startingTimestamp=T0_MS + 4 * HOUR_MS, endingTimestamp=T0_MS + 7 * HOUR_MS) == [4, 5, 6]
    by_partition = {"timed": {"0": T0_MS + 8 * HOUR_MS, "1": T0_MS + 5 * HOUR_MS}}
    assert read(startingOffsetsByTimestamp=json.dumps(by_partition)) == [5, 7, 8, 9]
    assert read(endingOffsetsByTimestamp=json.dumps(by_partition)) == [0, 1, 2, 3, 4, 6]
    # One time for all goes before one for each, and that before offsets.
    assert read(
        startingTimestamp=T0_MS + 9 * HOUR_MS,
        startingOffsetsByTimestamp=json.dumps(by_partition),
        startingOffsets="earliest",
        startingOffsetsByTimestampStrategy="latest",
    ) == [9]
    late = T0_MS + 99 * HOUR_MS
    assert "timed-0, timed-1" in refused(lambda: read(startingTimestamp=late))
    assert read(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    assert read(endingTimestamp=late) == list(range(10))


def test_aborted_and_open_transactions_are_read_only_if_asked_for(spark: SparkSession, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "isolated", partitions=1)

    def read(**options: str) -> list[int]:
        return values_of(load(spark, spark_cluster, subscribe="isolated", **options))

    with sync.Producer(spark_cluster.bootstrap, transactional_id="isolated") as producer:
        for first in (0, 10, 20):
            transaction = producer.transaction()
            transaction.begin()
            transaction.send_many("isolated", numbers(first, first + 5)).result()
            if first != 10:
                transaction.commit()
            else:
                transaction.abort()
        everything = {0, 1, 2, 3, 4, 20, 21, 22, 23, 24}
        assert set(read()) == everything
        transaction = producer.transaction()
        transaction.begin()
        transaction.send_many("isolated", numbers(30, 35)).result()
        send(spark_cluster, "isolated", numbers(40, 45))
        assert set(read()) == everything, "behind an open transaction, nothing is committed"
        uncommitted = set(read(**{"isolation.level": "read_uncommitted"}))
        assert uncommitted >= everything | {*range(30, 35), *range(40, 45)}
        transaction.commit()
        assert len(read()) == 20 and set(read()) == everything | {*range(30, 35), *range(40, 45)}


def test_partitions_are_cut_and_cover_everything(spark: SparkSession, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "cut", partitions=2)
    send(spark_cluster, "cut", numbers(0, 900), partition=0)
    send(spark_cluster, "cut", numbers(900, 1000), partition=1)
    for options, least in (({"minPartitions": 7}, 7), ({"maxRecordsPerPartition": 130}, 8)):
        frame = load(spark, spark_cluster, subscribe="cut", **options)
        sizes = [len(rows) for rows in frame.select("value").rdd.glom().collect()]
        assert len(sizes) >= least and max(sizes) <= 150
        assert values_of(frame) == list(range(1000))


def test_a_schema_of_ones_own_is_a_projection(spark: SparkSession, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "projected", partitions=1)
    send(spark_cluster, "projected", numbers(0, 5), key=b"k")
    source = (
        spark.read.format(FORMAT).option("bootstrap.servers", spark_cluster.bootstrap).option("subscribe", "projected")
    )
    frame = source.schema("offset bigint, value binary").load()
    assert frame.columns == ["offset", "value"]
    assert [(row.offset, bytes(row.value)) for row in frame.orderBy("offset").collect()] == list(
        enumerate(numbers(0, 5))
    )
    assert "cast the column" in refused(lambda: source.schema("value string").load().collect())
    assert "no column 'valeu'" in refused(lambda: source.schema("valeu binary").load().collect())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "refusals", "failOnDataLos": "true"}, "did you mean failOnDataLoss"),
        ({"subscribe": "refusals", "kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"subscribe": "refusals", "startingOffsets": "latest"}, "would read nothing in a batch"),
        ({"subscribe": "refusals", "startingOffsets": '{"refusals":{"0":1}}'}, "it lacks refusals-1"),
        ({"subscribe": "refusals", "assign": '{"refusals":[0]}'}, "exactly one of subscribe"),
        ({"assign": '{"refusals":[7]}'}, "the topic has the partitions 0 to 1"),
        ({"subscribe": "no-such-topic"}, "barnabas topic create no-such-topic"),
    ],
)
def test_wrong_options_are_refused(
    spark: SparkSession, spark_cluster: Cluster, options: dict[str, str], told: str
) -> None:
    if not in_admin(spark_cluster, lambda admin: admin.list_topics()).count("refusals"):
        create_topic(spark_cluster, "refusals")
    assert told in refused(lambda: load(spark, spark_cluster, **options).collect())


def test_lost_records_fail_a_batch_or_are_left_out(spark: SparkSession, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "lossy", partitions=1)
    send(spark_cluster, "lossy", numbers(0, 100))
    options = {"subscribe": "lossy", "startingOffsets": '{"lossy":{"0":5}}'}
    planned = load(spark, spark_cluster, **options, failOnDataLoss="false", endingOffsets='{"lossy":{"0":90}}')
    assert planned.count() == 85
    in_admin(spark_cluster, lambda admin: admin.delete_records("lossy", 0, before_offset=60))
    assert "failOnDataLoss" in refused(lambda: load(spark, spark_cluster, **options).collect())
    assert values_of(load(spark, spark_cluster, **options, failOnDataLoss="false")) == list(range(60, 100))
    # Here the range was planned while the records were there; the task finds that they have gone since.
    assert values_of(planned) == list(range(60, 90))


def test_sql_finds_the_source_by_itself(spark: SparkSession, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "in-sql")
    send(spark_cluster, "in-sql", numbers(0, 7))
    options = f"OPTIONS ('bootstrap.servers' '{spark_cluster.bootstrap}', subscribe 'in-sql')"
    spark.sql(f"CREATE TEMPORARY VIEW sent USING barnabas {options}")
    assert spark.sql("SELECT sum(CAST(CAST(value AS STRING) AS INT)) AS total FROM sent").collect()[0].total == 21
    spark.sql(f"CREATE TABLE kept USING barnabas {options}")  # Spark's own fault; a release that mends it fails here.
    assert "CREATE TEMPORARY VIEW" in refused(lambda: spark.sql("SELECT * FROM kept").collect())
    spark.sql("DROP TABLE kept")


def test_large_values_and_many_records_come_whole(spark: SparkSession, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "large", partitions=1)
    sizes = [1, 700_000, 900_000, 10, 800_000]
    send(spark_cluster, "large", [b"x" * size for size in sizes])
    send(spark_cluster, "large", [b"y"] * 25_000)
    frame = load(spark, spark_cluster, subscribe="large", **{"kafka.fetch.max.bytes": 100_000})
    found = frame.selectExpr("offset", "length(value) AS size").orderBy("offset").collect()
    assert [row.size for row in found] == [*sizes, *[1] * 25_000]
    assert [row.offset for row in found] == list(range(25_005))


def test_spark_finds_the_package_without_being_told() -> None:
    """What `spark` above relies on: the thin package is a folder of sys.path, and has what Spark looks for."""
    import pyspark_barnabas

    assert re.search(r"pyspark_barnabas$", str(Path(pyspark_barnabas.__file__).parent))
    assert pyspark_barnabas.DefaultSource.name() == FORMAT  # type: ignore[attr-defined]

"""spark.readStream on real Spark and three real brokers: exact from the checkpoint, limits, changes of topics, lag."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from integration.cluster import Cluster, until
from integration.spark_world import STREAM_DEADLINE_S, Options, Stream, create_topic, in_admin, numbers, send
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.spark_connector.read.offsets import records_behind

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.


def failure(query: StreamingQuery) -> str:
    """Why a query ended."""
    with pytest.raises(Exception):  # noqa: B017 - Spark's own; what it tells is compared
        query.awaitTermination(STREAM_DEADLINE_S)
    return str(query.exception())


def test_a_restart_goes_on_where_the_checkpoint_says(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    create_topic(spark_cluster, "restarted")
    send(spark_cluster, "restarted", numbers(0, 100))
    stream = Stream(spark, spark_cluster, tmp_path, subscribe="restarted", startingOffsets="earliest")
    stream.run()
    assert stream.values == list(range(100))
    stream.run()
    assert stream.values == list(range(100))
    send(spark_cluster, "restarted", numbers(100, 150))
    stream.run()
    assert stream.values == list(range(150))
    assert sorted(len(rows) for rows in stream.batches.values() if rows) == [50, 100]


def test_a_batch_without_a_commit_is_read_again_exactly(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    create_topic(spark_cluster, "replayed")
    send(spark_cluster, "replayed", numbers(0, 40))
    options: Options = {"subscribe": "replayed", "startingOffsets": "earliest"}
    Stream(spark, spark_cluster, tmp_path, **options).run()
    send(spark_cluster, "replayed", numbers(40, 100))

    again = Stream(spark, spark_cluster, tmp_path, **options)
    again.forget_commit(0)
    again.run()
    assert sorted(int(row.value) for row in again.batches[0]) == list(range(40))  # Although there is more by now.
    assert again.values == list(range(100))


def test_latest_is_fixed_by_the_first_start_even_without_a_record(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    create_topic(spark_cluster, "from-latest")
    send(spark_cluster, "from-latest", numbers(0, 10))
    stream = Stream(spark, spark_cluster, tmp_path, subscribe="from-latest")
    stream.run()
    assert stream.values == []
    send(spark_cluster, "from-latest", numbers(10, 20))  # Nobody reads now.
    stream.forget_commit(0)  # And the driver was killed in its first batch: Spark asks for the start once more.
    stream.run()
    assert stream.values == list(range(10, 20))


def test_a_limit_is_shared_among_partitions(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> None:
    create_topic(spark_cluster, "rated", partitions=2)
    send(spark_cluster, "rated", numbers(0, 90), partition=0)
    send(spark_cluster, "rated", numbers(90, 100), partition=1)
    options: Options = {
        "subscribe": "rated",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 50,
        "minPartitions": 4,
    }
    stream = Stream(spark, spark_cluster, tmp_path, **options)
    stream.run()
    assert stream.values == list(range(100))
    parts = {batch: sorted(int(row.value) // 90 for row in rows) for batch, rows in stream.batches.items()}
    assert parts == {0: [0] * 45 + [1] * 5, 1: [0] * 45 + [1] * 5}


def test_a_running_query_sees_records_partitions_and_topics_that_come(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    create_topic(spark_cluster, "stream-grows-a", partitions=1)
    options: Options = {
        "subscribePattern": "stream-grows-.*",
        "startingOffsets": "earliest",
        "kafka.metadata.max.age.ms": 200,
    }
    stream = Stream(spark, spark_cluster, tmp_path, **options)
    query = stream.start()
    try:
        send(spark_cluster, "stream-grows-a", numbers(0, 10))
        stream.until_values(range(10), query)
        in_admin(spark_cluster, lambda admin: admin.add_partitions("stream-grows-a", 3))
        send(spark_cluster, "stream-grows-a", numbers(10, 20), partition=2)
        stream.until_values(range(20), query)
        create_topic(spark_cluster, "stream-grows-b")
        send(spark_cluster, "stream-grows-b", numbers(20, 30))
        stream.until_values(range(30), query)
    finally:
        query.stop()


def test_too_few_records_wait_for_more(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> None:
    create_topic(spark_cluster, "few", partitions=1)
    send(spark_cluster, "few", numbers(0, 5))
    options: Options = {
        "subscribe": "few",
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": 10,
        "maxTriggerDelay": "10m",
    }
    stream = Stream(spark, spark_cluster, tmp_path, **options)
    query = stream.start()
    try:
        stream.until_values(range(5), query)  # The first batch waits for nobody.
        send(spark_cluster, "few", numbers(5, 14))

        async def sees_them() -> None:
            """In its progress, where it says that it has not read them."""
            behind = {TopicPartition("few", 0): 9}
            await until(lambda: lag(query) == behind, "the query knows of 9 records", timeout_s=STREAM_DEADLINE_S)

        asyncio.run(sees_them())
        assert stream.values == list(range(5))
        send(spark_cluster, "few", numbers(14, 15))
        stream.until_values(range(15), query)
        assert sorted(len(rows) for rows in stream.batches.values()) == [5, 10]
    finally:
        query.stop()


def lag(query: StreamingQuery) -> dict[TopicPartition, int]:
    progress = query.lastProgress
    if progress is None:
        return {}
    return records_behind(progress.sources[0].endOffset, progress.sources[0].latestOffset)


def test_lag_is_in_the_progress_and_in_the_group(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> None:
    create_topic(spark_cluster, "lagging", partitions=2)
    send(spark_cluster, "lagging", numbers(0, 60), partition=0)
    send(spark_cluster, "lagging", numbers(60, 100), partition=1)
    options: Options = {
        "subscribe": "lagging",
        "startingOffsets": "earliest",
        "groupId": "spark-job",
        "maxOffsetsPerTrigger": 50,
    }
    query = Stream(spark, spark_cluster, tmp_path, **options).run()
    sources = [progress.sources[0] for progress in query.recentProgress]
    behind = [sum(records_behind(item.endOffset, item.latestOffset).values()) for item in sources]
    assert behind[:2] == [50, 0]
    found = in_admin(spark_cluster, lambda admin: admin.group_offsets("spark-job"))
    assert {str(partition): (item.committed, item.lag) for partition, item in found.items()} == {
        "lagging-0": (60, 0),
        "lagging-1": (40, 0),
    }


def test_a_topic_made_anew_is_data_loss_or_read_from_its_start(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    create_topic(spark_cluster, "remade", partitions=1)
    send(spark_cluster, "remade", numbers(0, 20))
    options: Options = {"subscribe": "remade", "startingOffsets": "earliest"}
    stream = Stream(spark, spark_cluster, tmp_path, **options)
    stream.run()
    in_admin(spark_cluster, lambda admin: admin.delete_topic("remade"))
    create_topic(spark_cluster, "remade", partitions=1)
    send(spark_cluster, "remade", numbers(100, 130))
    told = failure(stream.start(availableNow=True))
    assert "was deleted and recreated" in told and "failOnDataLoss" in told
    going_on = Stream(spark, spark_cluster, tmp_path, **options, failOnDataLoss="false")
    going_on.run()
    assert going_on.values == list(range(100, 130))


def test_a_topic_that_is_gone_is_data_loss_or_left_out(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    for topic, start in (("stays", 0), ("goes", 10)):
        create_topic(spark_cluster, topic, partitions=1)
        send(spark_cluster, topic, numbers(start, start + 10))
    options: Options = {"subscribe": "stays,goes", "startingOffsets": "earliest", "kafka.metadata.max.age.ms": 200}
    stream = Stream(spark, spark_cluster, tmp_path, **options, failOnDataLoss="false")
    query = stream.start()
    try:
        stream.until_values(range(20), query)
        in_admin(spark_cluster, lambda admin: admin.delete_topic("goes"))  # While it is read,
        send(spark_cluster, "stays", numbers(20, 30))
        stream.until_values(range(30), query)
    finally:
        query.stop()
    send(spark_cluster, "stays", numbers(30, 40))
    assert "goes" in failure(Stream(spark, spark_cluster, tmp_path, **options).start(availableNow=True))
    stream.run()  # and when it is read again.
    assert stream.values == list(range(40))


def test_records_that_retention_took_are_data_loss_or_skipped(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    create_topic(spark_cluster, "expired", partitions=1)
    send(spark_cluster, "expired", numbers(0, 20))
    options: Options = {"subscribe": "expired", "startingOffsets": "earliest"}
    stream = Stream(spark, spark_cluster, tmp_path, **options)
    stream.run()
    send(spark_cluster, "expired", numbers(20, 60))
    in_admin(spark_cluster, lambda admin: admin.delete_records("expired", 0, before_offset=50))
    assert "offsets 20 to 50 are lost" in failure(stream.start(availableNow=True))
    going_on = Stream(spark, spark_cluster, tmp_path, **options, failOnDataLoss="false")
    going_on.run()
    assert going_on.values == list(range(50, 60))


def accepted(cluster: Cluster) -> int:
    """Connections that all brokers have taken since they began."""
    total = 0
    for node in cluster.nodes:
        with urlopen(f"http://{node.property('admin.listener')}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        total += sum(
            int(float(line.split()[-1])) for line in lines if line.startswith("barnabas_connections_accepted_total")
        )
    return total


def test_micro_batches_share_their_connections(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, report_line: Callable[[str], None]
) -> None:
    """A task without a warm worker would connect to its leader anew; of 48, hardly one may."""
    create_topic(spark_cluster, "warm", partitions=4)
    options: Options = {"subscribe": "warm", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    stream = Stream(spark, spark_cluster, tmp_path, **options)
    for number in range(4):
        send(spark_cluster, "warm", numbers(120 * number, 120 * (number + 1)), partition=number)
    before = accepted(spark_cluster)
    stream.run()
    reads = sum(1 for rows in stream.batches.values() if rows) * 4
    assert stream.values == list(range(480)) and reads == 48
    made = accepted(spark_cluster) - before
    # The query's own process: three brokers, for control and for fetches, and its bootstrap. Workers may be new as well.
    cold_workers = 2
    report_line(f"spark: {reads} reads of a stream in {len(stream.batches)} micro-batches made {made} connections")
    assert made <= 7 * (1 + cold_workers) + reads // 20, (made, reads)

"""df.write and df.writeStream on real Spark and three real brokers: columns, refusals, both deliveries, replays."""

import asyncio
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from integration.cluster import Cluster
from integration.decided import markers_written
from integration.spark_world import FORMAT, Options, create_topic, in_admin, numbers, send
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.partitioner import partition_of_key
from barnabas.spark_connector.common.sink_ledger import ids_prefix
from barnabas.spark_connector.source import BarnabasDataSource
from barnabas.spark_connector.write.sink_task import TaskReport
from barnabas.spark_connector.write.write_options import parse_write_options
from barnabas.spark_connector.write.writer import BatchWriter

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
DEADLINE_S = 90
EFFECTIVELY: Options = {"delivery": "effectively_once"}


def read(cluster: Cluster, topic: str) -> list[ConsumerRecord]:
    """All committed records that are in a topic now; where a transaction is open, up to its first one."""

    async def read_all() -> list[ConsumerRecord]:
        await markers_written(cluster.bootstrap)  # the sink waits for them, but not longer than two seconds
        async with Consumer(bootstrap=cluster.bootstrap, isolation_level="read_committed") as consumer:
            async with cluster.admin() as admin:
                consumer.assign(list(await admin.list_offsets(topic)))
            ends = await consumer.end_offsets()
            await consumer.seek_to_start()
            records: list[ConsumerRecord] = []
            while [item for item, end in ends.items() if await consumer.position(item) < end]:
                for found in (await consumer.poll(timeout_ms=500)).values():
                    records += found
            return records

    return asyncio.run(read_all())


def values(records: list[ConsumerRecord]) -> list[int]:
    return sorted(int(record.value or b"-1") for record in records)


def write(frame: DataFrame, cluster: Cluster, **options: str | int) -> None:
    frame.write.format(FORMAT).option("bootstrap.servers", cluster.bootstrap).options(**options).mode("append").save()


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        make()
    return str(caught.value)


class Copy:
    """A query from one topic to another. Runs of the same one share the checkpoint."""

    def __init__(self, spark: SparkSession, cluster: Cluster, checkpoint: Path, **options: Any) -> None:
        self._spark = spark
        self._cluster = cluster
        self.checkpoint = checkpoint
        self._options = options

    def run(self, source: str, **read_options: str | int) -> StreamingQuery:
        frame = (
            self._spark.readStream.format(FORMAT)
            .option("bootstrap.servers", self._cluster.bootstrap)
            .options(subscribe=source, startingOffsets="earliest", **read_options)
            .load()
        )
        query = (
            frame.select("key", "value")
            .writeStream.format(FORMAT)
            .option("bootstrap.servers", self._cluster.bootstrap)
            .options(**self._options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(DEADLINE_S), "the query did not end"
        return query

    def forget_commit(self, batch_id: int) -> None:
        """As a driver that was killed after the batch's work and before its commit."""
        for name in (str(batch_id), f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.mark.parametrize("delivery", ["at_least_once", "effectively_once"])
def test_every_column_becomes_what_it_says(spark: SparkSession, spark_cluster: Cluster, delivery: str) -> None:
    topic = create_topic(spark_cluster, f"columns-{delivery}", partitions=3)
    other = create_topic(spark_cluster, f"columns-other-{delivery}", partitions=3)
    rows = spark.sql(
        f"""
        select key, value, topic, partition, headers from values
            ('a', 'text', '{topic}', null, null),
            ('b', null, '{topic}', null, null),
            (null, 'chosen', '{other}', 2, array(named_struct('key', 'h', 'value', binary('x')),
                                                 named_struct('key', 'n', 'value', null))),
            ('c', 'chosen too', '{topic}', 1, null)
        as rows(key, value, topic, partition, headers)
        """
    )
    write(rows, spark_cluster, delivery=delivery)
    found = {record.key: record for record in read(spark_cluster, topic)}
    assert {key: record.value for key, record in found.items()} == {b"a": b"text", b"b": None, b"c": b"chosen too"}
    assert found[b"a"].partition == partition_of_key(b"a", 3) and found[b"b"].partition == partition_of_key(b"b", 3)
    assert found[b"c"].partition == 1
    (chosen,) = read(spark_cluster, other)
    assert (chosen.partition, chosen.key, chosen.value) == (2, None, b"chosen")
    assert list(chosen.headers) == [("h", b"x"), ("n", None)]


@pytest.mark.parametrize("delivery", ["at_least_once", "effectively_once"])
def test_a_stream_writes_each_row_once(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, delivery: str
) -> None:
    source = create_topic(spark_cluster, f"stream-in-{delivery}")
    target = create_topic(spark_cluster, f"stream-out-{delivery}", partitions=3)
    send(spark_cluster, source, numbers(0, 3_000))
    copy = Copy(spark, spark_cluster, tmp_path / "checkpoint", topic=target, delivery=delivery)
    copy.run(source, maxOffsetsPerTrigger=1_000)
    send(spark_cluster, source, numbers(3_000, 4_000))
    copy.run(source)
    assert values(read(spark_cluster, target)) == list(range(4_000))


def test_a_replayed_micro_batch_writes_nothing_twice(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    source = create_topic(spark_cluster, "replayed-in")
    outcomes: dict[str, Counter[int]] = {}
    send(spark_cluster, source, numbers(0, 500))
    for delivery in ("effectively_once", "at_least_once"):
        target = create_topic(spark_cluster, f"replayed-{delivery}", partitions=3)
        copy = Copy(spark, spark_cluster, tmp_path / delivery, topic=target, delivery=delivery)
        copy.run(source)
        copy.forget_commit(0)
        copy.run(source)
        outcomes[delivery] = Counter(values(read(spark_cluster, target)))
    assert set(outcomes["effectively_once"].values()) == {1} and len(outcomes["effectively_once"]) == 500
    assert set(outcomes["at_least_once"].values()) == {2}, "else this test shows nothing"


def test_a_topic_that_grows_is_written_to_the_end(spark: SparkSession, spark_cluster: Cluster) -> None:
    topic = create_topic(spark_cluster, "growing", partitions=1)
    rows = spark.range(200).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    write(rows, spark_cluster, topic=topic, **EFFECTIVELY)
    in_admin(spark_cluster, lambda admin: admin.add_partitions(topic, 4))
    fresh = rows.withColumn("partition", rows.key.cast("int") % 4)  # To all four of them.
    write(fresh.coalesce(1), spark_cluster, topic=topic, **EFFECTIVELY, **{"metadata.max.age.ms": 100})
    records = read(spark_cluster, topic)
    assert {record.partition for record in records} == {0, 1, 2, 3}
    assert values(records) == sorted([*range(200)] * 2)


def test_a_job_with_a_sink_id_writes_its_rows_once_however_often_it_runs(
    spark: SparkSession, spark_cluster: Cluster
) -> None:
    topic = create_topic(spark_cluster, "job")
    rows = spark.range(100).selectExpr("cast(id as string) as value")
    for _ in range(2):
        write(rows, spark_cluster, topic=topic, sinkId="daily:2026-11-21", **EFFECTIVELY)
    assert values(read(spark_cluster, topic)) == list(range(100))
    write(rows, spark_cluster, topic=topic, **EFFECTIVELY)
    write(rows, spark_cluster, topic=topic, **EFFECTIVELY)
    assert Counter(Counter(values(read(spark_cluster, topic))).values()) == {3: 100}


def test_a_job_that_fails_without_any_report_leaves_no_prepared_transaction(
    spark: SparkSession, spark_cluster: Cluster
) -> None:
    """A worker may be lost between the end of its transaction and its report; no other driver knows the id of such a job."""

    class Losing(BatchWriter):
        def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> TaskReport:
            BatchWriter.write(self, iterator)
            raise RuntimeError("the report is lost")

    class LosingSource(BarnabasDataSource):
        @classmethod
        def name(cls) -> str:
            return "losing"

        def writer(self, schema: StructType, overwrite: bool) -> Losing:
            return Losing(parse_write_options(self.options), schema, overwrite=overwrite)

    topic = create_topic(spark_cluster, "losing")
    spark.dataSource.register(LosingSource)
    rows = spark.range(10).selectExpr("cast(id as string) as value").coalesce(1)
    losing = rows.write.format("losing").option("bootstrap.servers", spark_cluster.bootstrap).options(**EFFECTIVELY)
    assert "the report is lost" in refused(losing.option("topic", topic).mode("append").save)
    opened: list[Any] = []
    in_admin(spark_cluster, lambda admin: _open_transactions(admin, opened))
    assert not opened
    write(rows, spark_cluster, topic=topic, **EFFECTIVELY)
    assert values(read(spark_cluster, topic)) == list(range(10)), "readers of committed records wait for nothing"


def test_a_task_that_outlives_its_job_leaves_no_prepared_transaction(
    spark: SparkSession, spark_cluster: Cluster
) -> None:
    """As a speculative attempt, whose first row comes after the job's clean-up: no driver looks for its transaction again."""
    topic = create_topic(spark_cluster, "late")
    rows = spark.range(10).selectExpr("cast(id as string) as value").coalesce(1)
    options = parse_write_options(
        {"bootstrap.servers": spark_cluster.bootstrap, "topic": topic, "delivery": "effectively_once"}
    )
    writer = BatchWriter(options, rows.schema, overwrite=False)

    def attempt(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        yield pyarrow.RecordBatch.from_pydict({"report": [pickle.dumps(writer.write(batches))]})

    def run() -> list[TaskReport]:
        return [pickle.loads(bytes(row.report)) for row in rows.mapInArrow(attempt, "report binary").collect()]

    writer.commit(run())
    assert values(read(spark_cluster, topic)) == list(range(10))
    assert "the job of this task has ended without it" in refused(run)
    opened: list[Any] = []
    in_admin(spark_cluster, lambda admin: _open_transactions(admin, opened))
    assert not opened
    assert values(read(spark_cluster, topic)) == list(range(10))


async def _open_transactions(admin: Admin, found: list[Any]) -> None:
    found += await admin.transactions.of_prefix(ids_prefix("")[:-1], states=("Ongoing", "Prepared"))


def test_what_cannot_be_written_is_refused_with_the_cure(spark: SparkSession, spark_cluster: Cluster) -> None:
    topic = create_topic(spark_cluster, "sink-refusals")
    one = spark.sql("select 'v' as value")
    number = spark.sql("select 1 as value")
    assert "did you mean value?" in refused(lambda: write(one.toDF("val1"), spark_cluster, topic=topic))
    assert "string or binary is needed" in refused(lambda: write(number, spark_cluster, topic=topic))
    assert "there is no topic" in refused(lambda: write(one, spark_cluster))
    assert "did you mean topic?" in refused(lambda: write(one, spark_cluster, topik=topic))
    assert "acks is always all" in refused(lambda: write(one, spark_cluster, topic=topic, **{"kafka.acks": "1"}))
    overwrite = one.write.format(FORMAT).option("bootstrap.servers", spark_cluster.bootstrap).option("topic", topic)
    assert "cannot be overwritten" in refused(overwrite.mode("overwrite").save)
    nulls = spark.sql(f"select 'v' as value, if(id < 3, null, '{topic}') as topic from range(10)")
    assert "topic is null in" in refused(lambda: write(nulls.coalesce(1), spark_cluster))
    away = spark.sql("select 'v' as value, 7 as partition")
    assert "has partitions 0 to 1" in refused(lambda: write(away, spark_cluster, topic=topic))
    assert read(spark_cluster, topic) == []

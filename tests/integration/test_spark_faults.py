"""Brokers that die under a query: in the middle of a batch, and one after the other while it runs."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
import pytest
from integration.cluster import Cluster, full_isr, partitions_of, until
from integration.spark_world import STREAM_DEADLINE_S, Options, Stream, create_topic, numbers, send
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
PADDING = b" " * 1_000  # int() takes it; what a task holds in its pipes is then small beside its range


class HeldStream(Stream):
    """The first task that reads partition 0 stands still after its first rows, until the test lets it go on."""

    gate: Path

    def through(self, frame: DataFrame) -> DataFrame:
        reached, released = str(self.gate / "reached"), str(self.gate / "released")
        deadline_s = STREAM_DEADLINE_S

        def hold(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            for batch in batches:
                if batch.num_rows and batch.column("partition")[0].as_py() == 0 and not Path(released).exists():
                    Path(reached).touch()
                    until_s = time.monotonic() + deadline_s
                    while not Path(released).exists() and time.monotonic() < until_s:
                        time.sleep(0.01)
                yield batch

        return frame.mapInArrow(hold, frame.schema)


def leader_of(cluster: Cluster, topic: str, partition: int) -> int:
    async def ask() -> int:
        async with cluster.admin() as admin:
            return (await partitions_of(admin, topic))[partition].leader

    return asyncio.run(ask())


def test_a_leader_dies_in_the_middle_of_a_batch(
    spark: SparkSession, new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster()
    asyncio.run(cluster.ready())
    create_topic(cluster, "interrupted", partitions=2)
    for partition in (0, 1):
        send(cluster, "interrupted", [b"%d" % n + PADDING for n in range(partition, 20_000, 2)], partition=partition)
    options: Options = {"subscribe": "interrupted", "startingOffsets": "earliest", "kafka.fetch.max.bytes": 200_000}
    stream = HeldStream(spark, cluster, tmp_path / "checkpoint", **options)
    stream.gate = tmp_path
    query = stream.start(columns=("value", "partition"), availableNow=True)
    asyncio.run(until((tmp_path / "reached").exists, "the task reads", timeout_s=STREAM_DEADLINE_S))
    cluster.kill(leader_of(cluster, "interrupted", 0))
    (tmp_path / "released").touch()
    assert query.awaitTermination(STREAM_DEADLINE_S)
    assert stream.values == list(range(20_000))
    assert list(stream.batches) == [0]  # Not by a second try of the batch: the task itself went to the new leader.


def test_brokers_die_and_come_back_under_a_query(
    spark: SparkSession, new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster()
    asyncio.run(cluster.ready())
    create_topic(cluster, "battered", partitions=3)
    stream = Stream(
        spark, cluster, tmp_path / "checkpoint", subscribe="battered", startingOffsets="earliest", groupId="battered"
    )
    query = stream.start()
    try:
        for node_id in range(3):
            start = 200 * node_id
            send(cluster, "battered", numbers(start, start + 100))
            cluster.kill(node_id)
            send(cluster, "battered", numbers(start + 100, start + 200))
            stream.until_values(range(start + 200), query)
            cluster.start(node_id)
            asyncio.run(all_in_sync(cluster))
        cluster.kill(0, 1, 2)  # And all at once.
        cluster.start(0, 1, 2)
        asyncio.run(cluster.ready())
        asyncio.run(all_in_sync(cluster))
        send(cluster, "battered", numbers(600, 700))
        stream.until_values(range(700), query)
    finally:
        query.stop()


async def all_in_sync(cluster: Cluster) -> None:
    async with cluster.admin() as admin:
        await full_isr(admin, ["battered"])

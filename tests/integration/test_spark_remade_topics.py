"""A topic is deleted and created again between the planning of a range and its reading: no record of the new topic is in it.

The new topic has at least as many records, so that every offset of the range exists in it.
"""

from pathlib import Path

import pytest
from integration.cluster import Cluster
from integration.spark_world import Options, Stream, create_topic, in_admin, load, numbers, send, values_of
from integration.test_spark_stream import failure
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)
OLD, NEW = numbers(0, 20), numbers(100, 140)


def remake(cluster: Cluster, topic: str) -> None:
    in_admin(cluster, lambda admin: admin.delete_topic(topic))
    create_topic(cluster, topic, partitions=1)
    send(cluster, topic, NEW)


def test_a_batch_reads_the_topic_that_was_planned_or_fails(spark: SparkSession, spark_cluster: Cluster) -> None:
    """Spark plans the ranges of a DataFrame once."""
    for topic in ("planned", "planned-lost"):
        create_topic(spark_cluster, topic, partitions=1)
        send(spark_cluster, topic, OLD)
    options: Options = {"startingOffsets": "earliest"}
    frame = load(spark, spark_cluster, subscribe="planned", **options).select("value")
    losing = load(spark, spark_cluster, subscribe="planned-lost", failOnDataLoss="false", **options).select("value")
    for each in (frame, losing):
        assert values_of_planned(each) == list(range(20))
    for topic in ("planned", "planned-lost"):
        remake(spark_cluster, topic)
    with pytest.raises(Exception) as caught:
        values_of_planned(frame)
    told = str(caught.value)
    assert "topic planned was deleted and created again" in told and "offsets 0 to 20 are lost" in told, told
    assert "failOnDataLoss" in told
    assert values_of_planned(losing) == []
    assert values_of(load(spark, spark_cluster, subscribe="planned", **options)) == list(range(100, 140))


def values_of_planned(frame: DataFrame) -> list[int]:
    """Of this DataFrame, not of another one that is made of it, which would be planned again."""
    return sorted(int(row.value) for row in frame.collect())


class Remaking(Stream):
    """The topic is made again within micro-batch 1, which is planned already."""

    topic = ""
    is_planned_only = False  # otherwise it was also read

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            if not self.is_planned_only:
                frame.collect()
            remake(self._cluster, self.topic)
        super()._take(frame, batch_id)


@pytest.mark.parametrize("is_planned_only", [True, False])
def test_a_micro_batch_never_has_records_of_the_new_topic_in_the_place_of_the_old(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, is_planned_only: bool
) -> None:
    topic = create_topic(spark_cluster, f"swapped-{is_planned_only}".lower(), partitions=1)
    send(spark_cluster, topic, OLD[:10])
    options: Options = {"subscribe": topic, "startingOffsets": "earliest"}
    Stream(spark, spark_cluster, tmp_path, **options).run()
    send(spark_cluster, topic, OLD[10:])
    stream = Remaking(spark, spark_cluster, tmp_path, **options)
    stream.topic, stream.is_planned_only = topic, is_planned_only
    told = failure(stream.start(availableNow=True))
    assert f"topic {topic} was deleted and" in told and "failOnDataLoss" in told, told
    assert not stream.batches
    going_on = Stream(spark, spark_cluster, tmp_path, **options, failOnDataLoss="false")
    going_on.run()
    assert going_on.values == list(range(100, 140)), "micro-batch 1 is repeated without its lost records"


def test_a_query_that_goes_on_without_lost_records_has_each_new_record_once(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = create_topic(spark_cluster, "swapped-under-it", partitions=1)
    send(spark_cluster, topic, OLD[:10])
    options: Options = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    stream = Remaking(spark, spark_cluster, tmp_path, **options)  # which refreshes its metadata after five minutes
    stream.topic = topic
    query = stream.start()
    try:
        stream.until_values(range(10), query)
        send(spark_cluster, topic, OLD[10:])
        stream.until_values([*range(10), *range(100, 140)], query)
    finally:
        query.stop()

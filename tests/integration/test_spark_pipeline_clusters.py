"""Pipelines whose topics are in another cluster, whose positions are published, whose state has a size; Iceberg tables."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from integration.cluster import Cluster
from integration.declared_pipeline import Declared
from integration.spark_world import create_topic, in_admin, send
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from barnabas.spark_connector.pipeline.faults import PipelineFault, is_final, told_of
from barnabas.spark_connector.pipeline.lakes.iceberg import CATALOG_FILE, CATALOG_NAME

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
NOWHERE: Any = SimpleNamespace(bootstrap="127.0.0.1:1")


def pipeline(topic: str, source: str, dead: str = "") -> str:
    errors = f'action = "dead-letter"\ntopic = "{dead}"' if dead else 'action = "skip"'
    return f"""
name = "{topic}"
[source]
topics = ["{topic}"]
value = {{ format = "json", fields = {{ id = "bigint" }} }}
max_records = 2
{source}
[[steps]]
sql = "SELECT id % 3 AS key, count(*) AS count FROM input GROUP BY id % 3"
[sink]
table = "counts"
database = "sqlite:counts.db"
write = "upsert"
key = ["key"]
[errors]
{errors}
"""


def test_topics_of_another_cluster_and_the_size_of_the_state(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    """The pipeline's own cluster, and its login, are not asked for the topics of the other one."""
    topic = create_topic(spark_cluster, "other-cluster", partitions=1)
    send(spark_cluster, topic, [json.dumps({"id": number}).encode() for number in range(5)])
    text = pipeline(topic, f'bootstrap = "{spark_cluster.bootstrap}"')
    declared = Declared(spark, NOWHERE, tmp_path, text)
    declared.run()
    progress = declared.state.read_progress()
    assert (progress.records, progress.lag, progress.state_rows) == (5, 0, 3) and progress.state_bytes > 0
    declared.file.write_text(text.replace("max_records", 'config = "other.properties"\nmax_records'))
    with pytest.raises(PipelineFault, match=r"there is no file .*other\.properties"):
        declared.job()


def test_positions_are_published_under_the_group(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> None:
    topic = create_topic(spark_cluster, "published", partitions=1)
    dead = create_topic(spark_cluster, "published-dead", partitions=1)
    send(spark_cluster, topic, [b'{"id": 1}', b"bad", b'{"id": 2}', b'{"id": 3}'])
    Declared(spark, spark_cluster, tmp_path, pipeline(topic, 'group = "counts"', dead)).run()
    found = in_admin(spark_cluster, lambda admin: admin.group_offsets("counts"))
    assert {str(place): (item.committed, item.lag) for place, item in found.items()} == {"published-0": (4, 0)}


@pytest.mark.parametrize("sink", ['delta = "lake"', 'iceberg = "shop.t"\nwarehouse = "lake"'])
def test_a_micro_batch_that_the_table_has_moves_the_watermark_on(
    sink: str, spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    """The driver was killed between the commit of the table and that of the checkpoint. The window that the micro-batch closes
    is written then, not with the next record."""
    topic = create_topic(spark_cluster, f"watermark-{sink[:4]}", partitions=1)
    text = f"""
name = "{topic}"
[source]
topics = ["{topic}"]
value = {{ format = "json", fields = {{ at = "timestamp" }} }}
watermark = {{ column = "at", delay = "1 second" }}
[[steps]]
sql = "SELECT window.start, count(*) AS count FROM input GROUP BY window(at, '10 seconds')"
[sink]
{sink}
"""
    declared = Declared(spark, spark_cluster, tmp_path, text)
    send(spark_cluster, topic, [b'{"at": "2026-01-01T00:00:01Z"}'])
    declared.run()
    send(spark_cluster, topic, [b'{"at": "2026-01-01T00:00:30Z"}'])
    job = declared.job()
    write = job._write
    assert write is not None

    def killed(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        raise KeyError("killed")

    job._write = killed
    with pytest.raises(StreamingQueryException):
        job.run(is_once=True)
    declared.run()
    found = [table for table in tmp_path.rglob("*.parquet") if "checkpoint" not in str(table)]
    assert sum(pq.read_metadata(file).num_rows for file in found) == 1


def test_an_iceberg_table_takes_new_columns_and_no_other_types(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = create_topic(spark_cluster, "to-iceberg", partitions=2)
    send(spark_cluster, topic, [b'{"id": 1, "at": "2026-01-02T03:04:05Z"}', b'{"id": 2}'])
    text = pipeline(topic, "").replace("max_records = 2\n", "").partition("[[steps]]")[0]
    text = text.replace("max_records = 2", "").replace('id = "bigint"', 'id = "bigint", at = "timestamp"')
    sink = '[[steps]]\nsql = "SELECT id, at FROM input"\n[sink]\niceberg = "shop.t"\nwarehouse = "lake"\n'
    declared = Declared(spark, spark_cluster, tmp_path, text + sink)
    declared.run()
    declared.replay()
    send(spark_cluster, topic, [b'{"id": 3}'])
    declared.file.write_text(text + sink.replace("id, at", "id, array(id) AS more"))
    declared.run()
    lake = tmp_path / "lake"
    catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{lake / CATALOG_FILE}", warehouse=str(lake))
    found = catalog.load_table("shop.t").scan().to_arrow().to_pylist()
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert sorted((row["id"], row["at"], row["more"]) for row in found) == [
        (1, at, None),
        (2, None, None),
        (3, None, [3]),
    ]

    send(spark_cluster, topic, [b'{"id": 4}'])
    declared.file.write_text(text + sink.replace("id, at", "CAST(id AS string) AS id"))
    with pytest.raises(StreamingQueryException) as caught:
        declared.run()
    told = "sink.iceberg: column 'id' is long in shop.t and string in the result: cast it"
    assert is_final(caught.value) and told_of(caught.value) == told

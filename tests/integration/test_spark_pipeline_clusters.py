"""Pipelines whose topics are in another cluster, whose positions are published, and whose state has a size."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from integration.cluster import Cluster
from integration.declared_pipeline import Declared
from integration.spark_world import create_topic, in_admin, send
from pyspark.sql import SparkSession

from barnabas.spark_connector.pipeline.faults import PipelineFault

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

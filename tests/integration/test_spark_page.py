"""The page for Spark users is true: its snippets run in their order, and its table of options is the code's."""

import re
from typing import Any

import pytest
from integration.cluster import Cluster
from integration.spark_world import create_topic, load, send
from pyspark.sql import SparkSession
from tidy.source_tree import ROOT

from barnabas.spark_connector.common.options import CLIENT_NAMES
from barnabas.spark_connector.read.read_options import NAMES

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
SPARK_PAGE = (ROOT / "docs/spark.md").read_text(encoding="utf-8")


def test_the_snippets_run_in_their_order(spark: SparkSession, spark_cluster: Cluster, capsys: Any) -> None:
    create_topic(spark_cluster, "access-log", partitions=6)
    create_topic(spark_cluster, "seen")
    send(spark_cluster, "access-log", [b"GET /a", b"GET /b", b"POST /c"], key=b"10.0.0.1")
    snippets = re.findall(r"^```python spark(?: sink)?\n(.*?)^```$", SPARK_PAGE, re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 4
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(compile(snippet.replace("localhost:9092", spark_cluster.bootstrap), "docs/spark.md", "exec"), names)
    shown = re.sub(r"[ ]+", "", capsys.readouterr().out)
    for expected in ("10.0.0.1|GET/a", "|GET|2|", "|POST|1|", "TopicPartition(topic='access-log',partition=0):0"):
        assert expected in shown
    seen = load(spark, spark_cluster, subscribe="seen").selectExpr("CAST(value AS STRING) AS value").collect()
    assert sorted(row.value for row in seen) == ["seen: GET /a", "seen: GET /b", "seen: POST /c"]
    names["query"].stop()


def test_the_table_of_options_is_complete() -> None:
    section = SPARK_PAGE.partition("\n## Read options\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    told = {name for row in rows[1:] for name in re.findall(r"`([^`]+)`", row)}
    assert told == {*NAMES, *CLIENT_NAMES}

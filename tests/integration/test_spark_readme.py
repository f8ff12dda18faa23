"""The README's page for Spark users is true: its snippets run in their order, and its table of options is the code's."""

import re
from typing import Any

from integration.cluster import Cluster
from integration.spark_world import create_topic, send
from pyspark.sql import SparkSession
from tidy.source_tree import ROOT

from barnabas.spark_connector.options import CLIENT_NAMES
from barnabas.spark_connector.read_options import NAMES

README = (ROOT / "README.md").read_text(encoding="utf-8")
SPARK_PAGE = README.partition("\n## Spark without a jar\n")[2].partition("\n## ")[0]


def test_the_snippets_run_in_their_order(spark: SparkSession, spark_cluster: Cluster, capsys: Any) -> None:
    create_topic(spark_cluster, "access-log", partitions=6)
    send(spark_cluster, "access-log", [b"GET /a", b"GET /b", b"POST /c"], key=b"10.0.0.1")
    snippets = re.findall(r"^```python spark\n(.*?)^```$", SPARK_PAGE, re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 4
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(compile(snippet.replace("localhost:9092", spark_cluster.bootstrap), "README.md", "exec"), names)
    shown = capsys.readouterr().out
    for expected in (
        "10.0.0.1|   GET /a",
        "|  GET|    2|",
        "| POST|    1|",
        "TopicPartition(topic='access-log', partition=0): 0",
    ):
        assert expected in shown
    names["query"].stop()


def test_the_table_of_options_is_complete() -> None:
    rows = re.findall(
        r"^\| (.*?) \|", SPARK_PAGE.partition("### Options of reading")[2].partition("###")[0], re.MULTILINE
    )
    told = {name for row in rows[2:] for name in re.findall(r"`([^`]+)`", row)}
    assert told == {*NAMES, *CLIENT_NAMES}

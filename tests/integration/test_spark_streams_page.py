"""The page for users of Kafka Streams is true: its snippets run in their order, with the results that its notions promise."""

import json
import re
from typing import Any

import pytest
from integration.cluster import Cluster
from integration.spark_world import create_topic, send
from pyspark.sql import SparkSession
from tidy.source_tree import ROOT

pytestmark = pytest.mark.timeout(600)  # The first to use the session also waits for it; a dozen queries on busy cores.
PAGE = ROOT / "docs/streams.md"
CLICKS = (
    ("anna", "/", "10:00"),
    ("ben", "/a", "10:20"),
    ("anna", "/b", "10:40"),
    ("ben", "/", "11:50"),
    ("zoe", "/z", "14:00"),
)
BUYS = (("anna", "book", "10:10"), ("carl", "pen", "10:30"), ("zoe", "cup", "14:05"))


def event(user: str, field: str, value: str, at: str) -> bytes:
    return json.dumps({"user": user, field: value, "at": f"2026-01-01T{at}:00Z"}).encode()


def shown(spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
    """Sorted; times as hours and minutes."""
    rows = [
        tuple(value.strftime("%H:%M") if hasattr(value, "strftime") else value for value in row)
        for row in spark.table(table).collect()
    ]
    return sorted(rows, key=str)


def test_the_snippets_run_in_their_order(
    spark: SparkSession, spark_cluster: Cluster, capsys: Any, request: pytest.FixtureRequest
) -> None:
    partitions = spark.conf.get("spark.sql.shuffle.partitions") or "2"
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # a task of its own for each state of each partition takes time
    request.addfinalizer(lambda: spark.conf.set("spark.sql.shuffle.partitions", partitions))
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.streaming.stateStore.providerClass"))
    for topic in ("clicks", "buys", "users", "cities"):
        create_topic(spark_cluster, topic, partitions=1)
    for topic in ("clicks-by-user", "clicks-with-city", "users-with-country"):
        create_topic(spark_cluster, topic, partitions=1, cleanup_policy="compact")
    send(spark_cluster, "clicks", [event(user, "page", page, at) for user, page, at in CLICKS])
    send(spark_cluster, "buys", [event(user, "item", item, at) for user, item, at in BUYS])
    for user, city in (("anna", "Rome"), ("anna", "Oslo"), ("ben", "Bonn")):
        send(spark_cluster, "users", [json.dumps({"city": city}).encode()], key=user.encode())
    send(spark_cluster, "users", [None], key=b"zoe")
    send(spark_cluster, "cities", [b'{"country": "Norway"}'], key=b"Oslo")

    snippets = re.findall(
        r"^```python streams( after)?\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    names: dict[str, Any] = {"__name__": "__main__"}  # so that the processor is pickled by its value
    for is_after, snippet in snippets:
        if is_after:
            send(spark_cluster, "clicks", [event("anna", "page", "/c", "14:01")])
            capsys.readouterr()
        code = snippet.replace("localhost:9092", spark_cluster.bootstrap)
        exec(compile(code, str(PAGE), "exec"), names)
    check_streams_and_windows(spark)
    check_joins(spark)
    assert shown(spark, "idle") == [("anna", "10:40"), ("ben", "11:50")], "ben came back within two hours: told once"
    restored = re.sub(r"[ ]+", "", capsys.readouterr().out)
    assert "|anna|3|" in restored and "|ben|2|" in restored and "|zoe|1|" in restored
    countries = names["table"]("users-with-country", "user", "city string, country string").collect()
    assert sorted(map(tuple, countries)) == [("anna", "Oslo", "Norway"), ("ben", "Bonn", None)]
    with_city = names["table"]("clicks-with-city", "user", "page string, city string").collect()
    assert {tuple(row)[::2] for row in with_city} == {("anna", "Oslo"), ("ben", "Bonn"), ("zoe", None)}
    state = sorted(map(tuple, names["state"].collect()))
    assert state == [("anna", 2), ("ben", 2), ("zoe", 1)], "as it was when it was looked at"


def check_streams_and_windows(spark: SparkSession) -> None:
    assert shown(spark, "merged") == sorted(
        [(user, page.upper()) for user, page, _ in CLICKS] + [(user, item) for user, item, _ in BUYS]
    )
    assert shown(spark, "tumbling") == [("10:00", 3), ("11:00", 1)], "that of 14:00 is open"
    hours = [("09:30", 2), ("10:00", 3), ("10:30", 1), ("11:00", 1), ("11:30", 1)]
    assert shown(spark, "hopping") == hours
    sessions = [("anna", "10:00", "10:30", 1), ("anna", "10:40", "11:10", 1)]
    assert shown(spark, "sessions") == [*sessions, ("ben", "10:20", "10:50", 1), ("ben", "11:50", "12:20", 1)]


def check_joins(spark: SparkSession) -> None:
    inner: list[tuple[Any, ...]] = [
        ("anna", "/", "10:00", "anna", "book", "10:10"),
        ("zoe", "/z", "14:00", "zoe", "cup", "14:05"),
    ]
    alone: list[tuple[Any, ...]] = [
        ("anna", "/b", "10:40", None, None, None),
        ("ben", "/", "11:50", None, None, None),
        ("ben", "/a", "10:20", None, None, None),
    ]
    assert shown(spark, "left_join") == sorted(inner + alone, key=str)
    assert shown(spark, "outer_join") == sorted([*inner, *alone, (None, None, None, "carl", "pen", "10:30")], key=str)

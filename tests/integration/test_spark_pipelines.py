"""The pipelines of scripts/pipelines on the real log, as streams and as batches, against what plain Python finds in it."""

import argparse
import json
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from integration import access_log_facts as facts
from integration.cluster import Cluster
from integration.spark_world import STREAM_DEADLINE_S, create_topic, load, send
from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
HOUR = timedelta(hours=1)
LATE = timedelta(minutes=10)
GAP = timedelta(minutes=30)
RECORDS_PER_BATCH = 6_000  # Two micro-batches: the second one's watermark closes what the first one left open.


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    path = facts.log_path()
    if path is None:
        pytest.skip("the real log is not beside this checkout: ../shared/data/apache_access.log")
    return path.read_bytes().splitlines()


@pytest.fixture(scope="module")
def log(spark_cluster: Cluster, lines: list[bytes]) -> str:
    """The log as a topic whose partitions advance together, as those of a busy site do."""
    create_topic(spark_cluster, "web-log", partitions=2)
    for partition in range(2):
        send(spark_cluster, "web-log", lines[partition::2], partition=partition)
    return "web-log"


def given(cluster: Cluster, *arguments: str, topic: str = "web-log") -> argparse.Namespace:
    """The command line of a pipeline."""
    parser = facts.pipeline("job").command_line("A test.", topic=topic)
    found: argparse.Namespace = parser.parse_args(["--bootstrap", cluster.bootstrap, *arguments])
    return found


def as_stream(cluster: Cluster, *arguments: str) -> argparse.Namespace:
    return given(cluster, "--available-now", "--max-records", str(RECORDS_PER_BATCH), *arguments)


def streamed(result: DataFrame, name: str, mode: str = "append") -> list[Row]:
    """What a stream gives out of all that is there now; nothing may have come too late for it."""
    query = result.writeStream.format("memory").queryName(name).outputMode(mode).trigger(availableNow=True).start()
    assert query.awaitTermination(STREAM_DEADLINE_S), "the query did not end"
    for progress in query.recentProgress:
        assert [state["numRowsDroppedByWatermark"] for state in progress["stateOperators"]] in ([], [0], [0, 0])
    return result.sparkSession.table(name).collect()


# --- the access log ---------------------------------------------------------------------------------------------------


def test_requests_in_each_hour_are_the_same_from_history_and_as_they_come(
    spark: SparkSession, spark_cluster: Cluster, log: str, lines: list[bytes]
) -> None:
    access_log, job = facts.pipeline("access_log"), facts.pipeline("job")
    expected = facts.hours(facts.parse(lines))

    def rows(found: list[Row]) -> set[tuple[Any, ...]]:
        assert len(found) == len(set(found)) and all(row.end - row.start == HOUR for row in found)
        return {(row.start, row.requests, row.errors, row.bytes) for row in found}

    history = access_log.windows(access_log.requests(job.read(spark, given(spark_cluster, "--batch"))))
    assert rows(history.collect()) == expected
    stream = access_log.windows(access_log.requests(job.read(spark, as_stream(spark_cluster))))
    last = max(request.time for request in facts.parse(lines))
    assert rows(streamed(stream, "hours")) == {row for row in expected if row[0] + HOUR <= last - LATE}


def test_top_paths_of_closed_hours(spark: SparkSession, spark_cluster: Cluster, log: str, lines: list[bytes]) -> None:
    access_log, job = facts.pipeline("access_log"), facts.pipeline("job")
    requests = facts.parse(lines)
    last = max(request.time for request in requests)
    expected = {start: best for start, best in facts.top_paths(requests, 3).items() if start + HOUR <= last - LATE}

    found = access_log.top_paths(access_log.requests(job.read(spark, as_stream(spark_cluster))), count=3)
    rows = streamed(found, "paths")
    assert {row.start: [tuple(path) for path in row.paths] for row in rows} == expected and len(rows) == len(expected)


def test_sessions_by_state_and_timers_are_those_of_the_built_in_window(
    spark: SparkSession, spark_cluster: Cluster, log: str, lines: list[bytes], request: pytest.FixtureRequest
) -> None:
    access_log, job, sessions = (facts.pipeline(name) for name in ("access_log", "job", "sessions"))
    requests = facts.parse(lines)
    expected = facts.sessions(requests, GAP)

    def rows(found: list[Row]) -> set[tuple[Any, ...]]:
        assert len(found) == len(set(found))
        return {tuple(row) for row in found}

    history = sessions.sessions_of_history(access_log.requests(job.read(spark, given(spark_cluster, "--batch"))))
    assert rows(history.collect()) == expected
    sessions.keep_state_in_rocksdb(spark)
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.streaming.stateStore.providerClass"))
    stream = sessions.sessions_of_stream(access_log.requests(job.read(spark, as_stream(spark_cluster))))
    now = max(item.time for item in requests) - LATE
    assert rows(streamed(stream, "sessions")) == {row for row in expected if row[2] + GAP <= now}


def test_parts_are_joined_to_the_pages_that_they_belong_to(
    spark: SparkSession, spark_cluster: Cluster, log: str, lines: list[bytes]
) -> None:
    access_log, job, joins = (facts.pipeline(name) for name in ("access_log", "job", "page_loads"))
    options = as_stream(spark_cluster)
    pages, parts = (access_log.requests(job.read(spark, options)) for _ in range(2))
    found = Counter(tuple(row)[:5] for row in streamed(joins.page_loads(pages, parts), "loads"))
    assert found == facts.page_loads(facts.parse(lines), timedelta(seconds=30)) and len(found) > 1_000


def test_parsed_requests_in_parquet_are_those_of_the_log_once_after_a_restart(
    spark: SparkSession, spark_cluster: Cluster, log: str, lines: list[bytes], tmp_path: Path
) -> None:
    access_log, job = facts.pipeline("access_log"), facts.pipeline("job")
    options = as_stream(
        spark_cluster, "--to", f"parquet:{tmp_path / 'out'}", "--checkpoint", str(tmp_path / "checkpoint")
    )
    for _ in range(2):
        assert job.finish([job.write(access_log.requests(job.read(spark, options)), options)]) == 0
    found = spark.read.parquet(str(tmp_path / "out")).select("client", "time", "path", "status", "size", "referrer")
    expected = Counter(
        (item.client, item.time, item.path, item.status, item.size, item.referrer) for item in facts.parse(lines)
    )
    assert Counter(tuple(row) for row in found.collect()) == expected


# --- words ------------------------------------------------------------------------------------------------------------


def test_words_of_history_and_of_a_stream(
    spark: SparkSession, spark_cluster: Cluster, log: str, lines: list[bytes]
) -> None:
    wordcount, job = facts.pipeline("wordcount"), facts.pipeline("job")
    expected = facts.words(lines)
    assert dict(wordcount.words(job.read(spark, given(spark_cluster, "--batch"))).collect()) == expected
    newest: dict[str, int] = {}
    for row in streamed(wordcount.words(job.read(spark, as_stream(spark_cluster))), "words", "update"):
        newest[row.word] = max(row["count"], newest.get(row.word, 0))
    assert newest == expected


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["access_log", "page_loads", "sessions", "sql", "to_database", "wordcount"])
def test_each_is_a_command_with_help(name: str) -> None:
    ran = subprocess.run([facts.PIPELINES / name, "--help"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "--bootstrap" in ran.stdout and "--checkpoint" in ran.stdout


def test_a_wrong_target_is_told_before_anything_is_read(spark: SparkSession, spark_cluster: Cluster) -> None:
    job = facts.pipeline("job")
    with pytest.raises(SystemExit, match="write it as topic:NAME"):
        job.write(spark.range(1), given(spark_cluster, "--to", "parquet"))


# --- from topic to topic ----------------------------------------------------------------------------------------------


def forget_last_commit(checkpoint: Path) -> None:
    """As a driver that was killed after a micro-batch's work and before its note of it."""
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda item: int(item.name))
    for last in commits[-1:]:
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()


def copied(spark: SparkSession, cluster: Cluster, topic: str) -> list[Row]:
    """What a pipeline has sent: keys and values as text, in the order of offsets."""
    frame = load(spark, cluster, subscribe=topic).orderBy("partition", "offset")
    return frame.selectExpr("cast(key as string) AS key", "cast(value as string) AS value").collect()


def test_requests_become_records_of_json_each_once_after_a_restart(
    spark: SparkSession, spark_cluster: Cluster, log: str, lines: list[bytes], tmp_path: Path
) -> None:
    access_log, job = facts.pipeline("access_log"), facts.pipeline("job")
    create_topic(spark_cluster, "requests")
    to = ("--to", "topic:requests", "--checkpoint", str(tmp_path / "checkpoint"))
    options = as_stream(spark_cluster, *to)
    for _ in range(2):
        assert job.finish([job.write(access_log.requests(job.read(spark, options)), options, key="client")]) == 0
        forget_last_commit(tmp_path / "checkpoint")
    found = [(row.key, json.loads(row.value)) for row in copied(spark, spark_cluster, "requests")]
    assert all(key == value["client"] for key, value in found)
    expected = Counter((item.client, item.path, item.status, item.size) for item in facts.parse(lines))
    assert Counter((value["client"], value["path"], value["status"], value["size"]) for _, value in found) == expected


def test_counts_of_words_are_a_table_in_a_compacted_topic(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    wordcount, job = facts.pipeline("wordcount"), facts.pipeline("job")
    create_topic(spark_cluster, "sentences", partitions=1)
    create_topic(spark_cluster, "words", cleanup_policy="compact")
    options = given(
        spark_cluster, "--available-now", "--to", "topic:words", "--checkpoint", str(tmp_path), topic="sentences"
    )
    for sentence in (b"the cat saw the dog", b"the dog ran", b""):
        send(spark_cluster, "sentences", [sentence])
        forget_last_commit(tmp_path)
        assert (
            job.finish([job.write(wordcount.words(job.read(spark, options)), options, key="word", mode="update")]) == 0
        )
    rows = [(row.key, json.loads(row.value)["count"]) for row in copied(spark, spark_cluster, "words")]
    assert sorted(rows) == [("cat", 1), ("dog", 1), ("dog", 2), ("ran", 1), ("saw", 1), ("the", 2), ("the", 3)]


def test_a_select_from_topic_to_topic_as_a_batch(spark: SparkSession, spark_cluster: Cluster) -> None:
    sql, job = facts.pipeline("sql"), facts.pipeline("job")
    create_topic(spark_cluster, "amounts")
    create_topic(spark_cluster, "large-amounts")
    send(spark_cluster, "amounts", [b'{"amount": %d}' % number for number in range(100)], key=b"k")
    options = given(spark_cluster, "--batch", "--to", "topic:large-amounts", topic="amounts")
    statement = "SELECT key, value FROM records WHERE get_json_object(CAST(value AS STRING), '$.amount') >= 90"
    selected = sql.selected(job.read(spark, options, columns=sql.COLUMNS), statement)
    assert job.write(selected, options, is_records=True) is None
    found = copied(spark, spark_cluster, "large-amounts")
    assert [json.loads(row.value)["amount"] for row in found] == list(range(90, 100))
    assert {row.key for row in found} == {"k"}

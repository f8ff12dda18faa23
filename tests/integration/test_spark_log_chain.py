"""Access logs by a writer that rotates -> lines in a topic -> counts of windows in PostgreSQL and Parquet, with kills everywhere.

The judge is a plain pass over the lines that were written.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from integration import postgres
from integration.cluster import Cluster, clean_environment
from integration.spark_world import create_topic
from integration.test_spark_pipeline_kills import Command

SEED = 14
KILLS = int(os.environ.get("BARNABAS_CHAIN_KILLS", "1"))  # of each program
pytestmark = pytest.mark.timeout(780 + KILLS * 120)
LINES = 400  # between two kills
START = datetime(2026, 1, 1, tzinfo=UTC)
COUNTS = """
[[steps]]
sql = '''
SELECT date_format(window.start, 'yyyy-MM-dd HH:mm') AS minute, status, count(*) AS requests, sum(bytes) AS bytes
FROM input GROUP BY window(time, '1 minute'), status
'''
"""
SPARK = (
    '[spark]\n"spark.sql.shuffle.partitions" = "2"\n"spark.sql.session.timeZone" = "UTC"\n[restarts]\nfirst_ms = 100\n'
)
Counts = dict[tuple[str, int], tuple[int, int]]  # of a minute and a status: requests, bytes


class AccessLog:
    """A web server whose log is renamed and begun again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = folder / "access.log"
        self.counts: Counter[tuple[str, int]] = Counter()
        self.bytes: Counter[tuple[str, int]] = Counter()
        self._random = Random(SEED)
        self._rotations = 0
        self._seconds = 0.0
        self._file = self.path.open("ab", buffering=0)

    def write(self, count: int) -> None:
        for _ in range(count):
            self._seconds += self._random.random()
            at = START + timedelta(seconds=self._seconds)
            status, size = self._random.choice((200, 200, 304, 404, 500)), self._random.randrange(10_000)
            client = f"10.0.0.{self._random.randrange(256)}"
            line = f'{client} - - [{at:%d/%b/%Y:%H:%M:%S +0000}] "GET /{size} HTTP/1.1" {status} {size} "-" "-"\n'
            self._file.write(line.encode())
            key = f"{at:%Y-%m-%d %H:%M}", status
            self.counts[key] += 1
            self.bytes[key] += size

    def rotate(self) -> None:
        self._rotations += 1
        self.path.rename(self.path.with_name(f"access.log.{self._rotations}"))
        self.write(5)  # the server does not know yet
        self._file.close()
        self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()

    def expected(self) -> Counts:
        return {key: (count, self.bytes[key]) for key, count in self.counts.items()}


class CollectorProcess:
    """`barnabas collect`, which is killed and started again."""

    def __init__(self, cluster: Cluster, log: AccessLog, topic: str) -> None:
        self._command = [sys.executable, "-m", "barnabas", "collect", f"{log.path}*", "--topic", topic, "--name", "chain",
                         "--bootstrap", cluster.bootstrap]  # fmt: skip
        self._output = log.path.parent.parent / "collect.out"
        self.start()

    def start(self) -> None:
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stderr=output, env=clean_environment())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def in_postgres(address: str) -> Counts:
    import psycopg

    with psycopg.connect(address) as connection:
        if connection.execute("SELECT to_regclass('counts')").fetchone() == (None,):
            return {}
        rows = connection.execute("SELECT minute, status, requests, bytes FROM counts").fetchall()
    return {(minute, status): (requests, int(size)) for minute, status, requests, size in rows}


def test_counts_equal_those_of_a_plain_pass_over_the_files(
    new_cluster: Callable[..., Cluster], tmp_path: Path, server: postgres.Server
) -> None:
    cluster = new_cluster(3)
    asyncio.run(cluster.ready())
    topic = create_topic(cluster, "access-log", partitions=2)
    source = f'name = "chain"\n[source]\ntopics = ["{topic}"]\nvalue = {{ format = "access_log" }}\n'
    sink = f'[sink]\ntable = "counts"\ndatabase = "postgresql:{server.address}"\nwrite = "upsert"\nkey = ["minute", "status"]\n'
    folders = [tmp_path / name for name in ("to-postgres", "to-parquet")]
    for folder in folders:
        folder.mkdir()
    pipeline = Command(cluster, folders[0], source + COUNTS + sink + SPARK)
    log, random = AccessLog(tmp_path / "logs"), Random(SEED)
    log.write(LINES)
    collector, process = CollectorProcess(cluster, log, topic), pipeline.start("run")
    try:
        pipeline.until_batches(1)
        for _ in range(KILLS):
            batches = pipeline.state.read_progress().batches
            for harm in random.sample(("collector", "driver", "broker"), 3):
                log.write(LINES)
                if harm == "collector":
                    collector.kill()
                    log.rotate()
                    log.write(LINES)
                    collector.start()
                elif harm == "driver":
                    pipeline.kill_driver()
                else:
                    broker = random.randrange(3)
                    cluster.kill(broker)
                    log.write(LINES)
                    cluster.start(broker)
            log.rotate()
            pipeline.until_batches(batches + 1)
        pipeline.until(lambda: in_postgres(server.address) == log.expected(), "the counts in PostgreSQL")
    finally:
        collector.kill()
        pipeline.kill(process)
        log.close()
    batch = source.replace('"chain"', '"chain-batch"\nmode = "batch"') + COUNTS + '[sink]\nparquet = "counts"\n' + SPARK
    Command(cluster, folders[1], batch).run_to_end("run")
    rows = pq.read_table(folders[1] / "counts").to_pylist()
    assert {(row["minute"], row["status"]): (row["requests"], row["bytes"]) for row in rows} == log.expected()
    assert len(rows) == len(log.counts)


def test_log_files_as_a_source_of_a_pipeline(driver_cluster: Cluster, tmp_path: Path) -> None:
    """A collector runs beside the driver; a kill of both repeats nothing."""
    topic = create_topic(driver_cluster, "collected-by-a-pipeline", partitions=1)
    log = AccessLog(tmp_path / "logs")
    text = f'name = "logs"\n[source]\ncollect = ["logs/access.log*"]\ntopics = ["{topic}"]\nvalue = {{ format = "access_log" }}\n'
    sink = '[sink]\ntable = "counts"\ndatabase = "sqlite:counts.db"\nwrite = "upsert"\nkey = ["minute", "status"]\n'
    pipeline = Command(driver_cluster, tmp_path, text + COUNTS + sink + SPARK)
    log.write(LINES)
    assert "finished: " in pipeline.run_to_end("run", "--once")
    assert in_sqlite(tmp_path) == log.expected()
    log.write(LINES)
    log.rotate()
    process = pipeline.start("run")
    try:
        pipeline.until(lambda: in_sqlite(tmp_path) == log.expected(), "the lines of two files")
        pipeline.kill(process)
        log.write(LINES)
        log.rotate()
        log.write(LINES)
        process = pipeline.start("run")
        pipeline.until(lambda: in_sqlite(tmp_path) == log.expected(), "the lines that came after the kill")
        pipeline.run_to_end("stop", "--timeout", "120")
        assert "stopped: " in pipeline.ended(process)
    finally:
        pipeline.kill(process)
        log.close()
    assert in_sqlite(tmp_path) == log.expected()


def in_sqlite(folder: Path) -> Counts:
    with closing(sqlite3.connect(folder / "counts.db")) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'counts'").fetchone():
            return {}
        rows: list[Any] = connection.execute("SELECT minute, status, requests, bytes FROM counts").fetchall()
    return {(minute, status): (requests, size) for minute, status, requests, size in rows}

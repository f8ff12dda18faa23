"""The disk of a pipeline's state is full, a real ENOSPC: the error names fault, place and cure, and nothing is lost."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from integration.cluster import Cluster
from integration.spark_world import create_topic, send
from integration.test_spark_pipeline_kills import Command

pytestmark = pytest.mark.timeout(900)
SIZE = "6m"  # Spark's own files of a checkpoint are small
KEYS = 40
RECORDS = 400
PER_BATCH = 200  # each start of Spark and each micro-batch takes seconds
PIPELINE = """
name = "{name}"
state = "{state}"
[source]
topics = ["{topic}"]
max_records = {per_batch}
value = {{ format = "json", fields = {{ id = "bigint", key = "bigint" }} }}
[[steps]]
sql = "SELECT key, sum(id) AS total FROM input GROUP BY key"
[sink]
table = "totals"
database = "sqlite:{database}"
write = "upsert"
key = ["key"]
[restarts]
attempts = 0
first_ms = 100
max_ms = 1000
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no file system of a test's own here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Until nothing more goes in."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


def totals(database: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT key, total FROM totals ORDER BY key").fetchall()


def send_numbers(cluster: Cluster, topic: str, start: int, end: int) -> None:
    send(cluster, topic, [json.dumps({"id": number, "key": number % KEYS}).encode() for number in range(start, end)])


def expected(count: int) -> list[tuple[int, int]]:
    return [(key, sum(range(key, count, KEYS))) for key in range(KEYS)]


def command(cluster: Cluster, small_disk: Path, folder: Path, name: str) -> tuple[Command, str, Path]:
    topic = create_topic(cluster, f"full-{name}", partitions=1)
    database = folder / "totals.db"
    text = PIPELINE.format(name=name, state=small_disk / "state", topic=topic, database=database, per_batch=PER_BATCH)
    return Command(cluster, folder, text), topic, database


def test_a_disk_that_fills_while_a_pipeline_runs_is_named_and_nothing_is_lost(
    driver_cluster: Cluster, tmp_path: Path, small_disk: Path
) -> None:
    found, topic, database = command(driver_cluster, small_disk, tmp_path, "runs")
    send_numbers(driver_cluster, topic, 0, RECORDS)
    process = found.start("run")
    try:
        found.until_batches(RECORDS // PER_BATCH)
        ballast = fill(small_disk)
        send_numbers(driver_cluster, topic, RECORDS, 2 * RECORDS)
        told = found.ended(process, code=1)
    finally:
        found.kill(process)
    check_told(told, small_disk)
    status = found.run_to_end("status", code=3)
    assert "failed" in status and "died" not in status and "No space left on device" in status, status
    ballast.unlink()
    found.run_to_end("run", "--once")
    assert totals(database) == expected(2 * RECORDS)


def test_a_disk_that_is_full_when_a_pipeline_starts_is_named(
    driver_cluster: Cluster, tmp_path: Path, small_disk: Path
) -> None:
    found, topic, database = command(driver_cluster, small_disk, tmp_path, "starts")
    send_numbers(driver_cluster, topic, 0, RECORDS)
    ballast = fill(small_disk)
    check_told(found.run_to_end("run", "--once", code=1), small_disk)
    ballast.unlink()
    found.run_to_end("run", "--once")
    assert totals(database) == expected(RECORDS)


def check_told(told: str, small_disk: Path) -> None:
    last = told.strip().splitlines()[-1]
    assert "No space left on device" in last and "Traceback" not in told, told
    assert f"{small_disk}/state" in last and " free" in last, told
    assert "free some space, or move" in last and os.linesep not in last, told

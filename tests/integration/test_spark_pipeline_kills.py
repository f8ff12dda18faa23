"""`barnabas pipeline` as processes: kill -9 of the driver and of the supervisor in the middle of a job, and a stop in order."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable
from integration.cluster import Cluster, until
from integration.spark_world import QUICK_JAVA, create_topic, send
from integration.test_spark_sink import read
from pyiceberg.catalog.sql import SqlCatalog

from barnabas.net.programs.pipeline.files import read_pipeline
from barnabas.net.programs.pipeline.state import StateFolder
from barnabas.spark_connector.pipeline.lakes.iceberg import CATALOG_FILE, CATALOG_NAME

# Each driver is a Spark of its own. Beside 30 processes on two cores, one took more than four minutes for its start and the
# micro-batches that were left.
pytestmark = pytest.mark.timeout(1_000)
DEADLINE_S = 400
RECORDS = 1_000
PER_BATCH = 200
KEYS = 7
# Two drivers for each table cost as much processor time as a thousand tests. What a table does with a micro-batch that comes
# again, or that died before its commit, other tests try in one session (test_spark_delta.py) and on the table (iceberg_kills.py).
only_long = pytest.mark.skipif("BARNABAS_LAKE_KILLS" not in os.environ, reason="part of scripts/test.sh long")
SOURCE = """
name = "%s"
[source]
topics = ["%s"]
max_records = %d
[source.value]
format = "json"
fields = { id = "bigint", key = "bigint" }
"""


class Command:
    """`barnabas pipeline ... FILE` on one file."""

    def __init__(self, cluster: Cluster, folder: Path, text: str, *, master: str = "local[1]") -> None:
        self.file = folder / "pipeline.toml"
        self.file.write_text(text)
        self._cluster = cluster
        self._master = master

    @property
    def state(self) -> StateFolder:
        return read_pipeline(self.file).state_folder()

    def start(self, verb: str, *options: str) -> "subprocess.Popen[str]":
        words = [sys.executable, "-P", "-m", "barnabas", "--bootstrap", self._cluster.bootstrap, "pipeline", verb]
        if verb == "run":
            options = (*options, "--master", self._master)
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        environment["JDK_JAVA_OPTIONS"] = QUICK_JAVA
        return subprocess.Popen(
            [*words, str(self.file), *options],
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ended(self, process: "subprocess.Popen[str]", *, code: int = 0) -> str:
        """What it has printed. It must end with the exit code."""
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            self.kill(process)
        log = self.state.driver_log
        assert process.returncode == code, err + (log.read_text(errors="replace")[-3_000:] if log.exists() else "")
        return out + err

    def run_to_end(self, verb: str, *options: str, code: int = 0) -> str:
        return self.ended(self.start(verb, *options), code=code)

    def kill(self, process: "subprocess.Popen[str]") -> None:
        """The supervisor, if it is still there; its driver ends by itself. What it has printed is not read any more."""
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        asyncio.run(until(is_so, what, timeout_s=DEADLINE_S))

    def until_batches(self, count: int) -> None:
        self.until(lambda: self.state.read_progress().batches >= count, f"{count} micro-batches")

    def kill_driver(self) -> int:
        """One may just have ended by itself, because of a broker that died: the next one is killed then."""
        self.until(lambda: self.state.pid("driver") is not None, "a driver")
        pid = self.state.pid("driver")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid


def run_with_a_killed_driver(command: Command) -> str:
    """One run, whose driver is killed behind its second micro-batch and started again; what it tells."""
    process = command.start("run", "--once")
    try:
        command.until_batches(2)
        killed = command.kill_driver()
        command.until(lambda: command.state.pid("driver") not in (None, killed), "another driver")
        return command.ended(process)
    finally:
        command.kill(process)


@pytest.fixture
def numbers(driver_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    topic = create_topic(driver_cluster, f"killed-{request.node.name.replace('_', '-')[:40]}", partitions=1)
    values = [json.dumps({"id": number, "key": number % KEYS}).encode() for number in range(RECORDS)]
    send(driver_cluster, topic, [*values, b"poison"])
    return topic


def test_a_driver_that_is_killed_starts_again_and_each_record_is_written_once(
    driver_cluster: Cluster, tmp_path: Path, numbers: str
) -> None:
    target, dead = (
        create_topic(driver_cluster, "killed-target"),
        create_topic(driver_cluster, "killed-dead", partitions=1),
    )
    text = SOURCE % ("killed", numbers, PER_BATCH)
    text += (
        f'[sink]\ntopic = "{target}"\n[errors]\naction = "dead-letter"\ntopic = "{dead}"\n[restarts]\nfirst_ms = 100\n'
    )
    command = Command(driver_cluster, tmp_path, text)
    told = run_with_a_killed_driver(command)
    assert "finished: " in told
    found = Counter(json.loads(bytes(record.value or b""))["id"] for record in read(driver_cluster, target))
    assert found == Counter(range(RECORDS)), "each once"
    assert [bytes(record.value or b"") for record in read(driver_cluster, dead)] == [b"poison"]
    state = command.state.read_run()
    assert state is not None and (state.state, state.restarts) == ("finished", 1), told
    assert state.last_error.startswith("the Spark driver was killed by signal 9")


@only_long
def test_a_delta_table_has_each_row_once_after_a_kill_of_the_driver(
    driver_cluster: Cluster, tmp_path: Path, numbers: str
) -> None:
    text = SOURCE % ("lake", numbers, PER_BATCH)
    text += '[sink]\ndelta = "lake"\npartition_by = ["key"]\n[errors]\naction = "skip"\n[restarts]\nfirst_ms = 100\n'
    command = Command(driver_cluster, tmp_path, text)
    run_with_a_killed_driver(command)
    found = DeltaTable(str(tmp_path / "lake")).to_pyarrow_table(columns=["id", "key"]).to_pylist()
    assert Counter(row["id"] for row in found) == Counter(range(RECORDS)), "each once"
    assert all(row["key"] == row["id"] % KEYS for row in found)


@only_long
def test_an_iceberg_table_has_each_row_once_after_a_kill_of_the_driver(
    driver_cluster: Cluster, tmp_path: Path, numbers: str
) -> None:
    text = SOURCE % ("ice", numbers, PER_BATCH)
    text += (
        '[sink]\niceberg = "shop.numbers"\nwarehouse = "lake"\n[errors]\naction = "skip"\n[restarts]\nfirst_ms = 100\n'
    )
    command = Command(driver_cluster, tmp_path, text)
    run_with_a_killed_driver(command)
    lake = tmp_path / "lake"
    catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{lake / CATALOG_FILE}", warehouse=str(lake))
    found = catalog.load_table("shop.numbers").scan().to_arrow().to_pylist()
    assert Counter(row["id"] for row in found) == Counter(range(RECORDS)), "each once"
    assert all(row["key"] == row["id"] % KEYS for row in found)


def test_a_supervisor_that_is_killed_takes_its_driver_along_and_the_next_run_goes_on(
    driver_cluster: Cluster, tmp_path: Path, numbers: str
) -> None:
    text = SOURCE % ("counted", numbers, PER_BATCH)
    text += '[[steps]]\nsql = "SELECT key, count(*) AS count, sum(id) AS total FROM input GROUP BY key"\n'
    text += '[sink]\ntable = "counts"\ndatabase = "sqlite:counts.db"\nwrite = "upsert"\nkey = ["key"]\n'
    command = Command(driver_cluster, tmp_path, text + '[errors]\naction = "skip"\n')
    process = command.start("run")
    command.until_batches(2)
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    command.until(lambda: not command.state.is_locked("driver"), "the end of the driver without a supervisor")
    assert command.run_to_end("status", code=3).split()[3] == "died"

    process = command.start("run")
    expected = sorted((key, len(range(key, RECORDS, KEYS)), sum(range(key, RECORDS, KEYS))) for key in range(KEYS))
    try:
        command.until(lambda: counts(tmp_path) == expected, "all records in the table")
        # The poison comes last, in a micro-batch that changes nothing in the table.
        command.until(lambda: command.state.read_progress().lag == 0, "the end of the topic")
        assert "stopped counted" in command.run_to_end("stop", "--timeout", "120")
        assert "stopped: " in command.ended(process)
    finally:
        command.kill(process)
    assert counts(tmp_path) == expected
    state, progress = command.state.read_run(), command.state.read_progress()
    assert state is not None and state.state == "stopped" and progress.lag == 0


def counts(folder: Path) -> list[tuple[int, int, int]]:
    with closing(sqlite3.connect(folder / "counts.db")) as database:
        return sorted(database.execute("SELECT key, count, total FROM counts").fetchall())

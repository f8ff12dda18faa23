"""`barnabas pipeline run --master spark://...`: on a standalone cluster of two workers, whose executors are killed (kill
-9), and what an executor lacks is named."""

import asyncio
import json
import os
import signal
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from integration.access_log_facts import ROOT
from integration.cluster import Cluster, until
from integration.declared_pipeline import empty_database, rows_in
from integration.spark_daemons import HOST, Daemon, executors, standalone
from integration.spark_world import QUICK_JAVA, create_topic, send
from integration.test_spark_pipeline_kills import Command
from integration.test_spark_sink import read

pytestmark = pytest.mark.timeout(1_000)
DEADLINE_S = 300
RECORDS = 450
PER_BATCH = 75
KEYS = 7
# Of a test: an address of loopback, and executors that fit beside others. The rest is as for one machine.
SETTINGS = f"""
[spark]
"spark.driver.host" = "{HOST}"
"spark.driver.bindAddress" = "{HOST}"
"spark.executor.memory" = "512m"
"spark.ui.enabled" = "false"
"spark.sql.shuffle.partitions" = "2"
"spark.executor.extraJavaOptions" = "{QUICK_JAVA}"
"""
FILE = """
name = "{name}"

[source]
topics = ["{topic}"]
max_records = {most}
value = {{ format = "json", fields = {{ id = "bigint", key = "bigint" }} }}

[[steps]]
python = "doubling:with_double"

[[steps]]
sql = "{statement}"

[sink]
{sink}

[errors]
action = "{errors}"
"""
STEP = """
from collections.abc import Iterator

import factors
import pandas as pd
from factors import FACTOR
from pyspark.sql import DataFrame


def with_double(rows: DataFrame) -> DataFrame:
    def double(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            yield part.assign(double=part["id"] * FACTOR * factors.ONE)

    return rows.select("id", "key").mapInPandas(double, "id bigint, key bigint, double bigint")

"""


@dataclass(frozen=True)
class Standalone:
    address: str
    workers: list[Daemon]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone"), workers=2) as (address, daemons):
        workers = daemons[1:]
        registered = until(
            lambda: all(item.has_said("registered with master") for item in workers), "workers", timeout_s=DEADLINE_S
        )
        asyncio.run(registered)
        yield Standalone(address, workers)


@pytest.fixture(scope="module")
def numbers(driver_cluster: Cluster) -> str:
    topic = create_topic(driver_cluster, "many-machines", partitions=2)
    send(
        driver_cluster, topic, [json.dumps({"id": number, "key": number % KEYS}).encode() for number in range(RECORDS)]
    )
    send(driver_cluster, topic, [b"poison"])
    return topic


def command(cluster: Cluster, folder: Path, machines: Standalone, **words: str) -> Command:
    named = {"statement": "SELECT id, key, double FROM input", "errors": "skip", "most": str(PER_BATCH), **words}
    (folder / "doubling.py").write_text(STEP)
    (folder / "factors.py").write_text("FACTOR, ONE = 2, 1\n")
    return Command(cluster, folder, FILE.format(**named) + SETTINGS, master=machines.address)


def run_with_killed_executors(found: Command, workers: list[Daemon]) -> None:
    process = found.start("run", "--once")
    try:
        for number, worker in enumerate(workers):
            found.until_batches(1 + 2 * number)
            found.until(lambda worker=worker: executors(worker) != [], "an executor")  # type: ignore[misc]
            for pid in executors(worker):
                os.kill(pid, signal.SIGKILL)
        assert "finished: " in found.ended(process)
    finally:
        found.kill(process)


def parquet_rows(folder: Path, files: list[str] | None = None) -> list[dict[str, int]]:
    """Of a stream's folder: those that Spark has committed."""
    if files is None:
        files = [
            json.loads(line)["path"].removeprefix("file://")
            for log in (folder / "_spark_metadata").glob("[0-9]*")
            for line in log.read_text().splitlines()[1:]
        ]
    rows: list[dict[str, int]] = ds.dataset(sorted(set(files)), format="parquet").to_table().to_pylist()
    return rows


def test_each_record_is_in_the_topic_once_after_executors_were_killed(
    driver_cluster: Cluster, tmp_path: Path, machines: Standalone, numbers: str
) -> None:
    """The step is a module beside the file, with a module of its own."""
    target = create_topic(driver_cluster, "machines-out", partitions=2)
    sink = f'topic = "{target}"\nkey = "key"'
    found = command(driver_cluster, tmp_path, machines, name="to-topic", topic=numbers, sink=sink)
    run_with_killed_executors(found, machines.workers)
    rows = [json.loads(bytes(record.value or b"")) for record in read(driver_cluster, target)]
    assert Counter(row["id"] for row in rows) == Counter(range(RECORDS)), "each once"
    assert all(row["double"] == 2 * row["id"] for row in rows)
    assert found.state.read_progress().bad_records == 1
    state = found.state.read_run()
    assert state is not None and (state.state, state.restarts) == ("finished", 0), "Spark replaces executors by itself"


def test_a_table_has_the_totals_after_executors_were_killed(
    driver_cluster: Cluster,
    tmp_path: Path,
    machines: Standalone,
    numbers: str,
    request: pytest.FixtureRequest,
) -> None:
    """The driver writes what executors send it, so they do not see which database it is; test_spark_database.py has both."""
    database = empty_database("postgresql", "machines", request)
    statement = "SELECT key, count(*) AS count, sum(double) AS total FROM input GROUP BY key"
    sink = f'table = "totals"\ndatabase = "{database}"\nwrite = "upsert"\nkey = ["key"]'
    found = command(driver_cluster, tmp_path, machines, name="to-table", topic=numbers, statement=statement, sink=sink)
    run_with_killed_executors(found, machines.workers)
    select = "SELECT key, count, total FROM totals ORDER BY 1"
    expected = [(key, len(range(key, RECORDS, KEYS)), 2 * sum(range(key, RECORDS, KEYS))) for key in range(KEYS)]
    assert rows_in(database, tmp_path, select) == expected


def test_parquet_has_each_row_once_after_executors_were_killed(
    driver_cluster: Cluster, tmp_path: Path, machines: Standalone, numbers: str
) -> None:
    found = command(driver_cluster, tmp_path, machines, name="to-parquet", topic=numbers, sink='parquet = "rows"')
    run_with_killed_executors(found, machines.workers)
    rows = parquet_rows(tmp_path / "rows")
    assert Counter(row["id"] for row in rows) == Counter(range(RECORDS)), "each once"
    assert all(row["double"] == 2 * row["id"] for row in rows)


def other_python(folder: Path) -> Path:
    """With BARE in its environment, it has all that Barnabas needs, but not Barnabas."""
    python = folder / "python"
    packages = next(path for path in sys.path if path.endswith("site-packages"))  # without its .pth: without Barnabas
    other = f'PYTHONPATH="$PYTHONPATH:{packages}" exec {Path(sys.executable).resolve()} "$@"'
    python.write_text(f'#!/bin/sh\nif [ -n "$BARE" ]; then {other}; fi\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_packages_in_an_archive_reach_executors_that_lack_them(
    driver_cluster: Cluster, tmp_path: Path, machines: Standalone, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/spark.md, Packages for executors."""
    monkeypatch.setenv("PYSPARK_PYTHON", str(other_python(tmp_path)))
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(ROOT / "scripts" / "barnabas", "barnabas")
        for part in ("consumer_groups", "kraft", "log", "net", "spark_connector"):
            packed.add(ROOT / part, f"barnabas/{part}")
    found = command(
        driver_cluster, tmp_path, machines, name="packed", topic=numbers, sink='parquet = "rows"', most=str(RECORDS + 1)
    )
    settings = (
        f'"spark.archives" = "{archive}#environment"\n"spark.executorEnv.PYTHONPATH" = "environment"\n'
        '"spark.executorEnv.BARE" = "1"\n'
    )
    found.file.write_text(found.file.read_text() + settings)
    found.run_to_end("run", "--once")
    assert Counter(row["id"] for row in parquet_rows(tmp_path / "rows")) == Counter(range(RECORDS))


@pytest.mark.parametrize("lacks", ["package", "module"])
def test_an_executor_that_lacks_something_ends_the_pipeline_with_the_cure(
    driver_cluster: Cluster, tmp_path: Path, machines: Standalone, numbers: str, lacks: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Executors have another Python than the driver, although all is one machine here."""
    python = other_python(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    found = command(driver_cluster, tmp_path, machines, name=f"lacks-{lacks}", topic=numbers, sink='parquet = "rows"')
    if lacks == "module":
        step = STEP.replace("import factors\n", "").replace("from factors import FACTOR\n", "")
        (tmp_path / "doubling.py").write_text(
            step.replace(
                "        for part", "        import factors\n        from factors import FACTOR\n\n        for part"
            )
        )
    else:
        found.file.write_text(found.file.read_text() + '"spark.executorEnv.BARE" = "1"\n')
    told = found.run_to_end("run", "--once", code=1)
    words = "no module factors: import it at the head" if lacks == "module" else "install 'barnabas[spark]' for"
    assert words in told and str(python) in told and "all machines" in told, told
    state = found.state.read_run()
    assert state is not None and state.restarts == 0

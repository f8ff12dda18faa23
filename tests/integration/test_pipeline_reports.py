"""What pipelines tell a real cluster, as `barnabas pipeline list` shows it: without Spark, from their state folders."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from integration.cluster import Cluster, clean_environment

from barnabas.net.cli.pipeline.reporting import StatusReporter
from barnabas.net.client.positions.pipeline_reports import PIPELINES_TOPIC, PipelineReport
from barnabas.net.client.positions.reports import encoded_report
from barnabas.net.client.producer.producer import Producer
from barnabas.net.programs.pipeline.state import RunProgress, RunState, StateFolder

pytestmark = pytest.mark.timeout(180)


def listed(cluster: Cluster) -> tuple[int, list[dict[str, Any]]]:
    words = [sys.executable, "-P", "-m", "barnabas", "--bootstrap", cluster.bootstrap, "pipeline", "list", "-f", "json"]
    done = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


async def tell(cluster: Cluster, folder: StateFolder, name: str, state: RunState, progress: RunProgress) -> None:
    """A run that begins and ends."""
    folder.prepare()
    folder.write_run(state)
    folder.write_progress(progress)
    async with StatusReporter(
        pipeline=name, folder=folder, bootstrap=cluster.bootstrap, security={}, interval_s=60
    ).running():
        pass


async def tell_late(cluster: Cluster, name: str) -> None:
    """The last report of a machine that has died five intervals ago."""
    late = PipelineReport(pipeline=name, state="running", at_ms=int(time.time() * 1_000) - 50_000, interval_ms=10_000)
    async with Producer(cluster.bootstrap) as producer:
        await producer.send(PIPELINES_TOPIC, encoded_report(late), key=name.encode(), partition=0)


def test_the_newest_report_of_each_pipeline_is_listed(shared_cluster: Cluster, tmp_path: Path) -> None:
    asyncio.run(shared_cluster.ready())
    assert listed(shared_cluster) == (0, [])
    first, second = StateFolder(tmp_path / "a"), StateFolder(tmp_path / "b")
    running = RunState(state="running", since_ms=1)
    asyncio.run(tell(shared_cluster, first, "sales", running, RunProgress(batches=1, rows=5, lag=9)))
    asyncio.run(tell(shared_cluster, second, "alarms", running, RunProgress(batches=2, rows=7, lag=0)))
    asyncio.run(tell(shared_cluster, first, "sales", running, RunProgress(batches=2, rows=9, lag=3, watermark="w")))
    code, rows = listed(shared_cluster)
    assert code == 0
    assert [(row["pipeline"], row["state"], row["lag"], row["watermark"]) for row in rows] == [
        ("alarms", "running", 0, None),
        ("sales", "running", 3, "w"),
    ]
    failed = RunState(state="failed", restarts=5, last_error="sink.key names 'id'")
    asyncio.run(tell(shared_cluster, first, "sales", failed, RunProgress(batches=2)))
    code, rows = listed(shared_cluster)
    assert code == 3 and (rows[1]["state"], rows[1]["restarts"], rows[1]["error"]) == (
        "failed",
        5,
        "sink.key names 'id'",
    )

    asyncio.run(tell_late(shared_cluster, "sales"))
    code, rows = listed(shared_cluster)
    assert code == 3 and [row["state"] for row in rows] == ["running", "silent"], "none has failed now"

    async def settings() -> dict[str, str]:
        async with shared_cluster.admin() as admin:
            found = await admin.describe_configs(PIPELINES_TOPIC)
        return {item.key: str(item.value) for item in found}

    assert asyncio.run(settings())["cleanup.policy"] == "compact,delete"

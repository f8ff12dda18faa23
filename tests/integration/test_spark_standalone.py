"""A standalone cluster of Spark, master and workers as processes, whose executors are killed (kill -9) while a stream runs."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from integration.cluster import Cluster, until
from integration.spark_daemons import HOST, executors, standalone
from integration.spark_sink_driver import ROOT, SinkDriver
from integration.spark_world import QUICK_JAVA, create_topic, numbers, send
from integration.whole_topic import messages

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 240
RECORDS = 900
PER_TRIGGER = 150


def test_each_record_is_there_once_after_executors_were_killed(spark_cluster: Cluster, tmp_path: Path) -> None:
    """Tasks are killed in any place: they read a topic, and write into another one in transactions."""
    create_topic(spark_cluster, "machines-in", partitions=2)
    create_topic(spark_cluster, "machines-out", partitions=2)
    send(spark_cluster, "machines-in", numbers(0, RECORDS))
    with standalone(tmp_path, workers=2) as (master, daemons):
        workers = daemons[1:]
        asyncio.run(
            until(
                lambda: all(item.has_said("registered with master") for item in workers),
                "workers",
                timeout_s=DEADLINE_S,
            )
        )
        settings = {"spark_executor_memory": "512m", "spark_driver_host": HOST, "spark_driver_bindAddress": HOST}
        settings["spark_executorEnv_PYTHONPATH"] = str(ROOT / "tests")  # tasks have parts of the driver's module
        driver = SinkDriver(
            spark_cluster, tmp_path / "driver", source="machines-in", target="machines-out", per_trigger=PER_TRIGGER,
            master=master, spark_executor_extraJavaOptions=QUICK_JAVA, **settings,
        )  # fmt: skip
        process = driver.start()
        commits, killed = tmp_path / "driver" / "checkpoint" / "commits", list[int]()

        def has(count: int) -> bool:
            assert process.poll() is None, driver.log()
            return len(list(commits.glob("[0-9]*"))) >= count

        try:
            for number, worker in enumerate(workers):
                asyncio.run(until(lambda number=number: has(1 + 2 * number), "a micro-batch", timeout_s=DEADLINE_S))  # type: ignore[misc]
                asyncio.run(until(lambda worker=worker: executors(worker) != [], "an executor", timeout_s=DEADLINE_S))  # type: ignore[misc]
                for pid in executors(worker):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            assert process.wait(DEADLINE_S) == 0, driver.log()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert len(killed) == 2, "an executor of each worker"
        lost = [item.log.read_text().count("KILLED") + item.log.read_text().count("exitStatus 137") for item in workers]
        assert all(lost), f"the workers say so: {lost}"
    found = messages(spark_cluster.bootstrap, "machines-out", partitions=2)
    assert sorted(int((item.value() or b"").split()[0]) for item in found) == list(range(RECORDS))

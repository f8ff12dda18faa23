"""Spark's real-time mode reads and writes topics through Spark's own source and sink for Kafka: records do not wait for the end
of a micro-batch."""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from integration import java_client
from integration.cluster import Cluster, clean_environment
from integration.spark_world import create_topic

from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

pytestmark = pytest.mark.timeout(300)
RECORDS = 200
FIRST_S = 180.0  # until Spark has started and its first record is through
EACH_S = 60.0


def test_records_go_through_one_by_one(
    spark_cluster: Cluster, tmp_path: Path, report_line: Callable[[str], None]
) -> None:
    if java_client.find():
        pytest.skip(java_client.find())
    libraries = java_client.fetch(tmp_path / "jars", java_client.SPARKS_KAFKA, "spark_kafka.xml", of="spark")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    source, target = (create_topic(spark_cluster, name, partitions=1) for name in ("real-time-in", "real-time-out"))
    jars = ",".join(str(path) for path in sorted(libraries.glob("*.jar")))
    tests = Path(__file__).resolve().parent.parent
    with (tmp_path / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "integration.spark_real_time_driver", spark_cluster.bootstrap, source, target,
             str(tmp_path / "checkpoint"), jars],
            cwd=tests, env=clean_environment() | {"PYTHONPATH": os.fspath(tests)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            assert driver.stdout is not None and driver.stdout.readline() == "started\n", _end_of(log.name)
            delays_ms = asyncio.run(_pass(spark_cluster.bootstrap, source, target))
            ended, _ = driver.communicate("")
        finally:
            driver.kill()
            driver.wait()
    assert driver.returncode == 0, _end_of(log.name)
    assert ended == "0\n", "no micro-batch has ended meanwhile"
    report_line(
        f"real-time mode: p50 {statistics.median(delays_ms):.0f} ms, p99 {sorted(delays_ms)[len(delays_ms) * 99 // 100]:.0f} ms"
    )


async def _pass(bootstrap: str, source: str, target: str) -> list[float]:
    """Send each record when the one before it is through; returns how long each took, in ms."""
    delays: list[float] = []
    async with (
        Producer(bootstrap) as producer,
        Consumer(target, bootstrap=bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        records = aiter(consumer)
        for number in range(RECORDS):
            began = time.perf_counter()
            await (await producer.send(source, b"%d" % number))
            async with asyncio.timeout(EACH_S if number else FIRST_S):
                assert (await anext(records)).value == b"seen %d" % number
            delays.append((time.perf_counter() - began) * 1000)
    return delays[1:]


def _end_of(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")[-4_000:]

"""Streams of `scripts/benchmark spark`: what a query does between micro-batches, and how long a record takes through one."""

import os
import random
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusters import Cluster
from measure import records
from process_trees import Times, spent, tree_cpu

from barnabas import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
SIZE = 100  # bytes of a value
IDLE_S = 10.0
WARM_BATCHES = 5
MICRO_BATCHES = 40
TRIGGER_MS = 100
SEEN_LIMIT_S = 60.0
SEED = 12


class Manners:
    """Connections that tasks reuse, and requests of an idle query."""

    def __init__(self, cluster: Cluster, spark: "SparkSession", folder: Path) -> None:
        self._cluster, self._spark, self._folder = cluster, spark, folder

    def run(self) -> int:
        """Return how many goals are missed."""
        self._cluster.create("streamed", partitions=PARTITIONS)
        source = self._spark.readStream.format("barnabas").option("bootstrap.servers", self._cluster.bootstrap)
        writer = source.option("subscribe", "streamed").option("startingOffsets", "earliest").load().writeStream
        before = self._requests()
        time.sleep(IDLE_S)
        among_brokers = (self._requests() - before) / IDLE_S
        query = writer.format("noop").option("checkpointLocation", str(self._folder / "checkpoint")).start()
        delays_ms = []
        with sync.Producer(self._cluster.bootstrap) as producer:
            for number in range(WARM_BATCHES + MICRO_BATCHES):
                if number == WARM_BATCHES:
                    accepted = self._metric("barnabas_connections_accepted_total")
                began = time.perf_counter()
                producer.send_many("streamed", records(PARTITIONS * 10, SIZE)).result()
                query.processAllAvailable()
                delays_ms.append((time.perf_counter() - began) * 1000)
            new = self._metric("barnabas_connections_accepted_total") - accepted
        reads = PARTITIONS * MICRO_BATCHES
        reused = 100 * (1 - new / reads)
        before = self._requests()
        time.sleep(IDLE_S)
        idle = (self._requests() - before) / IDLE_S - among_brokers
        query.stop()
        print(f"\nconnections reused: {reused:.1f} % ({new:.0f} new ones for {reads} reads)   goal: at least 95")
        print(f"requests when idle: {idle:.1f}/s beside {among_brokers:.1f}/s among brokers   goal: at most 10")
        print(f"send, micro-batch and commit: p50 {statistics.median(delays_ms[WARM_BATCHES:]):.0f} ms", flush=True)
        return (reused < 95) + (idle > 10)

    def _requests(self) -> float:
        return self._metric("barnabas_requests_total")

    def _metric(self, name: str) -> float:
        """Of all brokers, whatever the labels."""
        total = 0.0
        for line in self._cluster.metrics().splitlines():
            if line.startswith(name):
                total += float(line.rpartition(" ")[2])
        return total


class Latency:
    """From `send` to the record in foreachBatch, one record at a time, with a trigger every TRIGGER_MS. The pause before a record
    is random, so that it has no fixed place between two triggers."""

    def __init__(self, cluster: Cluster, spark: "SparkSession", folder: Path) -> None:
        self._cluster, self._spark, self._folder = cluster, spark, folder
        self._seen = threading.Event()

    def run(self, formats: Sequence[str], turns: int = 1) -> int:
        """Return how many goals are missed: the first format is to be as fast as the others."""
        found: dict[str, tuple[list[float], list[float], list[float]]] = {name: ([], [], []) for name in formats}
        for turn in range(turns):
            for name in formats:
                self._query(name, f"latency-{name}-{turn}", *found[name])
        title = f"produce to sink, trigger {TRIGGER_MS} ms"
        print(f"\n{title:34} {'p50 ms':>7} {'p90 ms':>7} {'CPU ms/record':>14} {'idle CPU %':>11}")
        for name, (delays_ms, cpu_ms, idle) in found.items():
            ranked = sorted(delays_ms)
            shown = statistics.median(ranked), ranked[len(ranked) * 9 // 10], statistics.median(cpu_ms)
            print(
                f"{name:34} {shown[0]:7.0f} {shown[1]:7.0f} {shown[2]:14.1f} {statistics.median(idle):11.1f}",
                flush=True,
            )
        ours, *others = (statistics.median(delays_ms) for delays_ms, _, _ in found.values())
        return sum(ours > other for other in others)

    def _query(self, source: str, topic: str, delays_ms: list[float], cpu_ms: list[float], idle: list[float]) -> None:
        """`idle`: percent of a core of a query without records."""
        self._cluster.create(topic, partitions=PARTITIONS)
        reader = self._spark.readStream.format(source).option("kafka.bootstrap.servers", self._cluster.bootstrap)
        frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load().select("value")
        writer = frame.writeStream.foreachBatch(self._take).trigger(processingTime=f"{TRIGGER_MS} milliseconds")
        query = writer.option("checkpointLocation", str(self._folder / topic)).start()
        pauses = random.Random(SEED)
        try:
            with sync.Producer(self._cluster.bootstrap) as producer:
                for number in range(WARM_BATCHES + MICRO_BATCHES):
                    if number == WARM_BATCHES:
                        before = self._cpu()
                    time.sleep(pauses.uniform(0, 2 * TRIGGER_MS) / 1000)
                    self._seen.clear()
                    began = time.perf_counter()
                    producer.send(topic, b"x" * SIZE).result()
                    if not self._seen.wait(SEEN_LIMIT_S):
                        raise RuntimeError(f"{source}: no record within {SEEN_LIMIT_S} s: {query.exception()}")
                    if number >= WARM_BATCHES:
                        delays_ms.append((time.perf_counter() - began) * 1000)
            cpu_ms.append(1000 * spent(before, self._cpu()) / MICRO_BATCHES)
            before = self._cpu()
            time.sleep(IDLE_S)
            idle.append(100 * spent(before, self._cpu()) / IDLE_S)
        finally:
            query.stop()

    def _take(self, frame: "DataFrame", _: int) -> None:
        if frame.collect():
            self._seen.set()

    def _cpu(self) -> dict[int, Times]:
        return tree_cpu([os.getpid()], self._cluster.pids())

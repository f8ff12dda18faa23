"""`scripts/benchmark spark`: the connector beside the least that Spark's Python data sources can do, in one session.

Cases take turns, so that what a ratio compares was measured within the same minute. CPU is that of Spark's processes (the JVM
and its Python workers); brokers are counted separately. Wall-clock time varies with other users of the machine, CPU time hardly:
where both ratios are shown, the goals are for CPU time.
"""

import argparse
import os
import statistics
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusters import Cluster
from measure import HERE, records

from barnabas import sync
from barnabas.spark_connector.session import local_session

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
PARTITIONS = 2
SIZE = 100  # bytes of a value
IDLE_S = 10.0
WARM_BATCHES = 5
MICRO_BATCHES = 40
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A limit for the ratio of costs: at most for `ours` / `theirs`, or at least for `theirs` / `ours`."""

    name: str
    ours: str
    theirs: str
    at_least: float = 0  # 0: shown without a goal


GOALS = (
    Goal(name="source / Arrow generator", ours="read topic", theirs="read gen", at_least=0.5),
    Goal(name="source / the same by tuples", ours="read topic", theirs="read tuples", at_least=5.0),
    Goal(name="value only / all columns", ours="read topic, value only", theirs="read topic"),
    Goal(name="sink, at least once / counting writer", ours="write at least once", theirs="write count", at_least=0.5),
    Goal(
        name="sink, effectively once / at least once",
        ours="write effectively once",
        theirs="write at least once",
        at_least=0.91,  # at most 1.1 times the cost
    ),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark spark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rows",
        type=int,
        default=4_000_000,
        help="fewer flatter every ratio: a job's start costs half a second of CPU",
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--only", default="", help="read, write or stream")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="barnabas-benchmark-") as folder, Cluster(options.brokers) as cluster:
        return Suite(cluster, Path(folder), options).run()


class Suite:
    def __init__(self, cluster: Cluster, folder: Path, options: argparse.Namespace) -> None:
        self._cluster, self._folder, self._options = cluster, folder, options
        # Workers import the sources by name from here; what is pickled by value would find no open connections.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        self._spark = local_session("benchmark", settings={"spark.log.level": "ERROR", "spark.driver.memory": "2g"})
        import spark_twins

        for source in (spark_twins.GenSource, spark_twins.TupleSource, spark_twins.CountSink):
            self._spark.dataSource.register(source)

    def run(self) -> int:
        missed = 0
        if self._options.only in ("", "read", "write"):
            missed += self._compare()
        if self._options.only in ("", "stream"):
            missed += self._stream()
        self._spark.stop()
        return 1 if missed else 0

    # --- batches, compared -----------------------------------------------------------------------------------------

    def _compare(self) -> int:
        cases = self._cases()
        samples: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for turn in range(self._options.repeat + 1):
            for name, (rows, run) in cases.items():
                wall, cpu, brokers = self._sample(run)
                if turn:  # The first one warms up.
                    samples[name].append((wall / rows, cpu / rows, brokers / rows))
        per_row = {
            name: [statistics.median(item) for item in zip(*some, strict=True)] for name, some in samples.items()
        }
        print(f"\n{'':28} {'rows/s':>10} {'CPU us/row':>11} {'brokers us/row':>15}")
        for name, (wall, cpu, brokers) in per_row.items():
            print(f"{name:28} {1 / wall:10.0f} {cpu * 1e6:11.2f} {brokers * 1e6:15.2f}", flush=True)
        print(f"\n{'':42} {'CPU':>6} {'with brokers':>13} {'wall':>6}")
        missed = 0
        for goal in GOALS:
            if goal.ours in per_row and goal.theirs in per_row:
                ours, theirs = per_row[goal.ours], per_row[goal.theirs]
                ratio = theirs[1] / ours[1]
                missed += ratio < goal.at_least
                judged = f"goal: at least {goal.at_least:g}  {'met' if ratio >= goal.at_least else 'MISSED'}"
                verdict = judged if goal.at_least else ""
                both = (theirs[1] + theirs[2]) / (ours[1] + ours[2])
                print(f"{goal.name:42} {ratio:6.2f} {both:13.2f} {theirs[0] / ours[0]:6.2f}   {verdict}", flush=True)
        return missed

    def _cases(self) -> dict[str, tuple[int, Callable[[], None]]]:
        rows, cases = self._options.rows, {}
        if self._options.only in ("", "read"):
            self._cluster.create("to-read", partitions=PARTITIONS)
            self._fill("to-read", rows)
            cases["read gen"] = rows, lambda: self._read("gen", rows=rows, partitions=PARTITIONS, size=SIZE)
            cases["read topic"] = rows, lambda: self._read("barnabas", subscribe="to-read")
            value = "value binary"
            cases["read topic, value only"] = rows, lambda: self._read("barnabas", value, subscribe="to-read")
            some = rows // 4
            ends = {str(number): some // PARTITIONS for number in range(PARTITIONS)}
            cut = f'{{"to-read":{ends}}}'.replace("'", '"')
            cases["read tuples"] = some, lambda: self._read("tuples", subscribe="to-read", endingOffsets=cut)
        if self._options.only in ("", "write"):
            some = rows // 2
            self._cluster.create("to-write", partitions=PARTITIONS, configs={"retention.bytes": str(256 << 20)})
            cases["write count"] = some, lambda: self._write(some, "count")
            cases["write at least once"] = some, lambda: self._write(some, "barnabas", delivery="at_least_once")
            cases["write effectively once"] = some, lambda: self._write(some, "barnabas", delivery="effectively_once")
        return cases

    def _fill(self, topic: str, count: int) -> None:
        with sync.Producer(self._cluster.bootstrap) as producer:
            for _ in range(count // 100_000):
                producer.send_many(topic, records(100_000, SIZE)).result()

    def _read(self, source: str, columns: str = COLUMNS, **options: Any) -> None:
        reader = self._spark.read.format(source).schema(columns).option("bootstrap.servers", self._cluster.bootstrap)
        reader.options(**options).load().write.format("noop").mode("overwrite").save()

    def _write(self, rows: int, sink: str, **options: str) -> None:
        value = f"cast(concat(lpad(id, 10, '0'), repeat('x', {SIZE - 10})) as binary) AS value"
        frame = self._spark.range(0, rows, 1, PARTITIONS).selectExpr("cast(cast(id as string) as binary) AS key", value)
        writer = frame.write.format(sink).mode("append").options(**options)
        if sink == "barnabas":
            writer = writer.option("bootstrap.servers", self._cluster.bootstrap).option("topic", "to-write")
        writer.save()

    def _sample(self, run: Callable[[], None]) -> tuple[float, float, float]:
        """Seconds: of the wall clock, of Spark's CPU, of the brokers' CPU."""
        brokers, spark, began = (
            tree_cpu(self._cluster.pids()),
            tree_cpu([os.getpid()], self._cluster.pids()),
            time.perf_counter(),
        )
        run()
        wall = time.perf_counter() - began
        return wall, tree_cpu([os.getpid()], self._cluster.pids()) - spark, tree_cpu(self._cluster.pids()) - brokers

    # --- a stream's manners -----------------------------------------------------------------------------------------

    def _stream(self) -> int:
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
        for broker in self._cluster.brokers:
            with urllib.request.urlopen(f"http://{_admin_address(broker.folder)}/metrics", timeout=10) as answer:
                for line in answer.read().decode().splitlines():
                    if line.startswith(name):
                        total += float(line.rpartition(" ")[2])
        return total


def _admin_address(folder: Path) -> str:
    lines = (folder / "server.properties").read_text(encoding="utf-8").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("admin.listener="))


def tree_cpu(roots: Sequence[int], without: Sequence[int] = ()) -> float:
    """Seconds of CPU of these processes and all below them, ended ones too."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICKS
    children = defaultdict(list)
    for pid, (parent, _) in stats.items():
        children[parent].append(pid)
    total, left = 0.0, list(roots)
    while left:
        pid = left.pop()
        if pid in stats and pid not in without:
            total += stats[pid][1]
            left += children[pid]
    return total

"""`scripts/benchmark spark`: the connector beside the least that Spark's Python data sources can do, and beside Spark's own
source and sink for Kafka on the same brokers, in one session.

Cases take turns, so that what a ratio compares was measured within the same minute. CPU is that of Spark's processes (the JVM
and its Python workers); brokers are counted separately. Wall-clock time varies with other users of the machine, CPU time hardly:
where both ratios are shown, the goals are for CPU time.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusters import Cluster
from measure import HERE, records
from process_trees import spent, tree_cpu
from spark_streams import PARTITIONS, SIZE, Latency, Manners

from barnabas import sync
from barnabas.spark_connector.session import local_session

if TYPE_CHECKING:  # Other benchmarks run without it.
    from pyspark.sql import DataFrame

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
STREAM_BATCHES = 8  # of a stream that is compared
STREAM_LIMIT_S = 600
GENERATED = {"partitions": PARTITIONS, "size": SIZE}
OURS, KAFKAS = "barnabas", "kafka"  # formats


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A limit for the ratio of costs: at least `at_least` for `theirs` / `ours`."""

    name: str
    ours: str
    theirs: str
    at_least: float = 0  # 0: shown without a goal


GOALS = (
    Goal(name="source / Arrow generator", ours="read topic", theirs="read gen", at_least=0.9),
    Goal(name="source / Spark's Kafka source", ours="read topic", theirs="read kafka", at_least=1.0),
    Goal(name="stream / Arrow generator", ours="stream topic", theirs="stream gen", at_least=0.9),
    Goal(name="stream / Spark's Kafka source", ours="stream topic", theirs="stream kafka", at_least=1.0),
    Goal(name="stream / batch", ours="stream topic", theirs="read topic"),
    Goal(name="source / the same by tuples", ours="read topic", theirs="read tuples", at_least=5.0),
    Goal(name="value only / all columns", ours="read topic, value only", theirs="read topic"),
    Goal(name="sink, at least once / counting writer", ours="write at least once", theirs="write count", at_least=0.8),
    Goal(name="sink, at least once / Spark's Kafka sink", ours="write at least once", theirs="write kafka"),
    Goal(
        name="sink, effectively once / at least once",
        ours="write effectively once",
        theirs="write at least once",
        at_least=0.87,  # at most 1.15 times the cost
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
    parser.add_argument(
        "--only",
        default="",
        help="some of read, write, stream, manners, latency, with commas; or tasks: without Spark around them",
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="barnabas-benchmark-") as folder, Cluster(options.brokers) as cluster:
        if options.only == "tasks":
            import spark_tasks

            return spark_tasks.run(cluster, options.rows, options.repeat, SIZE)
        return Suite(cluster, Path(folder), options).run()


def sparks_kafka(folder: Path) -> Mapping[str, str]:
    """The setting that gives a session Spark's own source and sink for Kafka; empty where they cannot be fetched."""
    sys.path.insert(0, str(HERE.parents[1] / "tests"))
    from integration import java_client

    reason = java_client.find()
    libraries = None if reason else java_client.fetch(folder, java_client.SPARKS_KAFKA, "spark_kafka.xml", of="spark")
    if libraries is None:
        print(f"without Spark's Kafka source: {reason or 'Maven Central is out of reach'}", flush=True)
        return {}
    return {"spark.jars": ",".join(str(path) for path in sorted(libraries.glob("*.jar")))}


class Suite:
    def __init__(self, cluster: Cluster, folder: Path, options: argparse.Namespace) -> None:
        self._cluster, self._folder, self._options = cluster, folder, options
        # Workers import the sources by name from here; what is pickled by value would find no open connections.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        kafka = sparks_kafka(folder / "jars")
        self._has_kafka = bool(kafka)
        settings = {"spark.log.level": "ERROR", "spark.driver.memory": "2g", **kafka}
        self._spark = local_session("benchmark", settings=settings)
        self._streams = 0
        import spark_twins

        for source in (spark_twins.GenSource, spark_twins.TupleSource, spark_twins.CountSink):
            self._spark.dataSource.register(source)

    def run(self) -> int:
        missed = 0
        if self._asked("read", "write", "stream"):
            missed += self._compare()
        formats = [OURS, KAFKAS] if self._has_kafka else [OURS]
        if self._asked("manners"):
            missed += Manners(self._cluster, self._spark, self._folder).run()
        if self._asked("latency"):
            missed += Latency(self._cluster, self._spark, self._folder).run(formats)
        self._spark.stop()
        return 1 if missed else 0

    def _asked(self, *parts: str) -> bool:
        only = self._options.only
        return not only or any(part in only.split(",") for part in parts)

    # --- batches and streams, compared -----------------------------------------------------------------------------

    def _compare(self) -> int:
        cases = self._cases()
        samples: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for turn in range(self._options.repeat + 1):
            for name, (rows, run) in cases.items():
                wall, cpu, brokers = self._sample(run)
                print(f"turn {turn}: {name}: {wall:.1f} s, CPU {cpu:.2f} s, brokers {brokers:.2f} s", flush=True)
                if turn:  # The first one warms up.
                    samples[name].append((wall / rows, cpu / rows, brokers / rows))
        per_row = {
            name: [statistics.median(item) for item in zip(*some, strict=True)] for name, some in samples.items()
        }
        print(f"\n{'':28} {'rows/s':>10} {'CPU us/row':>11} {'of the turns':>14} {'brokers us/row':>15}")
        for name, (wall, cpu, brokers) in per_row.items():
            turns = [sample[1] * 1e6 for sample in samples[name]]
            between = f"{min(turns):.2f}-{max(turns):.2f}"
            print(f"{name:28} {1 / wall:10.0f} {cpu * 1e6:11.2f} {between:>14} {brokers * 1e6:15.2f}", flush=True)
        return self._judge(samples, per_row)

    def _judge(
        self, samples: Mapping[str, Sequence[tuple[float, float, float]]], per_row: Mapping[str, Sequence[float]]
    ) -> int:
        """Print the ratios of the medians, and the range of those of the turns; returns how many goals are missed."""
        print(f"\n{'':42} {'CPU':>6} {'of the turns':>14} {'with brokers':>13} {'wall':>6}")
        missed = 0
        for goal in GOALS:
            if goal.ours in per_row and goal.theirs in per_row:
                ours, theirs = per_row[goal.ours], per_row[goal.theirs]
                ratio = theirs[1] / ours[1]
                turns = [b[1] / a[1] for a, b in zip(samples[goal.ours], samples[goal.theirs], strict=True)]
                between = f"{min(turns):.2f}-{max(turns):.2f}"
                missed += ratio < goal.at_least
                judged = f"goal: at least {goal.at_least:g}  {'met' if ratio >= goal.at_least else 'MISSED'}"
                verdict = judged if goal.at_least else ""
                both = (theirs[1] + theirs[2]) / (ours[1] + ours[2])
                wall = theirs[0] / ours[0]
                print(f"{goal.name:42} {ratio:6.2f} {between:>14} {both:13.2f} {wall:6.2f}   {verdict}", flush=True)
        return missed

    def _cases(self) -> dict[str, tuple[int, Callable[[], None]]]:
        cases: dict[str, tuple[int, Callable[[], None]]] = {}
        if self._asked("read", "stream"):
            self._cluster.create("to-read", partitions=PARTITIONS)
            self._fill("to-read", self._options.rows)
        if self._asked("read"):
            cases |= self._reads()
        if self._asked("stream"):
            cases |= self._streamed()
        if self._asked("write"):
            cases |= self._writes()
        return cases

    def _reads(self) -> dict[str, tuple[int, Callable[[], None]]]:
        rows = self._options.rows
        some = rows // 4
        ends = {str(number): some // PARTITIONS for number in range(PARTITIONS)}
        cut = f'{{"to-read":{ends}}}'.replace("'", '"')
        value = "value binary"
        cases: dict[str, tuple[int, Callable[[], None]]] = {
            "read gen": (rows, lambda: self._read("gen", rows=rows, **GENERATED)),
            "read topic": (rows, lambda: self._read(OURS, subscribe="to-read")),
            "read topic, value only": (rows, lambda: self._read(OURS, value, subscribe="to-read")),
            "read tuples": (some, lambda: self._read("tuples", subscribe="to-read", endingOffsets=cut)),
        }
        if self._has_kafka:
            cases["read kafka"] = rows, lambda: self._read(KAFKAS, subscribe="to-read")
        return cases

    def _streamed(self) -> dict[str, tuple[int, Callable[[], None]]]:
        rows = self._options.rows
        limit = rows // STREAM_BATCHES
        begin = {"subscribe": "to-read", "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
        cases: dict[str, tuple[int, Callable[[], None]]] = {
            "stream gen": (rows, lambda: self._stream("gen", rows=limit, batches=STREAM_BATCHES, **GENERATED)),
            "stream topic": (rows, lambda: self._stream(OURS, **begin)),
        }
        if self._has_kafka:
            cases["stream kafka"] = rows, lambda: self._stream(KAFKAS, **begin)
        return cases

    def _writes(self) -> dict[str, tuple[int, Callable[[], None]]]:
        some = self._options.rows // 2
        self._cluster.create("to-write", partitions=PARTITIONS, configs={"retention.bytes": str(256 << 20)})
        cases: dict[str, tuple[int, Callable[[], None]]] = {
            "write count": (some, lambda: self._write(some, "count")),
            "write at least once": (some, lambda: self._write(some, OURS, delivery="at_least_once")),
            "write effectively once": (some, lambda: self._write(some, OURS, delivery="effectively_once")),
        }
        if self._has_kafka:
            cases["write kafka"] = some, lambda: self._write(some, KAFKAS)
        return cases

    def _fill(self, topic: str, count: int) -> None:
        with sync.Producer(self._cluster.bootstrap) as producer:
            for _ in range(count // 100_000):
                producer.send_many(topic, records(100_000, SIZE)).result()

    @property
    def _brokers(self) -> dict[str, str]:
        """As both formats take it; others ignore it."""
        return {"kafka.bootstrap.servers": self._cluster.bootstrap}

    def _read(self, source: str, columns: str = COLUMNS, **options: Any) -> None:
        reader = self._spark.read.format(source).options(**self._brokers, **options)
        if source != KAFKAS:  # It refuses a projection.
            reader = reader.schema(columns)
        reader.load().write.format("noop").mode("overwrite").save()

    def _stream(self, source: str, **options: Any) -> None:
        """All that is there, in STREAM_BATCHES micro-batches of a new query."""
        self._streams += 1
        reader = self._spark.readStream.format(source).options(**self._brokers, **options)
        writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._folder / f"checkpoint-{self._streams}")).start()
        if not query.awaitTermination(STREAM_LIMIT_S):
            raise RuntimeError(f"{source}: the stream has not ended within {STREAM_LIMIT_S} s")

    def _write(self, rows: int, sink: str, **options: str) -> None:
        writer = self._rows(rows).write.format(sink).mode("append").options(**options)
        if sink != "count":
            writer = writer.options(**self._brokers, topic="to-write")
        writer.save()

    def _rows(self, rows: int) -> "DataFrame":
        value = f"cast(concat(lpad(id, 10, '0'), repeat('x', {SIZE - 10})) as binary) AS value"
        return self._spark.range(0, rows, 1, PARTITIONS).selectExpr("cast(cast(id as string) as binary) AS key", value)

    def _sample(self, run: Callable[[], None]) -> tuple[float, float, float]:
        """Seconds: of the wall clock, of Spark's CPU, of the brokers' CPU."""
        pids = self._cluster.pids()
        brokers, spark, began = tree_cpu(pids), tree_cpu([os.getpid()], pids), time.perf_counter()
        run()
        wall = time.perf_counter() - began
        return wall, spent(spark, tree_cpu([os.getpid()], pids)), spent(brokers, tree_cpu(pids))

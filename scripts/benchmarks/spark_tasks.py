"""`scripts/benchmark spark --only tasks`: what tasks of the connector cost by themselves, without Spark.

A task runs in this process as Spark's Python worker runs it: it reads a topic as record batches, or sends record batches of
10,000 rows, which Spark's default is. There is no JVM, so a busy machine disturbs this less than the other cases.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import pyarrow
from clusters import Cluster
from measure import records
from process_trees import spent, tree_cpu

from barnabas import sync
from barnabas.spark_connector.common.schema import source_schema
from barnabas.spark_connector.read.read_options import parse_read_options
from barnabas.spark_connector.read.reader import BatchReader
from barnabas.spark_connector.write.sink_task import write_rows
from barnabas.spark_connector.write.write_options import parse_write_options

BATCH_ROWS = 10_000
PARTITIONS = (2, 24)


def run(cluster: Cluster, rows: int, repeat: int, size: int) -> int:
    """`size`: bytes of a value."""
    cases: dict[str, Callable[[], None]] = {}
    for count in PARTITIONS:
        topic = f"tasks-{count}"
        cluster.create(topic, partitions=count, configs={"retention.bytes": str(128 << 20)})
        for name, batch in (("keys", _batch(size, has_keys=True)), ("no keys", _batch(size, has_keys=False))):
            cases[f"write, {name}, {count} partitions"] = partial(_write, cluster, topic, batch, rows // BATCH_ROWS)
    cluster.create("tasks-read", partitions=1)
    with sync.Producer(cluster.bootstrap) as producer:
        for _ in range(rows // BATCH_ROWS):
            producer.send_many("tasks-read", records(BATCH_ROWS, size)).result()
    cases["read"] = partial(_read, cluster)
    print(f"\n{'CPU us/row, median and range':34} {'task':>18} {'brokers':>18}")
    for name, case in cases.items():
        case()  # warms up
        samples = [_sample(cluster, case, rows) for _ in range(repeat)]
        task, brokers = (
            f"{statistics.median(some):.2f} ({min(some):.2f}-{max(some):.2f})" for some in zip(*samples, strict=True)
        )
        print(f"{name:34} {task:>18} {brokers:>18}", flush=True)
    return 0


def _sample(cluster: Cluster, case: Callable[[], None], rows: int) -> tuple[float, float]:
    before, began = tree_cpu(cluster.pids()), time.process_time()
    case()
    task = time.process_time() - began
    return task / rows * 1e6, spent(before, tree_cpu(cluster.pids())) / rows * 1e6


def _batch(size: int, *, has_keys: bool) -> pyarrow.RecordBatch:
    columns = {"value": pyarrow.array(records(BATCH_ROWS, size))}
    if has_keys:
        columns["key"] = pyarrow.array([b"%d" % number for number in range(BATCH_ROWS)])
    return pyarrow.RecordBatch.from_pydict(columns)


def _write(cluster: Cluster, topic: str, batch: pyarrow.RecordBatch, batches: int) -> None:
    options = parse_write_options({"bootstrap.servers": cluster.bootstrap, "topic": topic})
    write_rows(options, (batch for _ in range(batches)))


def _read(cluster: Cluster) -> None:
    options = parse_read_options({"bootstrap.servers": cluster.bootstrap, "subscribe": "tasks-read"}, is_stream=False)
    reader = BatchReader(options, source_schema(includes_headers=False))
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass

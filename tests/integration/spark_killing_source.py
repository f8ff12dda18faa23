"""The format "barnabas" whose sink has its driver killed at a chosen step of a chosen micro-batch."""

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from barnabas.spark_connector.source import BarnabasDataSource
from barnabas.spark_connector.write.sink_task import TaskReport
from barnabas.spark_connector.write.write_options import parse_write_options
from barnabas.spark_connector.write.writer import StreamWriter

KILL = "BARNABAS_TEST_KILL"  # JSON: step, batch, and for a zombie the file that it waits for
DRIVER = "BARNABAS_TEST_DRIVER"  # Its process id.
ZOMBIE_WAIT_S = 300
# In the order in which they happen. "staging" is in a task, before the other tasks have ended; "copied-one" is when the first of
# the target's partitions is done; "committed" is when Spark has not been told yet.
STEPS = ("staging", "staged", "decided", "copied-one", "copied", "published", "committed")


class KillingSource(BarnabasDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return _KillingWriter(parse_write_options(self.options), schema, probe=_Kill())


class _Kill:
    """Picklable; reads in its own process what is to be killed when."""

    def __init__(self) -> None:
        self.batch_id = -1

    def __call__(self, step: str) -> None:
        order = json.loads(os.environ.get(KILL, "null"))
        if step.startswith("copied "):
            step = "copied-one"
        if not order or (order["step"], order["batch"]) != (step, self.batch_id):
            return
        if "go" in order:
            self._become_a_zombie(Path(order["go"]))
            return
        os.killpg(int(os.environ[DRIVER]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def _become_a_zombie(self, go: Path) -> None:
        """The driver dies, and this process of its, which is just committing, goes on long afterwards."""
        done = go.with_suffix(".waits")
        if done.exists():
            return  # The second copy of the same micro-batch: somebody waits already.
        done.touch()
        java = _ancestor(os.getpid(), "java")
        os.setpgid(0, 0)  # Spark's daemon takes its group with it when the driver is gone.
        for process_id in (java, int(os.environ[DRIVER])):
            os.kill(process_id, signal.SIGKILL)
        deadline_s = time.monotonic() + ZOMBIE_WAIT_S
        while not go.exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)


class _KillingWriter(StreamWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> TaskReport:
        report = super().write(iterator)
        context = TaskContext.get()
        assert context is not None and isinstance(self._probe, _Kill)
        if context.partitionId() == 0:
            self._probe.batch_id = int(context.getLocalProperty("streaming.sql.batchId") or -1)
            self._probe("staging")
        return report

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        assert isinstance(self._probe, _Kill)
        self._probe.batch_id = batchId
        super().commit(messages, batchId)
        self._probe("committed")
        go = json.loads(os.environ.get(KILL, "null") or "null")
        if go and "go" in go and go["batch"] == batchId:
            Path(go["go"]).with_suffix(".ended").touch()


def _ancestor(process_id: int, name: str) -> int:
    while process_id > 1:
        command, _, rest = Path(f"/proc/{process_id}/stat").read_text().partition("(")[2].rpartition(")")
        if command == name:
            return process_id
        process_id = int(rest.split()[1])
    raise AssertionError(f"no ancestor is called {name}")

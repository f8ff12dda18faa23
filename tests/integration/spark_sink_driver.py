"""A Spark driver of its own for tests that kill it: copies a topic to another one, until there is nothing new.

The rows of a micro-batch are numbered afresh each time that they are computed (`attempt`), so a replay is never the same rows
as before: a sink that relied on that would show here.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from integration.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240


class SinkDriver:
    """Starts driver processes on one checkpoint, one after the other."""

    def __init__(
        self, cluster: Cluster, folder: Path, *, source: str, target: str, per_trigger: int, **spark: str
    ) -> None:
        """`spark`: more for `start_session`."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.runs = 0
        self._plan = {
            "bootstrap": cluster.bootstrap,
            "source": source,
            "target": target,
            "checkpoint": str(folder / "checkpoint"),
            "per_trigger": per_trigger,
            "spark": spark,
        }

    def start(self, kill: dict[str, object] | None = None) -> "subprocess.Popen[bytes]":
        self.runs += 1
        run = self.folder / f"run-{self.runs}"
        run.mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "tests"),
            "BARNABAS_TEST_KILL": json.dumps(kill),
        }
        environment.pop("SPARK_HOME", None)
        plan = json.dumps({**self._plan, "folder": str(run)})
        with (run / "log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "integration.spark_sink_driver", plan],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, kill: dict[str, object] | None = None) -> int:
        """Returns the exit code: 0, or -9 of one that was killed."""
        process = self.start(kill)
        try:
            return process.wait(DEADLINE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)

    def log(self) -> str:
        return (self.folder / f"run-{self.runs}" / "log").read_text(errors="replace")[-6_000:]


def main(plan: dict[str, Any]) -> None:
    os.environ["BARNABAS_TEST_DRIVER"] = str(os.getpid())
    from integration.spark_killing_source import KillingSource
    from integration.spark_world import FORMAT, start_session

    spark = start_session(Path(str(plan["folder"])), **plan["spark"])
    spark.dataSource.register(KillingSource)
    source = (
        spark.readStream.format(FORMAT)
        .option("bootstrap.servers", plan["bootstrap"])
        .option("subscribe", plan["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", plan["per_trigger"])
        .load()
    )
    attempt = f"{os.getpid()}-{time.time_ns()}"
    (
        source.selectExpr("key", f"concat(cast(value as string), ' {attempt}') as value")
        .repartition(3)  # Rows come to other tasks, in another order, with every attempt.
        .writeStream.format(FORMAT)
        .option("bootstrap.servers", plan["bootstrap"])
        .option("topic", plan["target"])
        .option("delivery", "effectively_once")
        .option("batch.size", 1024)  # Many batches, so that there is something between the first and the last.
        .option("checkpointLocation", plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

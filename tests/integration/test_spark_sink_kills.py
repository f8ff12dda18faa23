"""kill -9 of the Spark driver between the steps of an effectively-once commit: nothing is lost, nothing is doubled, nothing is
half of one attempt and half of another."""

import argparse
import asyncio
from collections import Counter
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from integration.cluster import SESSION, Cluster, until
from integration.decided import markers_written
from integration.spark_killing_source import STEPS
from integration.spark_sink_driver import SinkDriver
from integration.spark_world import create_topic, in_admin, numbers, send
from integration.test_spark_sink import read

from barnabas.log.vocabulary.transaction_messages import UNDECIDED_STATES

pytestmark = pytest.mark.timeout(420)  # Each driver is a Spark of its own, which takes half a minute on a busy machine.
ROWS = 600
PER_TRIGGER = 200


def check_once(cluster: Cluster, target: str, rows: int, per_trigger: int) -> Counter[str]:
    """Each row once, and each micro-batch's rows of one attempt. Returns how many rows each attempt has brought."""
    records = [(record.value or b"").decode().split() for record in read(cluster, target)]
    counts = Counter(int(number) for number, _ in records)
    assert not (lost := sorted(set(range(rows)) - set(counts))), f"lost: {len(lost)}, {lost[:10]}"
    assert not (doubled := {number for number, count in counts.items() if count > 1}), f"doubled: {len(doubled)}"
    attempts = Counter(attempt for _, attempt in records)
    assert all(count % per_trigger == 0 for count in attempts.values()), f"a micro-batch of two attempts: {attempts}"
    return attempts


class Copying:
    """A topic with numbers that drivers copy, one after the other, each to be killed or not."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, *, rows: int, per_trigger: int) -> None:
        self._cluster = cluster
        self._rows = rows
        self._per_trigger = per_trigger
        self.source = create_topic(cluster, f"{name}-in", partitions=1)
        self.target = create_topic(cluster, f"{name}-out", partitions=3)
        self._driver = SinkDriver(
            cluster, folder / name, source=self.source, target=self.target, per_trigger=per_trigger
        )
        send(cluster, self.source, numbers(0, rows))

    def kill(self, step: str, batch_id: int, **zombie: str) -> None:
        code = self._driver.run({"step": step, "batch": batch_id, **zombie})
        assert code == -9, f"the driver was to die at {step}: {code}\n{self._driver.log()}"

    def check_complete_micro_batches(self) -> None:
        """Readers of committed records see whole micro-batches, also of drivers that died before their decision."""
        attempts = Counter((record.value or b"").decode().split()[1] for record in read(self._cluster, self.target))
        assert all(count % self._per_trigger == 0 for count in attempts.values()), f"part of a micro-batch: {attempts}"

    def finish(self) -> None:
        assert self._driver.run() == 0, self._driver.log()

    def check(self) -> Counter[str]:
        return check_once(self._cluster, self.target, self._rows, self._per_trigger)


def test_drivers_that_die_in_the_middle_of_a_commit(driver_cluster: Cluster, tmp_path: Path) -> None:
    """What one leaves, the next finishes, and dies in the micro-batch behind that. One of them is a zombie: its driver is dead,
    while the process that commits goes on much later."""
    copying = Copying(driver_cluster, tmp_path, "killed", rows=ROWS, per_trigger=PER_TRIGGER)
    go = tmp_path / "go"
    copying.kill("staged", 0)
    copying.check_complete_micro_batches()
    assert not read(driver_cluster, copying.target), "tasks have written, and nothing is decided"
    prepared = in_admin(driver_cluster, lambda admin: admin.transactions.list(states=("Prepared",)))
    assert prepared.transactions and all(
        "micro-batch 0 of Spark sink" in it.prepared_for for it in prepared.transactions
    )
    copying.kill("staged", 1, go=str(go))
    copying.check_complete_micro_batches()
    copying.kill("copied-one", 2)
    copying.finish()
    attempts = copying.check()
    # By then nothing was decided, twice: 0 is the second driver's. The third has written 1 and decided 2.
    assert sorted(attempts.values()) == [PER_TRIGGER, 2 * PER_TRIGGER]
    go.touch()
    asyncio.run(until(go.with_suffix(".ended").exists, "the zombie has ended its commit"))
    assert copying.check() == attempts
    asyncio.run(markers_written(driver_cluster.bootstrap))
    left = in_admin(driver_cluster, lambda admin: admin.transactions.list(states=UNDECIDED_STATES))
    assert not left.transactions, "nothing keeps readers waiting"


def main() -> None:
    """The long run: every step again and again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows-per-batch", type=int, default=2_000)
    arguments = parser.parse_args()
    with (
        TemporaryDirectory(prefix="spark-sink-kills-") as name,
        Cluster(Path(name) / "c", overrides=SESSION) as cluster,
    ):
        asyncio.run(cluster.ready())
        per_trigger = arguments.rows_per_batch
        rows = (arguments.kills + 1) * per_trigger
        copying = Copying(cluster, Path(name), "killed", rows=rows, per_trigger=per_trigger)
        for batch_id, step in zip(range(arguments.kills), cycle(STEPS)):
            copying.kill(step, batch_id)
            print(f"killed at {step} in micro-batch {batch_id}", flush=True)
        copying.finish()
        attempts = copying.check()
    print(f"{arguments.kills} kills, {rows} rows of {len(attempts)} drivers: none lost, none doubled")


if __name__ == "__main__":
    main()

"""kill -9 of the Spark driver between the steps of an effectively-once commit: nothing is lost, nothing is doubled, nothing is
half of one attempt and half of another."""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from integration.cluster import Cluster, until
from integration.spark_sink_driver import SinkDriver
from integration.spark_world import create_topic, numbers, send
from integration.test_spark_sink import read

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


def run_with_kills(
    cluster: Cluster, folder: Path, name: str, steps: Sequence[str], *, rows: int = ROWS, per_trigger: int = PER_TRIGGER
) -> Counter[str]:
    """The n-th driver dies at the n-th step, in the micro-batch that is then the next one."""
    source = create_topic(cluster, f"{name}-in", partitions=1)
    target = create_topic(cluster, f"{name}-out", partitions=3)
    send(cluster, source, numbers(0, rows))
    driver = SinkDriver(cluster, folder / name, source=source, target=target, per_trigger=per_trigger)
    for batch_id, step in enumerate(
        steps
    ):  # What one leaves, the next finishes; it dies in the micro-batch behind that.
        code = driver.run({"step": step, "batch": batch_id})
        assert code == -9, f"the driver was to die at {step}: {code}\n{driver.log()}"
    assert driver.run() == 0, driver.log()
    return check_once(cluster, target, rows, per_trigger)


def test_drivers_that_die_between_the_steps_of_a_commit(spark_cluster: Cluster, tmp_path: Path) -> None:
    attempts = run_with_kills(spark_cluster, tmp_path, "killed", ("staged", "copied-one", "published"))
    # The first driver decided nothing; the second finished its micro-batch and decided the next; the third the last.
    assert sorted(attempts.values()) == [PER_TRIGGER, 2 * PER_TRIGGER]


def test_a_dead_drivers_commit_that_goes_on_later_changes_nothing(spark_cluster: Cluster, tmp_path: Path) -> None:
    source = create_topic(spark_cluster, "zombie-in", partitions=1)
    target = create_topic(spark_cluster, "zombie-out", partitions=3)
    send(spark_cluster, source, numbers(0, ROWS))
    driver = SinkDriver(spark_cluster, tmp_path / "zombie", source=source, target=target, per_trigger=PER_TRIGGER)
    go = tmp_path / "zombie" / "go"
    assert driver.run({"step": "staged", "batch": 1, "go": str(go)}) == -9, driver.log()
    assert driver.run() == 0, driver.log()
    before = check_once(spark_cluster, target, ROWS, PER_TRIGGER)
    go.touch()
    asyncio.run(until(go.with_suffix(".ended").exists, "the zombie has ended its commit"))
    assert check_once(spark_cluster, target, ROWS, PER_TRIGGER) == before
    assert os.path.exists(go.with_suffix(".waits"))

"""`process_each` in programs of their own: one is told to stop, one is killed, and so is a broker."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.cluster import Cluster, clean_environment, until

from barnabas.net.client.producer.producer import Producer

WORKER = Path(__file__).with_name("process_worker.py")
PARTITIONS = 4
RECORDS = 2_000  # at first, and so many again if workers have done nearly all of them before the last one works


class Worker:
    def __init__(self, folder: Path, name: str, cluster: Cluster, kind: str) -> None:
        self.output = folder / name
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER), cluster.bootstrap, "work", kind],
                stdout=output,
                env=clean_environment(),
            )

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def done(self) -> list[str]:
        return [line for line in self.lines() if not line.startswith("stopped")]


async def give(cluster: Cluster, start: int) -> int:
    """More records; returns how many there are."""
    async with Producer(cluster.bootstrap) as producer:
        for number in range(start, start + RECORDS):
            await producer.send("work", b"%d" % number, partition=number % PARTITIONS)
    return start + RECORDS


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kinds", [("asyncio", "blocking", "asyncio"), ("blocking", "asyncio", "blocking")], ids="-".join
)
async def test_nothing_is_left_out_and_a_worker_that_is_told_to_stop_repeats_nothing(
    new_cluster: Callable[..., Cluster], tmp_path: Path, kinds: tuple[str, str, str]
) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("work", partitions=PARTITIONS, replication_factor=3)
    given = await give(cluster, 0)
    workers = [Worker(tmp_path, "first", cluster, kinds[0])]
    try:
        await until(lambda: len(workers[0].done()) > 100, "the first worker works")
        workers[0].process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(workers[0].process.wait, 30) == 0
        stopped = workers[0].done()
        assert workers[0].lines()[-1] == f"stopped {len(stopped)}"
        workers.append(Worker(tmp_path, "second", cluster, kinds[1]))
        await until(lambda: len(workers[1].done()) > 100, "the second worker works")
        assert not set(stopped) & set(workers[1].done())  # what the first had done was committed
        workers.append(Worker(tmp_path, "third", cluster, kinds[2]))

        async def third_works() -> bool:
            nonlocal given
            if len(workers[1].done()) > given - len(stopped) - RECORDS / 2:
                given = await give(cluster, given)
            return len(workers[2].done()) > 20

        await until(third_works, "the third worker has a part of the partitions")
        cluster.nodes[0].kill()
        workers[1].process.kill()
        expected = {f"{number % PARTITIONS} {number // PARTITIONS}" for number in range(given)}
        await until(
            lambda: {line for worker in workers for line in worker.done()} >= expected,
            "every record is done",
            timeout_s=120,
        )
        workers[2].process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(workers[2].process.wait, 30) == 0
        counts = Counter(line for worker in (workers[0], workers[2]) for line in worker.done())
        assert max(counts.values()) == 1, "the third repeats only what the killed one did not commit"
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()

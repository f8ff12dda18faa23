"""`scripts/benchmark partitions`: the cost of many idle partitions for a broker, and the time to create and to open them.

All partitions are of one topic and are replicated to all brokers. A broker is "up" when it serves: the metadata names a
leader for every partition, and a record to the last partition is acknowledged by all replicas.
"""

import argparse
import asyncio
import os
import signal
import time
from pathlib import Path

from clusters import Cluster
from measure import cpu_of, rss_mib

from barnabas import Admin, BarnabasError, Producer
from barnabas.net.base.local import local_cluster

TOPIC = "wide"
SETTLE_S = 3.0
IDLE_S = 10.0
UP_TIMEOUT_S = 300.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark partitions", description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=2_000)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--idle", type=float, default=IDLE_S, metavar="SECONDS")
    options = parser.parse_args(arguments)
    with Cluster(options.brokers) as cluster:
        wide = _Wide(cluster, options.partitions, options.idle)
        wide.show("empty")
        began = time.perf_counter()
        cluster.create(TOPIC, partitions=options.partitions)
        answered = time.perf_counter() - began
        wide.wait_until_up()
        up = time.perf_counter() - began
        print(f"create {options.partitions} partitions: answered after {answered:.2f} s, served after {up:.2f} s")
        wide.show("with all partitions")
        for how, number in (("clean stop", signal.SIGTERM), ("kill -9", signal.SIGKILL)):
            stopped = wide.stop(number)
            started = wide.start()
            print(f"after {how}: stopped in {stopped:.2f} s, served {started:.2f} s after the start")
            wide.show(f"after {how}")
    return 0


class _Wide:
    """A cluster with one wide topic, seen from outside."""

    def __init__(self, cluster: Cluster, partitions: int, idle_s: float) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._idle_s = idle_s
        self._rss_before: list[float] = []

    def wait_until_up(self) -> None:
        asyncio.run(self._until_up())

    async def _until_up(self) -> None:
        deadline = time.monotonic() + UP_TIMEOUT_S
        while True:
            try:
                async with Admin(self._cluster.bootstrap) as admin:
                    topic = await admin.describe_topic(TOPIC)
                    size = self._cluster.size
                    if all(part.leader >= 0 and len(part.isr) == size for part in topic.partitions):
                        break
            except BarnabasError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.05)
        async with Producer(self._cluster.bootstrap, acks="all") as producer:
            await (await producer.send(TOPIC, b"up", partition=self._partitions - 1))

    def stop(self, number: signal.Signals) -> float:
        began = time.perf_counter()
        brokers = self._cluster.brokers
        for broker in brokers:
            broker.process.send_signal(number)
        for broker in brokers:
            broker.process.wait(UP_TIMEOUT_S)
        return time.perf_counter() - began

    def start(self) -> float:
        began = time.perf_counter()
        self._cluster.brokers = [local_cluster.restart(one, die_with_parent=True) for one in self._cluster.brokers]
        self.wait_until_up()
        return time.perf_counter() - began

    def show(self, label: str) -> None:
        """Figures of each broker at rest."""
        time.sleep(SETTLE_S)
        pids = self._cluster.pids()
        before = [(cpu_of(pid), _io(pid)) for pid in pids]
        time.sleep(self._idle_s)
        figures = []
        for pid, (cpu, (read, written)) in zip(pids, before, strict=True):
            rss, files = rss_mib(pid) * 1024, len(os.listdir(f"/proc/{pid}/fd"))
            read_now, written_now = _io(pid)
            figures.append((rss, files))
            print(f"  {label}: rss {rss / 1024:.1f} MB, {files} open files, {_maps(pid)} mappings, idle cpu "
                  f"{100 * (cpu_of(pid) - cpu) / self._idle_s:.1f} %, read {(read_now - read) / self._idle_s / 1e3:.1f} "
                  f"kB/s, written {(written_now - written) / self._idle_s / 1e3:.1f} kB/s, read in all "
                  f"{read_now / 1e6:.1f} MB", flush=True)  # fmt: skip
        if self._rss_before:
            each = [
                (rss - before) / self._partitions for (rss, _), before in zip(figures, self._rss_before, strict=True)
            ]
            print(f"  {label}: {max(each):.2f} kB of memory a partition", flush=True)
        else:
            self._rss_before = [rss for rss, _ in figures]


def _maps(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines())


def _io(pid: int) -> tuple[int, int]:
    """Bytes that went through read and write calls since the start."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines())
    return int(lines["rchar"]), int(lines["wchar"])

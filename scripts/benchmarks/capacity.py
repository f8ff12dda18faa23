"""`scripts/benchmark capacity`: what a broker spends on a gigabyte, a request, a partition and a connection.

These are the inputs of the formula in docs/performance.md. Three brokers, factor 3, acks=all; the figures are of all brokers
together unless they say "each". Clients run in this process, so their cost is not among them. Connections and partitions come
first: memory that was used and freed would hide what they need.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from clusters import Cluster
from measure import cpu_of, rss_mib

from barnabas import Admin, Consumer, Producer

TOPIC = "load"
BROKERS = 3
PARTITIONS = 12
RECORD_BYTES = 1_000
SMALL_REQUESTS = 10_000
AT_ONCE = 50
CONNECTIONS = 500
WIDE = 1_000
SETTLE_S = 3.0
IDLE_S = 10.0
MIB = 1 << 20


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark capacity", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1_000, help="to write and to read (default: %(default)s)")
    options = parser.parse_args(arguments)
    with Cluster(BROKERS) as cluster:
        cluster.create(TOPIC, partitions=PARTITIONS)
        asyncio.run(_Capacity(cluster, options.megabytes).run())
    return 0


class _Capacity:
    def __init__(self, cluster: Cluster, megabytes: int) -> None:
        self._cluster = cluster
        self._records = megabytes * 1_000_000 // RECORD_BYTES
        self._gigabytes = megabytes / 1_000

    async def run(self) -> None:
        print(f"memory, each, idle: {self._memory():.0f} MiB")
        await self._with_connections(self._memory())
        await self._with_partitions(self._memory())
        cpu, wall = await self._spent(self._write)
        print(
            f"write: {cpu / self._gigabytes:.2f} CPU seconds per GB written, at {self._gigabytes * 1000 / wall:.0f} MB/s"
        )
        stored = sum(_size(broker.folder) for broker in self._cluster.brokers) / (self._records * RECORD_BYTES)
        print(f"disk: {stored:.2f} bytes per byte written (factor {BROKERS})")
        cpu, wall = await self._spent(self._read)
        print(f"read: {cpu / self._gigabytes:.2f} CPU seconds per GB read, at {self._gigabytes * 1000 / wall:.0f} MB/s")
        cpu, wall = await self._spent(self._small)
        print(
            f"small requests: {cpu / SMALL_REQUESTS * 1000:.2f} CPU ms per produce request of one record, "
            f"at {SMALL_REQUESTS / wall:.0f} requests/s"
        )

    async def _spent(self, work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
        """CPU seconds of all brokers, and seconds; replication is caught up at the end."""
        cpu, began = self._cpu(), time.perf_counter()
        await work()
        return self._cpu() - cpu, time.perf_counter() - began

    async def _write(self) -> None:
        values = [os.urandom(RECORD_BYTES) for _ in range(10_000)]
        async with Producer(self._cluster.bootstrap, acks="all") as producer:
            for _ in range(self._records // len(values)):
                await producer.send_many(TOPIC, values)
            await producer.flush()

    async def _read(self) -> None:
        left = self._records // 10_000 * 10_000
        async with Consumer(TOPIC, bootstrap=self._cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            while left > 0:
                left -= sum(map(len, (await consumer.poll(timeout_ms=500, max_records=10_000)).values()))

    async def _small(self) -> None:
        async def one_by_one(producer: Producer, count: int) -> None:
            for _ in range(count):
                await (await producer.send(TOPIC, b"x" * 100))

        producers = [Producer(self._cluster.bootstrap, acks="all") for _ in range(AT_ONCE)]
        for producer in producers:
            await producer.start()
        await asyncio.gather(*(one_by_one(producer, SMALL_REQUESTS // AT_ONCE) for producer in producers))
        for producer in producers:
            await producer.close()

    async def _with_connections(self, before: float) -> None:
        admins = [Admin(broker.address) for broker in self._cluster.brokers for _ in range(CONNECTIONS)]
        for admin in admins:
            await admin.start()
            await admin.describe_cluster()
        await asyncio.sleep(SETTLE_S)
        print(f"connections: {(self._memory() - before) / CONNECTIONS * 1024:.0f} KiB each, in the broker")
        for admin in admins:
            await admin.close()

    async def _with_partitions(self, before: float) -> None:
        cpu = self._cpu()
        await asyncio.sleep(IDLE_S)
        idle = self._cpu() - cpu
        async with Admin(self._cluster.bootstrap) as admin:
            await admin.create_topic("wide", partitions=WIDE, replication_factor=BROKERS)
        await asyncio.sleep(SETTLE_S)  # until all replicas are open
        async with Producer(self._cluster.bootstrap, acks="all") as producer:
            for partition in range(WIDE):
                await producer.send("wide", b"x", partition=partition)
            await producer.flush()
        await asyncio.sleep(SETTLE_S)
        cpu = self._cpu()
        await asyncio.sleep(IDLE_S)
        more = self._cpu() - cpu - idle
        print(
            f"partitions: {(self._memory() - before) / WIDE * 1024:.0f} KiB per replica; "
            f"{max(0.0, more) / IDLE_S / BROKERS * 100:.1f} % of a core for {WIDE} idle ones, each"
        )

    def _cpu(self) -> float:
        return sum(cpu_of(pid) for pid in self._cluster.pids())

    def _memory(self) -> float:
        """Of the largest broker, in MiB."""
        return max(rss_mib(pid) for pid in self._cluster.pids())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.log"))

"""Brokers whose disk is slow, or hangs for good: they go on answering, and the cluster goes on acknowledging.

The faults are those of single writes and flushes, from a library that is preloaded into the brokers (tests/faults/shim.py).
"""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from faults.shim import Shim, build, why_not
from integration.cluster import Cluster, Node, describe_cluster, until

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
TOPIC, PARTITIONS = "events", 6
SLOW_SYNC_S = 2.0
LONGEST_ANSWER_S = (
    0.25 * 4
)  # a quarter of a second, on a machine that may be four times too busy: half of one slow flush
HANG_S = 60.0  # longer than the test
RESUME_S = 20.0  # two sessions of 3 s, the second for the next controller, the clients' own time, and as much for a busy machine
API_VERSIONS = struct.pack(">ihhih", 14, 18, 0, 7, 4) + b"ping"

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


class Shimmed:
    """A cluster of which every disk does what its shim is told. `below` is the part of the data folder that is meant."""

    def __init__(self, cluster: Cluster, folder: Path, *, below: str = "") -> None:
        self.cluster = cluster
        library = build(folder)
        self.shims = [
            Shim(library, folder / f"orders-{node.node_id}", node.data / below if below else node.data)
            for node in cluster.nodes
        ]
        cluster.kill(*(node.node_id for node in cluster.nodes))
        self._sizes = [node.log_size() for node in cluster.nodes]
        for node, shim in zip(cluster.nodes, self.shims, strict=True):
            node.environment = shim.environment
            node.launch()

    async def ready(self) -> None:
        """The new processes are: for a moment, the metadata still shows the old ones, which were killed."""
        for node, size in zip(self.cluster.nodes, self._sizes, strict=True):
            await until(
                partial(_says, node, size, f"broker unfenced node={node.node_id}"), f"broker {node.node_id} serves"
            )
        await self.cluster.ready()


def _says(node: Node, size: int, text: str) -> bool:
    return any(text in line for line in node.log_since(size))


class Acknowledgements:
    """One producer for each partition, always at it; when each was acknowledged last."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.last_s = [0.0] * PARTITIONS

    async def run(self) -> None:
        async with Producer(
            self._bootstrap, acks="all", request_timeout_ms=2_000, on_error=lambda *_: None
        ) as producer:
            await asyncio.gather(*(self._send(producer, partition) for partition in range(PARTITIONS)))

    async def _send(self, producer: Producer, partition: int) -> None:
        while True:
            with contextlib.suppress(BarnabasError):
                await (await producer.send(TOPIC, b"x" * 100, partition=partition))
                self.last_s[partition] = time.monotonic()
            await asyncio.sleep(0.01)

    def all_since(self, moment_s: float) -> bool:
        return all(last_s > moment_s for last_s in self.last_s)


@contextlib.contextmanager
def asked_all_the_time(node: Node) -> Iterator[list[float]]:
    """Ask a broker for its ApiVersions again and again, from a thread; the list holds how long each answer took."""

    took_s: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        with socket.create_connection((node.host, node.port), 30) as connection:
            connection.settimeout(30)
            while not stop.wait(0.01):
                began_s = time.monotonic()
                connection.sendall(API_VERSIONS)
                (left,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                connection.recv(left, socket.MSG_WAITALL)
                took_s.append(time.monotonic() - began_s)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took_s
    finally:
        stop.set()
        thread.join()


async def controller_of(cluster: Cluster) -> int:
    return (await describe_cluster(cluster)).controller_id


@contextlib.asynccontextmanager
async def at_work(cluster: Cluster):  # type: ignore[no-untyped-def]  # an AsyncIterator[Acknowledgements]
    async with cluster.admin() as admin:
        await admin.create_topic(
            TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
        )
    acknowledgements = Acknowledgements(cluster.bootstrap)
    running = asyncio.create_task(acknowledgements.run())
    try:
        await until(lambda: acknowledgements.all_since(0.0), "every partition takes records")
        yield acknowledgements
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.alone("every answer of a broker within a second")
@pytest.mark.timeout(180)
async def test_a_broker_with_slow_flushes_answers_and_is_not_fenced(new_cluster: Maker, tmp_path: Path) -> None:
    cluster = await new_cluster().ready()
    shimmed = Shimmed(cluster, tmp_path)
    await shimmed.ready()
    async with at_work(cluster) as acknowledgements:
        controller = await controller_of(cluster)
        victim = next(node for node in cluster.nodes if node.node_id != controller)
        sizes = [node.log_size() for node in cluster.nodes]
        with asked_all_the_time(victim) as took_s:
            shimmed.shims[victim.node_id].order(sync_us=SLOW_SYNC_S * 1e6)
            end_s = time.monotonic() + 12  # two checkpoints of the high watermarks, each of two flushes
            await until(lambda: acknowledgements.all_since(end_s), "acknowledgements go on")
        fenced = [line for node, size in zip(cluster.nodes, sizes, strict=True) for line in node.log_since(size)
                  if "fenced" in line]  # fmt: skip
        assert max(took_s) < LONGEST_ANSWER_S and fenced == []


@pytest.mark.parametrize("what", ["flushes of the whole disk", "writes to the partitions"])
@pytest.mark.timeout(180)
async def test_acknowledgements_go_on_while_the_controllers_disk_hangs(
    new_cluster: Maker, tmp_path: Path, what: str
) -> None:
    cluster = await new_cluster().ready()
    hangs_in_write = what.startswith("writes")
    shimmed = Shimmed(cluster, tmp_path, below=f"{TOPIC}-" if hangs_in_write else "")
    await shimmed.ready()
    async with at_work(cluster) as acknowledgements:
        controller = await controller_of(cluster)
        size = cluster.nodes[controller].log_size()
        shimmed.shims[controller].order(**{"delay_us" if hangs_in_write else "sync_us": HANG_S * 1e6})
        began_s = time.monotonic()
        await asyncio.sleep(1)  # so that what was under way when it began to hang is not taken for a recovery
        await until(
            lambda: acknowledgements.all_since(began_s + 1), "every partition takes records", timeout_s=RESUME_S - 1
        )
        if hangs_in_write:
            told = [line for line in cluster.nodes[controller].log_since(size) if "event loop stands still" in line]
            assert told
            assert await controller_of(cluster) != controller

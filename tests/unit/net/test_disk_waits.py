"""A broker at work with real files: whatever waits for a disk runs in another thread than its loop."""

import asyncio
import random
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from barnabas.log.disk.files import AppendFile, RealAppendFile, RealFiles
from barnabas.log.format.record_batch import Buffer
from barnabas.net.base.clock import SystemClock
from barnabas.net.base.local.ports import free_ports
from barnabas.net.base.settings.config import BrokerConfig, load
from barnabas.net.broker.broker import Broker, Ports
from barnabas.net.broker.metadata_sources import build_source
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.tcp import TcpNetwork

WAIT_S = 30


class WatchedFiles(RealFiles):
    """Notes every wait for the disk in the thread that made this."""

    def __init__(self) -> None:
        self._loop_thread = threading.get_ident()
        self.waits: list[str] = []
        self.written: list[str] = []  # names, by write_atomically

    def note(self, what: str, path: str) -> None:
        if threading.get_ident() == self._loop_thread:
            frames = [frame.name for frame in traceback.extract_stack(limit=12)[:-2]]
            self.waits.append(f"{what} {path}: {' > '.join(frames)}")

    def open_append(self, path: str, *, create: bool = True) -> AppendFile:
        return WatchedFile(path, create=create, flushed=lambda: self.note("flush", path))

    def write_atomically(self, path: str, data: Buffer) -> None:
        self.note("write_atomically", path)
        super().write_atomically(path, data)
        self.written.append(Path(path).name)

    def sync_dir(self, path: str) -> None:
        self.note("sync_dir", path)
        super().sync_dir(path)

    def reserve(self, path: str, size_bytes: int) -> None:
        self.note("reserve", path)
        super().reserve(path, size_bytes)


class WatchedFile(RealAppendFile):
    def __init__(self, path: str, *, create: bool, flushed: Callable[[], None]) -> None:
        super().__init__(path, create=create)
        self._flushed = flushed

    def flush(self) -> None:
        self._flushed()
        super().flush()


def config_of(tmp_path: Path) -> BrokerConfig:
    return load(
        None,
        {
            "node.id": "0",
            "log.dirs": f"{tmp_path}/one,{tmp_path}/two",
            "listeners": "127.0.0.1:0",
            "admin.listener": "none",
            "controller.quorum.voters": f"0@127.0.0.1:{free_ports(1)[0]}",
            "replica.high.watermark.checkpoint.interval.ms": "50",
            "log.flush.offset.checkpoint.interval.ms": "100",
            "log.retention.check.interval.ms": "50",
            "log.retention.bytes": "2000",
            "log.segment.bytes": "1024",
            "log.segment.delete.delay.ms": "0",
            "log.cleaner.backoff.ms": "50",
        },
        {},
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - nobody is told of these
            await asyncio.sleep(0.02)


async def test_nothing_on_the_loop_of_a_broker_at_work_waits_for_a_disk(tmp_path: Path) -> None:
    files = WatchedFiles()
    fatal: list[str] = []
    ports = Ports(
        network=TcpNetwork(),
        files=files,
        clock=SystemClock(),
        rng=random.Random(1),
        make_source=build_source,
        fatal=fatal.append,
        incarnation="a",
    )
    broker = Broker(config_of(tmp_path), ports)
    files.waits.clear()  # a broker that is being built serves nobody yet
    await broker.start()
    try:
        await until(lambda: broker.is_ready)
        await work_on(broker, files)
    finally:
        await broker.stop()
    assert files.waits == [] and fatal == []


async def work_on(broker: Broker, files: WatchedFiles) -> None:
    """Topics come, go and come again; records, rolled segments, retention, compaction, and checkpoints of all."""
    host, port = next(iter(broker.listeners.addresses.values()))
    async with Admin(f"{host}:{port}") as admin, Producer(f"{host}:{port}") as producer:
        for name, configs in (("a", {}), ("b", {"flush.messages": "1"}), ("c", {"cleanup.policy": "compact"})):
            await admin.create_topic(name, partitions=3, replication_factor=1, configs=configs)
            for number in range(60):
                await (await producer.send(name, b"x" * 100, key=b"k%d" % (number % 3), partition=number % 3))
        for _ in range(2):  # the second time under a name that the checkpoint files still have
            await admin.delete_topic("a")
            await admin.create_topic("a", partitions=3, replication_factor=1)
            # A new leader lets a producer wait for ten seconds that continues the sequence of the deleted topic.
            async with Producer(f"{host}:{port}") as new_producer:
                await (await new_producer.send("a", b"x", partition=0))
    files.written.clear()
    await until(lambda: {"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} <= set(files.written))
    await until(lambda: broker.cleaner_service.cleaner.totals.runs > 0)

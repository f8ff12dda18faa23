"""A topic that is deleted and made anew while a thread still flushes its former log: the new one is none the worse."""

import asyncio
import random
import threading
from pathlib import Path

from unit.net.test_disk_waits import until

from barnabas.log.disk.files import RealFiles
from barnabas.log.vocabulary.errors import StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.clock import SystemClock
from barnabas.net.base.local.ports import free_ports
from barnabas.net.base.settings.config import load
from barnabas.net.broker.broker import Broker, Ports
from barnabas.net.broker.metadata_sources import build_source
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.tcp import TcpNetwork

PARTITION = TopicPartition("a", 0)
WAIT_S = 30


class HeldFiles(RealFiles):
    """Holds the first flusher that comes for the folder's names, until the folder has gone and is there again."""

    def __init__(self) -> None:
        self.is_held = threading.Event()
        self.is_deleted = threading.Event()
        self.is_made_anew = threading.Event()
        self.refused: list[str] = []

    def sync_dir(self, path: str) -> None:
        if not path.endswith("/a-0") or self.is_held.is_set() or "flusher" not in threading.current_thread().name:
            super().sync_dir(path)
            return
        self.is_held.set()
        assert self.is_deleted.wait(WAIT_S)
        try:
            super().sync_dir(path)
        except StorageError as error:
            self.refused.append(error.message)
            assert self.is_made_anew.wait(WAIT_S)
            raise


async def test_a_flush_that_ends_after_its_log_was_deleted_takes_nothing_else_with_it(tmp_path: Path) -> None:
    files, fatal = HeldFiles(), list[str]()
    settings = {
        "node.id": "0",
        "log.dirs": str(tmp_path),
        "listeners": "127.0.0.1:0",
        "admin.listener": "none",
        "auto.create.topics.enable": "false",
        "controller.quorum.voters": f"0@127.0.0.1:{free_ports(1)[0]}",
    }
    ports = Ports(network=TcpNetwork(), files=files, clock=SystemClock(), rng=random.Random(1),
                  make_source=build_source, fatal=fatal.append, incarnation="a")  # fmt: skip
    broker = Broker(load(None, settings, {}), ports)
    await broker.start()
    try:
        await until(lambda: broker.is_ready)
        host, port = next(iter(broker.listeners.addresses.values()))
        async with Admin(f"{host}:{port}") as admin, Producer(f"{host}:{port}") as producer:
            await admin.create_topic("a", partitions=1, replication_factor=1, configs={"flush.messages": "1"})
            former = await producer.send("a", b"x", partition=0)
            assert await asyncio.to_thread(files.is_held.wait, WAIT_S)
            await admin.delete_topic("a")
            await until(lambda: broker.logs.get(PARTITION) is None)
            files.is_deleted.set()
            await until(lambda: bool(files.refused))
            await admin.create_topic("a", partitions=1, replication_factor=1)
            await until(lambda: broker.logs.get(PARTITION) is not None)
            groups = broker.flusher.groups
            files.is_made_anew.set()
            await until(lambda: broker.flusher.groups > groups)
            await asyncio.wait([asyncio.ensure_future(former)])
        async with Producer(f"{host}:{port}") as producer:
            await (await producer.send("a", b"y", partition=0))
    finally:
        await broker.stop()
    assert fatal == []

"""Copies by `transform_once` on three real brokers while workers and brokers are killed: each input has exactly one output."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from integration.cluster import Cluster, clean_environment, until
from integration.test_sdk_transactions import committed_values, eventually

from barnabas import sync
from barnabas.net.client.connection.errors import InvalidConfigError
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.transaction import Transaction
from barnabas.net.client.transactions.transform_once import transform_once

WORKER = Path(__file__).with_name("transform_worker.py")
PARTITIONS = 3
RECORDS = 3_000
ROUND_S = 0.7
READING: dict[str, Any] = {"auto_commit": False, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}


class Worker:
    def __init__(self, *arguments: str, log: Path) -> None:
        self.arguments = arguments
        self.log = log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKER), *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(),
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Worker:
            worker = Worker(*arguments, log=tmp_path / f"{name}.log")
            stack.callback(worker.kill)
            return worker

        yield start


async def topics_of(cluster: Cluster) -> tuple[str, str]:
    await cluster.ready()
    name = uuid4().hex[:8]
    async with cluster.admin() as admin:
        for topic in (f"in-{name}", f"out-{name}"):
            await admin.create_topic(
                topic, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
            )
    return f"in-{name}", f"out-{name}"


async def test_each_record_is_transformed_once(shared_cluster: Cluster) -> None:
    source, sink = await topics_of(shared_cluster)
    values = [b"%d" % number for number in range(500)]
    failing = [b"250"]

    async def one(record: ConsumerRecord, transaction: Transaction) -> None:
        await transaction.send(sink, b"x" + (record.value or b""))
        if record.value in failing:
            failing.clear()
            raise ValueError("the application")

    async with (
        Producer(shared_cluster.bootstrap, transactional_id=sink) as producer,
        Consumer(source, bootstrap=shared_cluster.bootstrap, group=source, **READING) as consumer,
        Consumer(source, bootstrap=shared_cluster.bootstrap, group=source) as careless,
    ):
        async with producer.transaction() as transaction:
            await transaction.send_many(source, values, values)
        with pytest.raises(InvalidConfigError, match="auto_commit=False"):
            await transform_once(careless, producer, one)
        await careless.close()
        with pytest.raises(ValueError, match="the application"):
            await transform_once(consumer, producer, one, max_records=70, idle_timeout_ms=10_000)
        wanted = sorted(b"x" + value for value in values)

        async def are_copied() -> bool:
            await transform_once(consumer, producer, one, max_records=70, idle_timeout_ms=1_000)
            return len(await committed_values(shared_cluster, sink)) >= len(wanted)

        await until(are_copied, "all are transformed")
    assert await committed_values(shared_cluster, sink) == wanted


async def test_blocking_clients_transform_once(shared_cluster: Cluster) -> None:
    source, sink = await topics_of(shared_cluster)
    values = [b"%d" % number for number in range(200)]

    def one(record: ConsumerRecord, transaction: sync.Transaction) -> None:
        transaction.send(sink, record.value)

    def steps() -> int:
        with (
            sync.Producer(shared_cluster.bootstrap, transactional_id=sink) as producer,
            sync.Consumer(source, bootstrap=shared_cluster.bootstrap, group=source, **READING) as consumer,
        ):
            with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
                transaction.send_many(source, [b"aborted"])
                raise ZeroDivisionError
            assert transaction.outcome == "aborted"
            with producer.transaction() as transaction:
                transaction.send_many(source, values)
            handled = 0
            while handled < len(values):  # the first call may end before the group has given the partitions out
                handled += sync.transform_once(consumer, producer, one, idle_timeout_ms=1_000)
            return handled

    assert await asyncio.to_thread(steps) == 200
    await eventually(shared_cluster, sink, sorted(values))


@pytest.mark.timeout(300)
async def test_kills_of_workers_and_brokers_lose_and_double_nothing(
    new_cluster: Callable[..., Cluster], workers: Callable[..., Worker]
) -> None:
    """Each round kills a worker and one of the brokers, drawn at random."""
    cluster = new_cluster(3)
    source, sink = await topics_of(cluster)
    rng = Random(7)
    values = [b"%d" % number for number in range(RECORDS)]
    copies = [
        workers(f"worker-{number}", cluster.bootstrap, source, sink, f"{sink}-{number}", kind)
        for number, kind in enumerate(("asyncio", "blocking"))
    ]
    async with Producer(cluster.bootstrap) as producer:
        for start in range(0, RECORDS, RECORDS // 6):
            part = values[start : start + RECORDS // 6]
            await producer.send_many(source, part, part)
            copies[start // (RECORDS // 6) % 2].kill()
            node = rng.randrange(3)
            cluster.kill(node)
            copies[start // (RECORDS // 6) % 2].start()
            await asyncio.sleep(ROUND_S)
            cluster.start(node)
            await cluster.ready()
        await producer.flush()

    async def all_are_there() -> bool:
        assert all(worker.process.poll() is None for worker in copies), [w.log.read_text()[-3_000:] for w in copies]
        found = Counter(await committed_values(cluster, sink))
        assert max(found.values(), default=1) == 1, [value for value, count in found.items() if count > 1][:10]
        return len(found) == RECORDS

    await until(all_are_there, "every record has its copy", timeout_s=120)
    assert await committed_values(cluster, sink) == sorted(values)

"""Consumers of another data centre read from a replica of their own (KIP-392): the SDK, librdkafka, Kafka's Java client."""

import asyncio
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer as RdConsumer
from integration import java_client
from integration.cluster import Cluster, full_isr, until

from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

VERSION = "4.1.1"
COUNT, SIZE = 4_000, 1_000
BYTES = COUNT * SIZE
NEAR = 1  # the broker in the consumers' rack; broker 0 leads
LIMIT_S = 60.0


def sent_bytes(cluster: Cluster, node_id: int) -> float:
    """By the listener of clients and brokers, since the broker's start."""
    address = cluster.nodes[node_id].property("admin.listener")
    with urlopen(f"http://{address}/metrics", timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("barnabas_bytes_sent_total"))


@pytest.fixture
async def cluster(new_cluster: Callable[..., Cluster]) -> AsyncIterator[Cluster]:
    """Records of a topic that broker 0 of rack a leads; broker 1 is in rack b, broker 2 in c."""
    found = await new_cluster(brokers=1, broker_rack="a").ready()
    found.add(1, broker_rack="b")
    found.add(2, broker_rack="c")
    await found.ready()
    async with found.admin() as admin:
        await admin.create_topic("far", assignment=[[0, 1, 2]])
        await full_isr(admin, ["far"])
    await write(found, COUNT)
    await until(lambda: has_sent(found, 0, 2 * BYTES), "both followers have the records")
    yield found


async def write(cluster: Cluster, count: int) -> None:
    async with Producer(bootstrap=cluster.bootstrap, acks="all", compression="none") as producer:
        for _ in range(count):
            await producer.send("far", b"x" * SIZE)
        await producer.flush()


async def read(cluster: Cluster, reader: Consumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while len(found) < count:
            for records in (await reader.poll(timeout_ms=1_000)).values():
                found += [record.offset for record in records]
    return found


async def has_sent(cluster: Cluster, node_id: int, size_bytes: float) -> bool:
    """Brokers count what they have sent every second, and when a connection ends."""
    return sent_bytes(cluster, node_id) >= size_bytes


def all_sent(cluster: Cluster) -> list[float]:
    return [sent_bytes(cluster, node.node_id) for node in cluster.nodes]


async def read_nearby(cluster: Cluster, before: list[float]) -> None:
    """Asserted when the reader has closed its connections."""
    await until(lambda: has_sent(cluster, NEAR, before[NEAR] + BYTES), "the records came from the replica")
    sent = [after - earlier for after, earlier in zip(all_sent(cluster), before, strict=True)]
    assert sent[0] + sent[2] < BYTES / 10, sent


async def test_the_sdk_reads_from_its_rack(cluster: Cluster) -> None:
    before = all_sent(cluster)
    async with Consumer("far", bootstrap=cluster.bootstrap, rack="b", auto_offset_reset="earliest") as reader:
        assert await read(cluster, reader, COUNT) == list(range(COUNT))
    await read_nearby(cluster, before)
    async with Consumer("far", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as reader:
        assert await read(cluster, reader, COUNT) == list(range(COUNT))
    await until(lambda: has_sent(cluster, 0, before[0] + BYTES), "without a rack the leader serves")


async def test_the_leader_serves_while_the_near_broker_is_down(cluster: Cluster) -> None:
    async with Consumer("far", bootstrap=cluster.bootstrap, rack="b", auto_offset_reset="earliest") as reader:
        assert await read(cluster, reader, COUNT) == list(range(COUNT))
        cluster.kill(NEAR)
        await write(cluster, 100)
        assert await read(cluster, reader, 100) == list(range(COUNT, COUNT + 100))
        cluster.start(NEAR)
        await write(cluster, 100)
        assert await read(cluster, reader, 100) == list(range(COUNT + 100, COUNT + 200))


@pytest.mark.alone("half of the records within a quarter of a second")
async def test_new_records_reach_a_reader_of_the_follower_with_their_commit(cluster: Cluster) -> None:
    """Not with the follower's next regular fetch: that may be two seconds later, and half a second in Kafka without this."""
    delays_s = []
    async with (
        Consumer("far", bootstrap=cluster.bootstrap, rack="b", auto_offset_reset="latest") as reader,
        Producer(bootstrap=cluster.bootstrap, acks="all") as producer,
    ):
        await (await producer.send("far", b"first"))
        await read(cluster, reader, 1)
        for _ in range(40):
            await (await producer.send("far", b"x"))
            committed_s = time.monotonic()
            await read(cluster, reader, 1)
            delays_s.append(time.monotonic() - committed_s)
    assert sorted(delays_s)[len(delays_s) // 2] < 0.25, sorted(delays_s)


async def test_librdkafka_reads_from_its_rack(cluster: Cluster) -> None:
    before = all_sent(cluster)

    def consume() -> list[int]:
        reader = RdConsumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "g",
                "client.rack": "b",
                "auto.offset.reset": "earliest",
            }
        )
        reader.subscribe(["far"])
        found: list[int] = []
        ends_at = time.monotonic() + LIMIT_S
        while len(found) < COUNT:
            found += [message.offset() for message in reader.consume(500, 1.0) if not message.error()]
            assert time.monotonic() < ends_at, len(found)
        reader.close()
        return found

    assert await asyncio.to_thread(consume) == list(range(COUNT))
    await read_nearby(cluster, before)


@pytest.mark.skipif(bool(java_client.find()), reason=java_client.find() or "-")
@pytest.mark.timeout(240)
async def test_the_java_client_reads_from_its_rack(cluster: Cluster, tmp_path: Path) -> None:
    libraries = await asyncio.to_thread(java_client.fetch, tmp_path / "java", VERSION, "tools.xml")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    before = all_sent(cluster)
    command = java_client.tool(
        libraries, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", cluster.bootstrap,
        "--topic", "far", "--from-beginning", "--max-messages", str(COUNT), "--timeout-ms", "60000",
        "--consumer-property", "client.rack=b",
    )  # fmt: skip
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=LIMIT_S * 2, check=False
    )
    assert ended.stdout.split() == ["x" * SIZE] * COUNT, ended.stderr[-2_000:]
    await read_nearby(cluster, before)


async def test_a_reader_learns_from_the_leader_when_its_replica_stands_still(cluster: Cluster) -> None:
    """A stopped process keeps its connections, so only the time limit of the reader's request ends it."""
    async with Consumer(
        "far", bootstrap=cluster.bootstrap, rack="b", auto_offset_reset="earliest", request_timeout_ms=3_000
    ) as reader:
        await read(cluster, reader, COUNT)
        cluster.nodes[NEAR].signal(signal.SIGSTOP)
        try:
            await write(cluster, 10)
            assert await read(cluster, reader, 10) == list(range(COUNT, COUNT + 10))
        finally:
            cluster.nodes[NEAR].signal(signal.SIGCONT)


async def test_the_rack_of_a_broker_is_shown(cluster: Cluster) -> None:
    async with cluster.admin() as admin:
        described = await until(admin.describe_cluster, "an answer")
    assert {broker.node_id: broker.rack for broker in described.brokers} == {0: "a", 1: "b", 2: "c"}

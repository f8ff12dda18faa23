"""A compacted topic on three real brokers: updates, cleanings, kill -9, and then exactly the last record of each key."""

import asyncio
import urllib.request
from collections.abc import Callable

from integration.cluster import Cluster, Node, full_isr, until

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
TOPIC = "accounts"
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1",
    "file.delete.delay.ms": "100",
    "min.insync.replicas": "2",
}
KEYS = 20
ROUNDS = 40


def metric(node: Node, name: str) -> float:
    with urllib.request.urlopen(f"http://{node.property('admin.listener')}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"broker {node.node_id} has no {name}")


def disk_bytes(node: Node) -> int:
    return sum(path.stat().st_size for path in (node.data / f"{TOPIC}-0").glob("*.log"))


async def update(bootstrap: str, rounds: range, *, gone: bytes = b"") -> dict[bytes, bytes]:
    """Every key once in each round, acks=all; return what each holds at the end."""
    last: dict[bytes, bytes] = {}
    async with Producer(bootstrap, acks="all", linger_ms=0, batch_size=2_000, delivery_timeout_ms=60_000) as producer:
        handles = []
        for number in rounds:
            for key in (b"key%d" % key for key in range(KEYS)):
                value = None if key == gone and number == rounds[-1] else b"%d" % number + b"x" * 90
                handles.append(await producer.send(TOPIC, value, key=key, partition=0))
                last.pop(key, None)
                if value is not None:
                    last[key] = value
        for handle in handles:
            await handle
    return last


async def read_topic(bootstrap: str) -> list[tuple[int, bytes | None, bytes | None]]:
    found: list[tuple[int, bytes | None, bytes | None]] = []
    place = TopicPartition(TOPIC, 0)
    async with Admin(bootstrap) as admin:
        end = (await admin.list_offsets(TOPIC))[place].offset
    async with Consumer(bootstrap=bootstrap) as consumer:
        consumer.assign([place])
        await consumer.seek_to_start()
        async with asyncio.timeout(60):
            while await consumer.position(place) < end:
                for records in (await consumer.poll(timeout_ms=200)).values():
                    found += [(record.offset, record.key, record.value) for record in records]
    return found


async def test_updates_are_compacted_on_every_replica_and_survive_kill_9(new_cluster: Maker) -> None:
    cluster = await new_cluster(3, log_cleaner_backoff_ms="50").ready()
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, partitions=1, replication_factor=3, configs=CONFIGS)
        await update(cluster.bootstrap, range(ROUNDS), gone=b"key7")
        await until(
            lambda: all(metric(node, "barnabas_log_cleaner_runs_total") > 0 for node in cluster.nodes),
            "every replica has cleaned its log",
        )
        cluster.kill(0, 1, 2)
        cluster.start(0, 1, 2)
        await cluster.ready()
        await full_isr(admin, [TOPIC])
        # What follows seals the segments of before, and every key is in a newer one.
        last = await update(cluster.bootstrap, range(ROUNDS, 2 * ROUNDS), gone=b"key7")
        last |= await update_filler(cluster.bootstrap)
        await until(
            lambda: all(disk_bytes(node) < 70_000 for node in cluster.nodes), "the logs are small, on every replica"
        )
    # A tombstone goes with the second cleaning behind it, which may still be to come.
    found = await until(lambda: read_without_tombstone(cluster.bootstrap), "the tombstone is gone too")
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets)), "in order, and no offset twice"
    held: dict[bytes, bytes] = {}
    for _, key, value in found:
        assert key is not None
        held.pop(key, None)
        if value is not None:
            held[key] = value
    assert held == last


async def read_without_tombstone(bootstrap: str) -> list[tuple[int, bytes | None, bytes | None]] | None:
    found = await read_topic(bootstrap)
    return None if (b"key7", None) in [(key, value) for _, key, value in found] else found


async def update_filler(bootstrap: str) -> dict[bytes, bytes]:
    """Seal whatever was active."""
    async with Producer(bootstrap, acks="all", batch_size=2_000) as producer:
        handles = [await producer.send(TOPIC, b"f" * 100, key=b"filler", partition=0) for _ in range(400)]
        for handle in handles:
            await handle
    return {b"filler": b"f" * 100}

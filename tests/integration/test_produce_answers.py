"""What a producer is told of its batches by real brokers: too large ones are split and sent again, append times come back."""

import asyncio
import time
from collections.abc import Callable
from random import Random

import pytest
from confluent_kafka import Producer as ConfluentProducer
from integration.cluster import Cluster
from integration.load import read_all
from kafka import KafkaProducer

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.producer.producer import Producer

RECORDS = 3_000
MAX_BYTES = 10_000  # of a batch, where the producers make batches of 64 KB
CLOCK_MS = 60_000  # how far the clocks of two processes of one machine may seem apart under load


@pytest.mark.parametrize(("idempotent", "codec"), [(True, "none"), (True, "lz4"), (False, "none")])
async def test_batches_over_the_topics_limit_are_split_and_only_what_is_too_large_itself_fails(
    shared_cluster: Cluster, idempotent: bool, codec: str
) -> None:
    await shared_cluster.ready()
    topic = f"small-{idempotent}-{codec}"
    async with shared_cluster.admin() as admin:
        await admin.create_topic(
            topic, partitions=1, replication_factor=3, configs={"max.message.bytes": str(MAX_BYTES)}
        )
    # Values that no codec makes much smaller.
    values = [
        b"%06d" % number + bytes((number * 7919 * position) % 251 for position in range(90))
        for number in range(RECORDS)
    ]
    async with Producer(
        shared_cluster.bootstrap,
        enable_idempotence=idempotent,
        compression=codec,
        linger_ms=50,
        on_error=lambda *_: None,
    ) as producer:
        handles = [await producer.send(topic, value, partition=0) for value in values[: RECORDS // 2]]
        giant = await producer.send(topic, _incompressible(3 * MAX_BYTES), partition=0)
        handles += [await producer.send(topic, value, partition=0) for value in values[RECORDS // 2 :]]
        offsets = [(await handle).offset for handle in handles]
        with pytest.raises(BarnabasError) as caught:
            await giant
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert offsets == list(range(RECORDS))
    stored = (await read_all(shared_cluster.bootstrap, topic))[TopicPartition(topic, 0)]
    assert [value for _, value in sorted(stored.items())] == values


def _incompressible(size: int) -> bytes:
    return Random(size).randbytes(size)


async def ours(bootstrap: str, topic: str) -> list[int]:
    async with Producer(bootstrap) as producer:
        handles = [await producer.send(topic, b"x", partition=0, timestamp_ms=1_000) for _ in range(20)]
        return [(await handle).timestamp_ms for handle in handles]


def by_kafka_python(bootstrap: str, topic: str) -> list[int]:
    with KafkaProducer(bootstrap_servers=bootstrap.split(",")) as producer:
        sent = [producer.send(topic, b"x", partition=0, timestamp_ms=1_000) for _ in range(20)]
        return [future.get(timeout=30).timestamp for future in sent]


def by_confluent(bootstrap: str, topic: str) -> list[int]:
    told: list[int] = []
    producer = ConfluentProducer({"bootstrap.servers": bootstrap})

    def delivered(error: object, message: object) -> None:
        assert error is None
        told.append(message.timestamp()[1])  # type: ignore[attr-defined]

    for _ in range(20):
        producer.produce(topic, b"x", partition=0, timestamp=1_000, on_delivery=delivered)
    assert producer.flush(30) == 0
    return told


PRODUCERS: dict[str, Callable[[str, str], list[int]]] = {
    "ours": lambda bootstrap, topic: asyncio.run(ours(bootstrap, topic)),
    "kafka-python": by_kafka_python,
    "confluent": by_confluent,
}


@pytest.mark.parametrize("name", PRODUCERS)
async def test_append_times_are_told_to_the_producer(shared_cluster: Cluster, name: str) -> None:
    await shared_cluster.ready()
    topic = f"appended-{name}"
    async with shared_cluster.admin() as admin:
        await admin.create_topic(
            topic, partitions=1, replication_factor=3, configs={"message.timestamp.type": "LogAppendTime"}
        )
    began_ms = int(time.time() * 1000)
    told = await asyncio.to_thread(PRODUCERS[name], shared_cluster.bootstrap, topic)
    assert len(told) == 20
    assert all(began_ms - CLOCK_MS <= stamp_ms <= int(time.time() * 1000) + CLOCK_MS for stamp_ms in told), told

"""Transactional producers of Kafka's clients against three real brokers: all or nothing, offsets, fencing."""

import asyncio
import time
from collections.abc import Callable
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from integration.cluster import Cluster

LIMIT_S = 20.0
PARTITIONS = 3


async def topic_of(cluster: Cluster) -> str:
    await cluster.ready()
    name = f"tx-{uuid4().hex[:8]}"
    async with cluster.admin() as admin:
        await admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    return name


def producer_of(cluster: Cluster, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(LIMIT_S)
    return producer


def committed_records(cluster: Cluster, topic: str) -> list[str]:
    """What a reader of committed records sees up to the last stable offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[str] = []
    ended: set[int] = set()
    ends_at = time.monotonic() + LIMIT_S
    while len(ended) < PARTITIONS and time.monotonic() < ends_at:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
        else:
            found.append(message.value().decode())
    consumer.close()
    assert len(ended) == PARTITIONS
    return sorted(found)


def eventually(read: Callable[[], list[str]], expected: list[str]) -> None:
    """The markers are written after the commit was answered."""
    ends_at = time.monotonic() + LIMIT_S
    while (found := read()) != expected:
        assert time.monotonic() < ends_at, found


def committed_offset(cluster: Cluster, topic: str) -> int:
    """Of the group of the topic. The client asks for stable offsets, so it waits for the markers."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"g-{topic}"})
    (found,) = consumer.committed([TopicPartition(topic, 0)], LIMIT_S)
    consumer.close()
    offset: int = found.offset
    return offset


async def test_records_are_seen_if_their_transaction_is_committed(shared_cluster: Cluster) -> None:
    topic = await topic_of(shared_cluster)

    def steps() -> None:
        producer = producer_of(shared_cluster, f"tx-{topic}")
        producer.begin_transaction()
        for number in range(PARTITIONS):
            producer.produce(topic, f"one-{number}".encode(), partition=number)
        producer.flush(LIMIT_S)
        assert committed_records(shared_cluster, topic) == []
        producer.commit_transaction(LIMIT_S)
        one = [f"one-{number}" for number in range(PARTITIONS)]
        eventually(lambda: committed_records(shared_cluster, topic), one)
        for value, end in ((b"lost", producer.abort_transaction), (b"two", producer.commit_transaction)):
            producer.begin_transaction()
            producer.produce(topic, value, partition=0)
            producer.flush(LIMIT_S)
            end(LIMIT_S)
        eventually(lambda: committed_records(shared_cluster, topic), [*one, "two"])

    await asyncio.to_thread(steps)


async def test_offsets_count_when_their_transaction_is_committed(shared_cluster: Cluster) -> None:
    topic = await topic_of(shared_cluster)

    def steps() -> None:
        producer = producer_of(shared_cluster, f"tx-{topic}")
        consumer = Consumer({"bootstrap.servers": shared_cluster.bootstrap, "group.id": f"g-{topic}"})
        consumer.subscribe([topic])
        ends_at = time.monotonic() + LIMIT_S
        while not consumer.assignment():
            assert time.monotonic() < ends_at
            consumer.poll(0.2)
        for offset, end in ((42, producer.commit_transaction), (99, producer.abort_transaction)):
            producer.begin_transaction()
            producer.produce(topic, b"x")
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], group, LIMIT_S)
            end(LIMIT_S)
            (found,) = consumer.committed([TopicPartition(topic, 0)], LIMIT_S)
            assert found.offset == 42
        consumer.close()

    await asyncio.to_thread(steps)


async def test_a_second_producer_aborts_what_the_first_has_begun_and_fences_it(shared_cluster: Cluster) -> None:
    topic = await topic_of(shared_cluster)

    def steps() -> None:
        first = producer_of(shared_cluster, f"tx-{topic}")
        first.begin_transaction()
        first.produce(topic, b"of the first", partition=0)
        first.flush(LIMIT_S)
        second = producer_of(shared_cluster, f"tx-{topic}")
        with pytest.raises(KafkaException) as refused:
            first.commit_transaction(LIMIT_S)
        assert refused.value.args[0].fatal()
        second.begin_transaction()
        second.produce(topic, b"of the second", partition=1)
        second.commit_transaction(LIMIT_S)
        eventually(
            lambda: [item for item in committed_records(shared_cluster, topic) if "second" in item], ["of the second"]
        )

    await asyncio.to_thread(steps)


async def test_aiokafka_commits_and_aborts(shared_cluster: Cluster) -> None:
    topic = await topic_of(shared_cluster)
    async with AIOKafkaProducer(bootstrap_servers=shared_cluster.bootstrap, transactional_id=f"tx-{topic}") as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept", partition=0)
            await producer.send_offsets_to_transaction({AioPartition(topic, 0): 7}, f"g-{topic}")
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({AioPartition(topic, 0): 8}, f"g-{topic}")
        await producer.abort_transaction()
    assert await asyncio.to_thread(committed_offset, shared_cluster, topic) == 7
    await asyncio.to_thread(eventually, lambda: committed_records(shared_cluster, topic), ["kept"])

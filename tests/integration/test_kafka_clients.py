"""Kafka's own clients against three real brokers, unchanged."""

import asyncio
from collections.abc import Callable

from integration.cluster import Cluster
from integration.load import read_all, send
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

Maker = Callable[..., Cluster]
RECORDS = 500


async def test_what_kafka_python_writes_we_read_and_the_other_way_round(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("both-ways", partitions=1, replication_factor=3)
    values = [b"value %d" % number for number in range(RECORDS)]
    await asyncio.to_thread(write_with_kafka_python, shared_cluster.bootstrap, "both-ways", values)
    (stored,) = (await read_all(shared_cluster.bootstrap, "both-ways")).values()
    assert [value for _, value in sorted(stored.items())] == values
    ours = [b"ours %d" % number for number in range(RECORDS)]
    await send(shared_cluster.bootstrap, "both-ways", ours)
    read = await asyncio.to_thread(read_with_kafka_python, shared_cluster.bootstrap, "both-ways", 2 * RECORDS)
    assert read == values + ours


def write_with_kafka_python(bootstrap: str, topic: str, values: list[bytes]) -> None:
    with KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", enable_idempotence=False) as producer:
        sent = [producer.send(topic, value, key=b"k", headers=[("h", b"1")]) for value in values]
        producer.flush(timeout=30)
        assert [future.get(timeout=5).offset for future in sent] == list(range(len(values)))


def read_with_kafka_python(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), auto_offset_reset="earliest", group_id=None)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        values: list[bytes] = []
        while len(values) < count:
            for records in consumer.poll(timeout_ms=5_000).values():
                values.extend(record.value for record in records)
        return values
    finally:
        consumer.close()

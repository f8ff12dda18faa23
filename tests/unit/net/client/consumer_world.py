"""Logs that are filled with numbered records, and a consumer of them."""

from typing import Any

from unit.net.client.fake_cluster import FakeCluster

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def filled(count: int = 100, *, per_batch: int = 10, partitions: int = 1, **options: Any) -> FakeCluster:
    cluster = FakeCluster(topics={"t": partitions}, **options)
    for number in range(partitions):
        fill(cluster, TopicPartition("t", number), count, per_batch)
    return cluster


def fill(cluster: FakeCluster, partition: TopicPartition, count: int, per_batch: int = 10) -> None:
    log = cluster.logs[partition]
    start = log.end_offset
    for first in range(start, start + count, per_batch):
        offsets = range(first, min(first + per_batch, start + count))
        log.append(
            encode_batch([b"%d" % offset for offset in offsets], timestamps_ms=[1000 + offset for offset in offsets])
        )
    for event in cluster.waiting:
        event.set()


def consumer(cluster: FakeCluster, *topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, client=cluster.client(), **{"auto_offset_reset": "earliest", **options})


async def read(reader: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    while len(found) < count:
        batch = await reader.poll(max_records=count - len(found))
        assert batch, f"{len(found)} of {count} records came"
        found += [record for records in batch.values() for record in records]
    return found

"""`barnabas mirror` from a broker of Apache Kafka: records, settings, and a group that goes on at its record."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import Producer as RdProducer
from confluent_kafka import TopicPartition as RdPartition
from confluent_kafka.admin import AdminClient, NewTopic
from integration import java_client
from integration.cluster import Cluster
from integration.kafka_broker import KafkaBroker
from integration.test_mirror import once, read

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.programs.mirror.provenance import offset_in

VERSION = "4.1.1"
COUNT = 5_000
PARTITIONS = 2
LIMIT_S = 60.0

if java_client.find():
    pytest.skip(java_client.find(), allow_module_level=True)


def fill(bootstrap: str) -> None:
    """Records of a plain producer, and committed and aborted transactions behind them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic("logs", PARTITIONS, 1, config={"retention.ms": "123456789"})])
    made["logs"].result(LIMIT_S)
    producer = RdProducer({"bootstrap.servers": bootstrap})
    for number in range(COUNT):
        producer.produce("logs", b"%d" % number, key=b"k", partition=number % PARTITIONS, headers=[("a", b"1")])
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0
    producer = RdProducer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(LIMIT_S)
    for number in range(12):
        producer.begin_transaction()
        producer.produce("logs", b"transaction %d" % number, partition=number % PARTITIONS)
        producer.flush(LIMIT_S)
        end = producer.abort_transaction if number % 3 == 0 else producer.commit_transaction
        end(LIMIT_S)


def commit(bootstrap: str, group: str, offsets: dict[int, int]) -> None:
    consumer = RdConsumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    places = [RdPartition("logs", number, offset) for number, offset in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


@pytest.mark.timeout(400)
async def test_topics_and_groups_of_kafka(new_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    libraries = await asyncio.to_thread(java_client.fetch, tmp_path / "libraries", VERSION, "tools.xml")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    with KafkaBroker(tmp_path / "kafka", libraries) as kafka:
        await kafka.start()
        await asyncio.to_thread(fill, kafka.bootstrap)
        wanted = {0: 1_234, 1: COUNT // PARTITIONS + 3}  # the second one lies among the transactions
        await asyncio.to_thread(commit, kafka.bootstrap, "readers", wanted)
        target = await new_cluster(1).ready()
        await once(kafka.bootstrap, target.bootstrap, "*")
        copies = await read(target.bootstrap, "logs")
        assert [len(copies[TopicPartition("logs", number)]) for number in range(PARTITIONS)] == [
            COUNT // PARTITIONS + 4
        ] * 2
        plain = [record.value for number in range(PARTITIONS) for record in copies[TopicPartition("logs", number)]]
        assert set(plain[: COUNT // PARTITIONS]) == {b"%d" % number for number in range(0, COUNT, PARTITIONS)}
        async with target.admin() as admin:
            assert sorted(await admin.list_topics()) == ["barnabas-mirror-positions", "logs"]
            configs = {entry.key: entry.value for entry in await admin.describe_configs("logs")}
            offsets = {place.partition: lag.committed for place, lag in (await admin.group_offsets("readers")).items()}
        assert configs["retention.ms"] == "123456789"
        for number, original in wanted.items():
            unread = next(item for item in copies[TopicPartition("logs", number)] if item.offset >= offsets[number])
            assert unread.headers is not None
            found = offset_in(unread.headers, "YmFybmFiYXMtbWlycm9ycw")
            assert (
                found is not None and original <= found <= original + 2
            )  # a marker and an aborted record may lie between

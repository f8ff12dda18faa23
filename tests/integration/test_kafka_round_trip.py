"""The same records written by each client and read by each other one, byte for byte: ours, kafka-python, confluent-kafka."""

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from integration.cluster import Cluster
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import iter_headers
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

Headers = list[tuple[str, bytes | None]]
Record = tuple[int, bytes | None, bytes | None, Headers]  # timestamp in ms, key, value, headers
NOW_MS = 1_790_000_000_000
READ_TIMEOUT_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def records(writer: str = "") -> list[Record]:
    """kafka-python refuses to send nothing at all, and null in a header."""
    found = _all_records()
    if writer == "kafka-python":
        return [item for item in found if item[1:3] != (None, None) and all(value is not None for _, value in item[3])]
    return found


def _all_records() -> list[Record]:
    every_byte = bytes(range(256))
    odd: list[Record] = [
        (NOW_MS, b"key", b"value", []),
        (NOW_MS + 1, None, b"no key", []),
        (NOW_MS + 2, b"deleted", None, []),
        (NOW_MS + 3, None, None, []),
        (NOW_MS + 4, b"", b"", []),
        (NOW_MS, b"an earlier timestamp", b"x", []),  # deltas go below zero
        (NOW_MS - 86_400_000, b"a day before", b"x", []),
        (NOW_MS + 5, every_byte, every_byte * 40, [("bytes", every_byte)]),
        (NOW_MS + 6, b"k", b"v", [("a", b"1"), ("a", b"2"), ("", b""), ("null", None), ("naïve ✓", b"\xff")]),
        (NOW_MS + 6, b"k", b"v", [("one", b"1"), ("two", b"")]),
        (NOW_MS + 7, "schlüssel".encode(), b"v" * 70_000, []),  # lengths of three bytes
    ]
    many: list[Record] = [(NOW_MS + 10 + n, b"k%d" % (n % 7), b"value %d" % n, []) for n in range(300)]
    return odd + many


async def write_with_ours(bootstrap: str, topic: str, codec: str) -> None:
    async with Producer(bootstrap, compression=codec, linger_ms=20) as producer:
        handles = [
            await producer.send(topic, value, key=key, headers=headers, partition=0, timestamp_ms=timestamp_ms)
            for timestamp_ms, key, value, headers in records()
        ]
        assert [(await handle).offset for handle in handles] == list(range(len(handles)))


def write_with_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    compression = None if codec == "none" else codec
    with KafkaProducer(
        bootstrap_servers=bootstrap.split(","), acks="all", compression_type=compression, linger_ms=20
    ) as producer:
        sent = [
            producer.send(topic, value, key=key, headers=headers, partition=0, timestamp_ms=timestamp_ms)
            for timestamp_ms, key, value, headers in records("kafka-python")
        ]
        assert [future.get(timeout=30).offset for future in sent] == list(range(len(sent)))


def write_with_confluent(bootstrap: str, topic: str, codec: str) -> None:
    producer = ConfluentProducer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, "acks": "all"}
    )
    failed: list[object] = []
    for timestamp_ms, key, value, headers in records():
        producer.produce(
            topic,
            value=value,
            key=key,
            headers=headers,
            partition=0,
            timestamp=timestamp_ms,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0 and not failed


async def read_with_ours(bootstrap: str, topic: str, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(READ_TIMEOUT_S):
        async with Consumer(topic, bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                found.append((record.timestamp_ms, record.key, record.value, list(record.headers)))
                if len(found) == count:
                    break
    return found


def read_with_kafka_python(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), auto_offset_reset="earliest", group_id=None)
    try:
        consumer.assign([KafkaPartition(topic, 0)])
        found: list[Record] = []
        while len(found) < count:
            polled = consumer.poll(timeout_ms=READ_TIMEOUT_S * 1000)
            assert polled, f"{len(found)} of {count} records came"
            for items in polled.values():
                found += [(item.timestamp, item.key, item.value, list(item.headers)) for item in items]
        return found
    finally:
        consumer.close()


def read_with_confluent(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = ConfluentConsumer(
        {"bootstrap.servers": bootstrap, "group.id": "round-trip", "enable.auto.commit": False}
    )
    try:
        consumer.assign([ConfluentPartition(topic, 0, 0)])
        found: list[Record] = []
        while len(found) < count:
            polled = consumer.consume(count - len(found), timeout=READ_TIMEOUT_S)
            assert polled, f"{len(found)} of {count} records came"
            for message in polled:
                assert message.error() is None
                found.append((message.timestamp()[1], message.key(), message.value(), message.headers() or []))
        return found
    finally:
        consumer.close()


WRITERS: dict[str, Callable[[str, str, str], None]] = {
    "ours": lambda *arguments: asyncio.run(write_with_ours(*arguments)),
    "kafka-python": write_with_kafka_python,
    "confluent": write_with_confluent,
}
READERS: dict[str, Callable[[str, str, int], list[Record]]] = {
    "ours": lambda *arguments: asyncio.run(read_with_ours(*arguments)),
    "kafka-python": read_with_kafka_python,
    "confluent": read_with_confluent,
}


def stored_codecs(cluster: Cluster, topic: str) -> set[Compression]:
    """Of the batches in the log of the first broker: what was asked for is what lies there."""
    (log,) = (cluster.nodes[0].data / f"{topic}-0").glob("*.log")
    return {Compression(header.compression) for header in iter_headers(log.read_bytes())}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
async def test_what_one_writes_all_read_byte_for_byte(shared_cluster: Cluster, writer: str, codec: str) -> None:
    await shared_cluster.ready()
    topic = f"from-{writer}-{codec}"
    async with shared_cluster.admin() as admin:
        # The records' timestamps are what they are; they must not be too old to keep.
        await admin.create_topic(topic, partitions=1, replication_factor=3, configs={"retention.ms": "-1"})
    await asyncio.to_thread(WRITERS[writer], shared_cluster.bootstrap, topic, codec)
    expected = records(writer)
    for reader, read in READERS.items():
        found = await asyncio.to_thread(read, shared_cluster.bootstrap, topic, len(expected))
        for number, (record, wanted) in enumerate(zip(found, expected, strict=True)):
            assert record == wanted, f"{reader} reads record {number} otherwise"
    codecs = stored_codecs(shared_cluster, topic)
    # Some clients leave a batch as it is where compression would make it larger.
    assert Compression[codec.upper()] in codecs and codecs <= {Compression[codec.upper()], Compression.NONE}

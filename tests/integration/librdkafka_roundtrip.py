"""What librdkafka writes, read by a group of its own: for tests of each way in which it connects."""

import asyncio

from confluent_kafka import Consumer, Producer

COUNT = 1_000
LIMIT_S = 30.0


async def check_roundtrip(options: dict[str, str], topic: str) -> None:
    """`options` say how to connect. The topic is empty."""
    expected = sorted(b"%d" % number for number in range(COUNT))
    assert sorted(await asyncio.to_thread(_roundtrip, options, topic)) == expected


def _roundtrip(options: dict[str, str], topic: str) -> list[bytes]:
    producer = Producer(options)
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < COUNT:
        messages = consumer.consume(COUNT, LIMIT_S)
        assert messages, f"{len(found)} records, then none"
        found += [message.value() or b"" for message in messages if message.error() is None]
    consumer.close()
    return found

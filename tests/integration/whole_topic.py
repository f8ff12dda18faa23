"""All messages of a topic up to its end, as librdkafka reads them, also where control records are the last ones."""

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, Message, TopicPartition
from integration.decided import wait_for_markers

READ_LIMIT_S = 60.0
STEP_S = 0.2


def messages(
    bootstrap: str, topic: str, *, partitions: int = 3, isolation: str = "read_committed"
) -> Iterator[Message]:
    """With read_committed, the end of a partition is its last stable offset, behind what was decided before."""
    if isolation == "read_committed":
        wait_for_markers(bootstrap)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "whole-topic",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        ended: set[int] = set()
        ends_s = time.monotonic() + READ_LIMIT_S
        while len(ended) < partitions:
            assert time.monotonic() < ends_s, f"no end of {topic} within {READ_LIMIT_S:g} s"
            for message in consumer.consume(500, timeout=STEP_S):
                if message.error():
                    ended.add(message.partition())
                else:
                    yield message
    finally:
        consumer.close()


def values(bootstrap: str, topic: str, *, partitions: int = 3, isolation: str = "read_committed") -> list[str]:
    found = messages(bootstrap, topic, partitions=partitions, isolation=isolation)
    return sorted(message.value().decode() for message in found)

"""Reads whole partitions, and committed offsets, when the faults are over."""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition

from barnabas.net.client.consumer.consumer import Consumer

from .history import CommittedRead, FinalRead, History, Partition, Stuck

READ_S: Final = 90.0
OFFSETS_S: Final = 20.0
NOT_COMMITTED: Final = -1


async def read_partitions(
    bootstrap: str,
    history: History,
    name: str,
    ends: Mapping[Partition, int],
    *,
    isolation_level: str = "read_uncommitted",
) -> None:
    """Add a FinalRead for each partition; a Stuck if an end was not reached in READ_S."""
    found: dict[Partition, dict[int, str]] = {partition: {} for partition in ends}
    deadline_s = time.monotonic() + READ_S
    async with Consumer(
        bootstrap=bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level, client_id="final"
    ) as consumer:
        consumer.assign(sorted(ends))
        while behind := [place for place, end in ends.items() if await consumer.position(place) < end]:
            if time.monotonic() > deadline_s:
                history.add(Stuck(what=f"final read {name} has not ended: {behind}", at_s=time.monotonic()))
                break
            for place, records in (await consumer.poll(timeout_ms=500)).items():
                values = found[place.topic, place.partition]
                values.update((record.offset, (record.value or b"").decode()) for record in records)
    for partition, values in found.items():
        history.add(
            FinalRead(name=name, partition=partition, at_s=time.monotonic(), records=tuple(sorted(values.items())))
        )


def committed_offsets(bootstrap: str, history: History, group: str, partitions: Iterable[Partition]) -> None:
    """Add a CommittedRead for each partition, as librdkafka gets it; a Stuck if it gets no answer in OFFSETS_S."""
    consumer = ConfluentConsumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    began_s = time.monotonic()
    try:
        found = consumer.committed([ConfluentPartition(*partition) for partition in partitions], OFFSETS_S)
    except KafkaException as error:
        history.add(Stuck(what=f"the offsets of {group} cannot be read: {error}", at_s=time.monotonic()))
        return
    finally:
        consumer.close()
    for place in found:
        history.add(
            CommittedRead(
                process="final",
                group=group,
                partition=(place.topic, place.partition),
                offset=max(place.offset, NOT_COMMITTED),
                began_s=began_s,
                ended_s=time.monotonic(),
            )
        )

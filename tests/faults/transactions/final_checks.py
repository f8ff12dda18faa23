"""What other clients say when all producers have ended: everything that is read, the groups' offsets, what is still open."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from kafka import TopicPartition as KafkaPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from barnabas.net.client.consumer.consumer import Consumer as BarnabasConsumer

from ..final_reads import READ_S
from ..history import FinalRead, History, Partition, Stuck
from .tables import by_partition

FINISHED: Final = ("Empty", "CompleteCommit", "CompleteAbort")


def open_transactions(bootstrap: str, partitions: Sequence[Partition]) -> list[str]:
    """What coordinators and leaders still call open."""
    try:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
        try:
            return [*_unfinished(admin), *_open_in(admin, partitions)]
        finally:
            admin.close()
    except KafkaError as error:
        return [f"nobody says what is open: {error!r}"]


def _unfinished(admin: KafkaAdminClient) -> Iterator[str]:
    for node_id, listings in admin.list_transactions().items():
        for item in listings:
            if item.state.value not in FINISHED:
                yield f"broker {node_id} has transaction {item.transactional_id} in state {item.state.value}"


def _open_in(admin: KafkaAdminClient, partitions: Sequence[Partition]) -> Iterator[str]:
    for place, found in admin.describe_producers([KafkaPartition(*partition) for partition in partitions]).items():
        for producer in found.active_producers:
            if producer.current_transaction_start_offset >= 0:
                yield f"{place} has an open transaction: {producer}"


def read_by_librdkafka(bootstrap: str, history: History, name: str, ends: Mapping[Partition, int]) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    found: dict[Partition, list[tuple[int, str]]] = {partition: [] for partition in ends}
    consumer.assign([TopicPartition(*partition, 0) for partition in ends])
    ended: set[Partition] = set()
    deadline_s = time.monotonic() + READ_S
    while len(ended) < len(ends) and time.monotonic() < deadline_s:
        for message in consumer.consume(1_000, 0.5):
            place = (message.topic(), message.partition())
            if message.error() is not None:
                ended.add(place)
            else:
                found[place].append((message.offset(), message.value().decode()))
    consumer.close()
    if len(ended) < len(ends):
        history.add(Stuck(what=f"final read {name} has not ended: {set(ends) - ended}", at_s=time.monotonic()))
    _add(history, name, found)


async def read_by_tables(bootstrap: str, history: History, name: str, ends: Mapping[Partition, int]) -> None:
    found: dict[Partition, list[tuple[int, str]]] = {partition: [] for partition in ends}
    deadline_s = time.monotonic() + READ_S
    async with BarnabasConsumer(
        bootstrap=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed", client_id="tables"
    ) as consumer:
        consumer.assign(sorted(ends))
        while behind := [place for place, end in ends.items() if await consumer.position(place) < end]:
            if time.monotonic() > deadline_s:
                history.add(Stuck(what=f"final read {name} has not ended: {behind}", at_s=time.monotonic()))
                break
            for place, values in by_partition(await consumer.poll_arrow(timeout_ms=500)).items():
                found[place] += values
    _add(history, name, found)


def _add(history: History, name: str, found: Mapping[Partition, list[tuple[int, str]]]) -> None:
    for partition, records in found.items():
        history.add(FinalRead(name=name, partition=partition, at_s=time.monotonic(), records=tuple(records)))

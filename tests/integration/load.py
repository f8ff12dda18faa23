"""Producers that remember what was acknowledged, and the check that all of it is still there."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Self, Unpack

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

PACE_S = 0.005
READ_TIMEOUT_S = 60.0


class Load:
    """Several producers send numbered records with acks=all until they are told to stop.

    `acknowledged` has every record that was acknowledged, at its partition and offset; `failed` those that were not.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        producers: int = 2,
        pace_s: float = PACE_S,
        **security: Unpack[SecurityOptions],
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[TopicPartition, dict[int, bytes]] = {}
        self.count = 0
        self.failed: list[BarnabasError] = []
        self._stop = asyncio.Event()
        self._producers = producers
        self._pace_s = pace_s
        self._security = security
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(self._producers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Send no more, and wait until everything sent is acknowledged or has failed."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _run(self, number: int) -> None:
        waiting: set[asyncio.Task[None]] = set()
        async with Producer(
            self.bootstrap,
            acks="all",
            request_timeout_ms=5_000,
            delivery_timeout_ms=60_000,
            client_id=f"load-{number}",
            on_error=lambda *_: None,  # every handle is looked at below
            **self._security,
        ) as producer:
            sequence = 0
            while not self._stop.is_set():
                for partition in range(self.partitions):
                    value = b"%d:%d:%d" % (number, partition, sequence)
                    sequence += 1
                    handle = await producer.send(self.topic, value, partition=partition)
                    task = asyncio.create_task(self._note(value, handle))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                await asyncio.sleep(self._pace_s)
            await producer.flush()
            await asyncio.gather(*waiting)

    async def _note(self, value: bytes, handle: Awaitable[Any]) -> None:
        try:
            metadata = await handle
        except BarnabasError as error:
            self.failed.append(error)
            return
        place = TopicPartition(metadata.topic, metadata.partition)
        before = self.acknowledged.setdefault(place, {}).setdefault(metadata.offset, value)
        assert before == value, f"{place}@{metadata.offset} was acknowledged for {before!r} and for {value!r}"
        self.count += 1

    def check(self, stored: dict[TopicPartition, dict[int, bytes]]) -> None:
        """Nothing acknowledged is missing, moved or reordered."""
        for place, records in self.acknowledged.items():
            found = stored.get(place, {})
            lost = {offset: value for offset, value in records.items() if found.get(offset) != value}
            assert not lost, f"{place}: {len(lost)} of {len(records)} acknowledged are lost, first {min(lost.items())}"
            self._check_order(place, records)

    def _check_order(self, place: TopicPartition, records: dict[int, bytes]) -> None:
        """Each producer's acknowledged records lie in the order in which it sent them."""
        last: dict[bytes, int] = {}
        for _, value in sorted(records.items()):
            producer, _, sequence = value.split(b":")
            assert last.get(producer, -1) < int(sequence), f"{place}: {value!r} lies behind a later record"
            last[producer] = int(sequence)


async def read_all(
    bootstrap: str, topic: str, **security: Unpack[SecurityOptions]
) -> dict[TopicPartition, dict[int, bytes]]:
    """The committed records of a topic, from the first to the last, by partition and offset."""
    found: dict[TopicPartition, dict[int, bytes]] = {}
    async with Admin(bootstrap, **security) as admin:
        ends = {place: item.offset for place, item in (await admin.list_offsets(topic)).items()}
    async with Consumer(
        topic, bootstrap=bootstrap, auto_offset_reset="earliest", request_timeout_ms=10_000, **security
    ) as consumer:
        async with asyncio.timeout(READ_TIMEOUT_S):
            while any(max(found.get(place, {}), default=-1) + 1 < end for place, end in ends.items()):
                for place, records in (await consumer.poll(timeout_ms=500)).items():
                    for record in records:
                        assert record.value is not None
                        offsets = found.setdefault(place, {})
                        assert record.offset not in offsets, f"{place}@{record.offset} was delivered twice"
                        offsets[record.offset] = record.value
    return found


async def send(bootstrap: str, topic: str, values: list[bytes], *, partition: int = 0, **options: Any) -> list[int]:
    """Send with acks=all and return the offsets."""
    async with Producer(bootstrap, **{"acks": "all", **options}) as producer:
        handles = [await producer.send(topic, value, partition=partition) for value in values]
        return [(await handle).offset for handle in handles]

"""How commands reach a cluster: the SDK's own clients, and what only the command line adds to a producer or a consumer.

The client is imported when the first connection is opened, never before. Tests hand a cluster in memory to `main` instead.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

if TYPE_CHECKING:
    from barnabas.net.client.admin.admin import Admin
    from barnabas.net.client.connection.records import ConsumerRecord
    from barnabas.net.client.consumer.consumer import Consumer
    from barnabas.net.client.producer.producer import Producer
    from barnabas.net.wire.greeting import Greeting

logger = logging.getLogger("barnabas.consumer")

CLIENT_ID = "barnabas-cli"


class Connector:
    """Opens connections; each is closed at the end of its `async with`."""

    async def greet(self, host: str, port: int) -> Greeting:
        """Return who answers at an address. Raises BarnabasError where no broker answers in time."""
        from barnabas.net.wire.greeting import greet
        from barnabas.net.wire.tcp import TcpNetwork

        return await greet(TcpNetwork(), host, port, client_id=CLIENT_ID)

    def admin(self, bootstrap: str) -> Admin:
        from barnabas.net.client.admin.admin import Admin

        return Admin(bootstrap)

    @asynccontextmanager
    async def producer(self, bootstrap: str, *, acks: str) -> AsyncIterator[Producer]:
        from barnabas.net.client.producer.producer import Producer

        # Lines of a file come faster than any network: waiting for room is the normal case, not an error.
        producer = Producer(bootstrap, acks=acks, client_id=CLIENT_ID)
        await producer.start()
        try:
            yield producer
        except BaseException:
            await producer.close(timeout_ms=0)  # Who gives up does not wait for what is left.
            raise
        await producer.close()

    @asynccontextmanager
    async def consumer(
        self, bootstrap: str, *, topics: Sequence[str], group: str | None, start: str
    ) -> AsyncIterator[PrintedConsumer]:
        from barnabas.net.client.consumer.consumer import Consumer

        assigned: list[TopicPartition] = []

        async def begin(partitions: list[TopicPartition]) -> None:
            assigned.extend(partitions)
            await _seek_where_nothing_is_committed(consumer, partitions, start)

        async def give_up(partitions: list[TopicPartition]) -> None:
            if is_reading:  # It asks for more, so it has printed and flushed all that it got.
                await _commit_if_possible(consumer)

        # Without a group the caller assigns partitions and offsets itself; a subscription would fight with that.
        consumer = Consumer(
            *(topics if group else ()),
            bootstrap=bootstrap,
            group=group,
            auto_offset_reset="latest" if start == "end" else "earliest",
            auto_commit=False,  # the command commits what it has printed and flushed
            on_assigned=begin,
            on_revoked=give_up,
            client_id=CLIENT_ID,
        )
        is_reading = True
        async with consumer:
            yield PrintedConsumer(consumer, assigned)
            is_reading = False  # What was handed out last may be more than what `-n` has printed.


async def _commit_if_possible(consumer: Consumer) -> None:
    """Partitions go: where the coordinator is not there for too long, their next owner reads again from the last commit."""
    try:
        await consumer.commit()
    except BarnabasError as error:
        if not error.retriable:
            raise
        logger.warning("partitions given up without a commit: %s", error.message)


async def _seek_where_nothing_is_committed(consumer: Consumer, partitions: list[TopicPartition], start: str) -> None:
    """`-o N` and `-o @timestamp` of a group; `start` and `end` are reset policies, which the consumer knows itself."""
    if start in ("start", "end") or not partitions:
        return
    committed = await consumer.committed(*partitions)
    fresh = [place for place in partitions if place not in committed]
    if start.startswith("@") and fresh:
        await consumer.seek_to_time(int(start[1:]), *fresh)
    elif fresh:
        for place in fresh:
            consumer.seek(place, int(start))


class PrintedConsumer:
    """A consumer whose commits are of what was printed."""

    def __init__(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._assigned = assigned

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets, without a group."""
        self._consumer.assign(offsets)
        for place, offset in offsets.items():
            self._consumer.seek(place, offset)

    async def positions(self) -> Mapping[TopicPartition, int]:
        """The partitions that this consumer owns now, and the offset that it reads next in each."""
        return {place: await self._consumer.position(place) for place in self._consumer.assignment}

    async def poll(self, max_wait_ms: int) -> Iterable[ConsumerRecord]:
        found = await self._consumer.poll(timeout_ms=max_wait_ms)
        return chain.from_iterable(found.values())

    def take_assigned(self) -> Sequence[TopicPartition]:
        """What the group gave us since the last call: what was printed of it before is not ours to commit any more."""
        taken = list(self._assigned)
        self._assigned.clear()
        return taken

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Of partitions that went to another member everything printed is committed: it must not be committed again."""
        owned = set(self._consumer.assignment)
        await self._consumer.commit({place: offset for place, offset in offsets.items() if place in owned})

    def trouble(self) -> str:
        """What keeps it from getting on, in the client's words; "" if it knows of nothing."""
        return self._consumer.client.trouble()

"""How commands reach a cluster: the SDK's clients, and what the command line adds to a producer or a consumer.

The client is imported when the first connection is opened, never before. Tests pass an in-memory cluster to `main`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from barnabas.net.client.admin.admin import Admin
    from barnabas.net.client.connection.client import Client
    from barnabas.net.client.connection.records import ConsumerRecord
    from barnabas.net.client.connection.security import SecurityOptions
    from barnabas.net.client.consumer.consumer import Consumer
    from barnabas.net.client.producer.producer import Producer
    from barnabas.net.wire.greeting import Greeting

logger = logging.getLogger("barnabas.consumer")

CLIENT_ID = "barnabas-cli"


class Connector:
    """Opens connections; each is closed at the end of its `async with`."""

    def __init__(self, security: SecurityOptions | None = None) -> None:
        self._security: SecurityOptions = security or {}

    @property
    def security(self) -> SecurityOptions:
        """What every client of the SDK takes."""
        return self._security

    async def greet(self, host: str, port: int) -> Greeting:
        """Return the broker that answers at an address. Raises BarnabasError if no broker answers in time."""
        from barnabas.net.client.connection.security import network_of
        from barnabas.net.wire.greeting import greet

        return await greet(network_of(self._security), host, port, client_id=CLIENT_ID)

    def admin(self, bootstrap: str) -> Admin:
        from barnabas.net.client.admin.admin import Admin

        return Admin(bootstrap, **self._security)

    def table_reader(self, bootstrap: str, topic: str) -> Callable[..., pyarrow.RecordBatchReader]:
        """`read_table` of a topic as a stream; it takes positions and partitions."""
        from barnabas.net.client.consumer.read_table import read_table

        return partial(read_table, topic, bootstrap=bootstrap, stream=True, **self._security)

    def reader(self, bootstrap: str) -> Consumer:
        """Without a group: the caller assigns partitions and positions."""
        from barnabas.net.client.consumer.consumer import Consumer

        return Consumer(bootstrap=bootstrap, client_id=CLIENT_ID, **self._security)

    @asynccontextmanager
    async def client(self, bootstrap: str) -> AsyncIterator[Client]:
        from barnabas.net.client.connection.client import Client

        client = Client(bootstrap, client_id=CLIENT_ID, **self._security)
        try:
            await client.start()
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def producer(
        self, bootstrap: str, *, acks: str, compression: str = "none", linger_ms: float = 0
    ) -> AsyncIterator[Producer]:
        from barnabas.net.client.producer.producer import Producer

        # A file is read faster than any network sends: waiting for buffer space is the normal case, not an error.
        producer = Producer(
            bootstrap,
            acks=acks,
            compression=compression,
            linger_ms=linger_ms,
            client_id=CLIENT_ID,
            **self._security,
        )
        await producer.start()
        try:
            yield producer
        except BaseException:
            await producer.close(timeout_ms=0)  # A command that gives up does not wait for the remaining records.
            raise
        await producer.close()

    @asynccontextmanager
    async def consumer(
        self, bootstrap: str, *, topics: Sequence[str], group: str | None, start: str, isolation_level: str
    ) -> AsyncIterator[PrintedConsumer]:
        from barnabas.net.client.consumer.consumer import Consumer

        assigned: list[TopicPartition] = []

        async def begin(partitions: list[TopicPartition]) -> None:
            assigned.extend(partitions)
            await _seek_where_nothing_is_committed(consumer, partitions, start)

        async def give_up(partitions: list[TopicPartition]) -> None:
            if is_reading:  # The command asks for more, so it has printed and flushed everything before.
                await _commit_if_possible(consumer)

        # Without a group the caller assigns partitions and offsets itself; a subscription would conflict with that.
        consumer = Consumer(
            *(topics if group else ()),
            bootstrap=bootstrap,
            group=group,
            auto_offset_reset="latest" if start == "end" else "earliest",
            isolation_level=isolation_level,
            auto_commit=False,  # the command commits only what it has printed and flushed
            on_assigned=begin,
            on_revoked=give_up,
            client_id=CLIENT_ID,
            **self._security,
        )
        is_reading = True
        async with consumer:
            yield PrintedConsumer(consumer, assigned)
            is_reading = False  # The last batch may hold more records than `-n` allowed to print.


async def _commit_if_possible(consumer: Consumer) -> None:
    """Partitions are revoked. If the coordinator is unavailable for too long, the next owner reads again from the last commit."""
    try:
        await consumer.commit()
    except BarnabasError as error:
        if not error.retriable:
            raise
        logger.warning("partitions revoked without a commit: %s", error.message)


async def _seek_where_nothing_is_committed(consumer: Consumer, partitions: list[TopicPartition], start: str) -> None:
    """Resolve `-o N` and `-o @timestamp` for a group; `start` and `end` are reset policies that the consumer handles."""
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
    """A consumer that commits only records that were printed."""

    def __init__(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._assigned = assigned

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets, without a group."""
        self._consumer.assign(offsets)
        for place, offset in offsets.items():
            self._consumer.seek(place, offset)

    async def positions(self) -> Mapping[TopicPartition, int]:
        """The partitions that this consumer owns now, and the next offset to read in each."""
        return {place: await self._consumer.position(place) for place in self._consumer.assignment}

    async def poll(self, max_wait_ms: int) -> Iterable[ConsumerRecord]:
        found = await self._consumer.poll(timeout_ms=max_wait_ms)
        return chain.from_iterable(found.values())

    def take_assigned(self) -> Sequence[TopicPartition]:
        """Partitions assigned since the last call: records printed before that must not be committed any more."""
        taken = list(self._assigned)
        self._assigned.clear()
        return taken

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Printed records of partitions that another member took over are committed already: do not commit them again."""
        owned = set(self._consumer.assignment)
        await self._consumer.commit({place: offset for place, offset in offsets.items() if place in owned})

    def trouble(self) -> str:
        """Why the consumer makes no progress, as the client reports it; "" if there is no known reason."""
        return self._consumer.client.trouble()

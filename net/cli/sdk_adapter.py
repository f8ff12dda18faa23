"""The SDK behind the ports of `sdk`: the one place of the command line that knows how the client's classes are called.

The client is imported when the first connection is opened, never before.
"""

import importlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from barnabas.log.topic_partition import TopicPartition

from .exit_codes import CommandError
from .sdk import AdminPort, ConsumedRecord, ConsumerPort, PartitionLag, ProducerPort

if TYPE_CHECKING:
    from barnabas.net.client.consumer import Consumer


def _class(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"barnabas.net.client.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise CommandError(f"the client cannot be loaded ({error}); install barnabas again") from error


class SdkConnector:
    """Opens the SDK's own classes."""

    @asynccontextmanager
    async def admin(self, bootstrap: str) -> AsyncIterator[AdminPort]:
        async with _class("admin", "Admin")(bootstrap=bootstrap) as admin:
            yield _Admin(admin)

    @asynccontextmanager
    async def producer(self, bootstrap: str, *, acks: str) -> AsyncIterator[ProducerPort]:
        from barnabas.net.client.producer import Producer

        # Lines of a file come faster than any network: waiting for room is the normal case, not an error.
        async with Producer(bootstrap, acks=acks, client_id="barnabas-cli") as producer:
            yield producer

    @asynccontextmanager
    async def consumer(
        self, bootstrap: str, *, topics: Sequence[str], group: str | None, start: str
    ) -> AsyncIterator[ConsumerPort]:
        from barnabas.net.client.consumer import Consumer

        async def begin(partitions: list[TopicPartition]) -> None:
            await _seek_where_nothing_is_committed(consumer, partitions, start)

        # Without a group the caller assigns partitions and offsets itself; a subscription would fight with that.
        consumer = Consumer(
            *(topics if group else ()),
            bootstrap=bootstrap,
            group=group,
            auto_offset_reset="latest" if start == "end" else "earliest",
            auto_commit=False,  # the command commits what it has printed and flushed
            on_assigned=begin,
            client_id="barnabas-cli",
        )
        async with consumer:
            yield _Consumer(consumer)


async def _seek_where_nothing_is_committed(consumer: "Consumer", partitions: list[TopicPartition], start: str) -> None:
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


class _Consumer:
    def __init__(self, consumer: "Consumer") -> None:
        self._consumer = consumer

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign(offsets)
        for place, offset in offsets.items():
            self._consumer.seek(place, offset)

    async def positions(self) -> Mapping[TopicPartition, int]:
        return {place: await self._consumer.position(place) for place in self._consumer.assignment}

    async def poll(self, max_wait_ms: int) -> Iterable[ConsumedRecord]:
        found = await self._consumer.poll(timeout_ms=max_wait_ms)
        return chain.from_iterable(found.values())

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._consumer.commit(offsets)


class _Admin:
    """Most calls have the same name and the same shape on both sides; `__getattr__` passes them through."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    async def group_offsets(self, group: str) -> Sequence[PartitionLag]:
        return [
            PartitionLag(
                topic=item.topic,
                partition=item.partition,
                committed=item.committed,
                log_start_offset=item.log_start_offset,
                log_end_offset=item.log_end_offset,
            )
            for item in await self._admin.group_offsets(group)
        ]

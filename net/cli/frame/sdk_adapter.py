"""The SDK behind the ports of `sdk`: the one place of the command line that knows how the client's classes are called.

The client is imported when the first connection is opened, never before.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from .sdk import AdminPort, ConsumedRecord, ConsumerPort, PartitionLag, ProducerPort

if TYPE_CHECKING:
    from barnabas.net.client.admin.admin import Admin
    from barnabas.net.client.connection.client import Client
    from barnabas.net.client.consumer.consumer import Consumer
    from barnabas.net.client.producer.producer import Producer
    from barnabas.net.protocol.group_responses import DescribeGroupResponse, ListedGroup, UndoOffsetResetResponse
    from barnabas.net.wire.greeting import Greeting
from barnabas.net.protocol.responses import (
    ConfigEntry,
    CreateTopicResponse,
    DescribeClusterResponse,
    DescribeMovesResponse,
    DescribeQuorumResponse,
    DescribeStorageResponse,
    TopicMetadata,
)

logger = logging.getLogger("barnabas.consumer")


class SdkConnector:
    """Opens the SDK's own classes."""

    async def greet(self, host: str, port: int) -> Greeting:
        from barnabas.net.wire.greeting import greet
        from barnabas.net.wire.tcp import TcpNetwork

        return await greet(TcpNetwork(), host, port, client_id="barnabas-cli")

    @asynccontextmanager
    async def admin(self, bootstrap: str) -> AsyncIterator[AdminPort]:
        from barnabas.net.client.admin.admin import Admin

        async with Admin(bootstrap) as admin:
            yield _Admin(admin)

    @asynccontextmanager
    async def producer(self, bootstrap: str, *, acks: str) -> AsyncIterator[ProducerPort]:
        from barnabas.net.client.producer.producer import Producer

        # Lines of a file come faster than any network: waiting for room is the normal case, not an error.
        producer = Producer(bootstrap, acks=acks, client_id="barnabas-cli")
        await producer.start()
        try:
            yield _Producer(producer)
        except BaseException:
            await producer.close(timeout_ms=0)  # Who gives up does not wait for what is left.
            raise
        await producer.close()

    @asynccontextmanager
    async def consumer(
        self, bootstrap: str, *, topics: Sequence[str], group: str | None, start: str
    ) -> AsyncIterator[ConsumerPort]:
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
            client_id="barnabas-cli",
        )
        is_reading = True
        async with consumer:
            yield _Consumer(consumer, assigned)
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


def _told(client: Client) -> str:
    trouble = client.troubles.oldest
    return "" if trouble is None else trouble.message


class _Producer:
    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def send_many(
        self, topic: str, values: Sequence[bytes], keys: Sequence[bytes | None] | None
    ) -> Awaitable[object]:
        return await self._producer.send_many(topic, values, keys)

    async def flush(self) -> None:
        await self._producer.flush()

    def trouble(self) -> str:
        return _told(self._producer.client) or self._producer.client.unanswered()


class _Consumer:
    def __init__(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._assigned = assigned

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign(offsets)
        for place, offset in offsets.items():
            self._consumer.seek(place, offset)

    async def positions(self) -> Mapping[TopicPartition, int]:
        return {place: await self._consumer.position(place) for place in self._consumer.assignment}

    async def poll(self, max_wait_ms: int) -> Iterable[ConsumedRecord]:
        found = await self._consumer.poll(timeout_ms=max_wait_ms)
        return chain.from_iterable(found.values())

    def take_assigned(self) -> Sequence[TopicPartition]:
        taken = list(self._assigned)
        self._assigned.clear()
        return taken

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Of partitions that went to another member everything printed is committed: it must not be committed again."""
        owned = set(self._consumer.assignment)
        await self._consumer.commit({place: offset for place, offset in offsets.items() if place in owned})

    def trouble(self) -> str:
        return _told(self._consumer.client)


class _Admin:
    """The SDK's admin client under the names and shapes that the commands use."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def create_topic(
        self, name: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str], validate_only: bool
    ) -> CreateTopicResponse:
        return await self._admin.create_topic(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            validate_only=validate_only,
        )

    async def list_topics(self) -> Sequence[TopicMetadata]:
        return await self._admin.describe_topics()

    async def describe_topic(self, name: str) -> TopicMetadata:
        return await self._admin.describe_topic(name)

    async def delete_topic(self, name: str) -> None:
        await self._admin.delete_topic(name)

    async def add_partitions(self, name: str, total_count: int) -> None:
        await self._admin.add_partitions(name, total_count)

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        return await self._admin.delete_records(topic, partition, before_offset=before_offset)

    async def alter_config(self, resource_type: int, resource: str, changes: Mapping[str, str | None]) -> None:
        await self._admin.alter_config(resource, changes, resource_type=resource_type)

    async def describe_configs(self, resource_type: int, resource: str) -> Sequence[ConfigEntry]:
        return await self._admin.describe_configs(resource, resource_type=resource_type)

    async def elect_leader(self, topic: str, partition: int, target: int | None) -> None:
        await self._admin.elect_leader(topic, partition, target=target)

    async def assign_replicas(
        self, topic: str, partition: int, replicas: Sequence[int], *, throttle_bytes_per_s: int
    ) -> None:
        await self._admin.assign_replicas(topic, partition, replicas, throttle_bytes_per_s=throttle_bytes_per_s)

    async def describe_moves(self) -> DescribeMovesResponse:
        return await self._admin.describe_moves()

    async def decommission_broker(self, node_id: int, *, cancel: bool, throttle_bytes_per_s: int) -> None:
        await self._admin.decommission_broker(node_id, cancel=cancel, throttle_bytes_per_s=throttle_bytes_per_s)

    async def fill_broker(self, node_id: int, *, throttle_bytes_per_s: int) -> int:
        return await self._admin.fill_broker(node_id, throttle_bytes_per_s=throttle_bytes_per_s)

    async def unregister_broker(self, node_id: int) -> None:
        await self._admin.unregister_broker(node_id)

    async def shut_down_broker(self, node_id: int) -> None:
        await self._admin.shut_down_broker(node_id)

    async def describe_cluster(self) -> DescribeClusterResponse:
        return await self._admin.describe_cluster()

    async def add_voter(self, node_id: int) -> str:
        return await self._admin.add_voter(node_id)

    async def remove_voter(self, node_id: int) -> str:
        return await self._admin.remove_voter(node_id)

    async def describe_quorum(self) -> DescribeQuorumResponse:
        return await self._admin.describe_quorum()

    async def describe_storage(self, node_id: int) -> DescribeStorageResponse:
        return await self._admin.describe_storage(node_id)

    async def bring_back_folder(self, node_id: int, path: str) -> DescribeStorageResponse:
        return await self._admin.bring_back_folder(node_id, path)

    async def list_groups(self) -> Sequence[ListedGroup]:
        return await self._admin.list_groups()

    async def describe_group(self, group: str) -> DescribeGroupResponse:
        return await self._admin.describe_group(group)

    async def explain_group(self, group: str) -> DescribeGroupResponse:
        return await self._admin.explain_group(group)

    async def group_offsets(self, group: str) -> Sequence[PartitionLag]:
        return [
            PartitionLag(
                topic=place.topic,
                partition=place.partition,
                committed=item.committed,
                log_start_offset=item.log_start_offset,
                log_end_offset=item.log_end_offset,
                lag_seconds=item.lag_seconds,
                lag_is_estimate=item.is_estimate,
            )
            for place, item in sorted((await self._admin.group_offsets(group)).items())
        ]

    async def reset_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        await self._admin.reset_offsets(group, offsets)

    async def undo_reset(self, group: str, *, validate_only: bool) -> UndoOffsetResetResponse:
        return await self._admin.undo_reset(group, validate_only=validate_only)

    async def delete_group(self, group: str) -> None:
        await self._admin.delete_group(group)

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        return {place: found.offset for place, found in (await self._admin.find_offsets(wanted)).items()}

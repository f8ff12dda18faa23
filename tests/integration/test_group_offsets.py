"""Committed offsets over real brokers: kill -9 while groups commit, a live group is moved and back, __consumer_offsets."""

import asyncio
import contextlib
from collections.abc import Callable

from integration.cluster import SESSION, Cluster, until
from integration.load import send
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from barnabas.consumer_groups.offsets.offsets_topic import decoded
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC, TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer

GROUPS = 12  # over all coordinators
PLACE = TopicPartition("t", 0)
PROGRESS = 40  # acknowledged commits of every group between two faults


class Committer:
    """One group that commits 1, 2, 3, ...; a commit that fails is made again with the next number."""

    def __init__(self, admin: Admin, group: str) -> None:
        self.group = group
        self.attempted = 0
        self.acknowledged = 0
        self._admin = admin

    async def run(self) -> None:
        while True:
            self.attempted += 1
            with contextlib.suppress(BarnabasError):
                await self._admin.commit_offsets(self.group, {PLACE: self.attempted})
                self.acknowledged = self.attempted

    async def check(self) -> None:
        """What was acknowledged before we asked is there, or something newer."""
        acknowledged = self.acknowledged
        found = (await self._admin.group_offsets(self.group))[PLACE].committed
        assert acknowledged <= found <= self.attempted, (self.group, acknowledged, found, self.attempted)


async def progress(committers: list[Committer]) -> None:
    wanted = {item.group: item.acknowledged + PROGRESS for item in committers}
    await until(
        lambda: all(item.acknowledged >= wanted[item.group] for item in committers),
        f"{PROGRESS} more acknowledged commits of every group",
    )


async def test_no_acknowledged_commit_is_lost_when_coordinator_and_controller_are_killed(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = await new_cluster(3, **SESSION).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=1, replication_factor=3)
        committers = [Committer(admin, f"group-{number}") for number in range(GROUPS)]
        tasks = [asyncio.create_task(item.run()) for item in committers]
        try:
            await progress(committers)
            for _ in range(2):
                coordinator = (await admin.describe_group("group-0")).coordinator
                await kill_and_check(cluster, coordinator, committers)
                controller = (await admin.describe_cluster()).controller_id
                await kill_and_check(cluster, controller, committers)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for item in committers:
            await item.check()


async def kill_and_check(cluster: Cluster, node_id: int, committers: list[Committer]) -> None:
    cluster.kill(node_id)
    await progress(committers)
    for item in committers:
        await item.check()
    cluster.start(node_id)
    await cluster.ready()


async def test_a_live_group_is_moved_and_back_while_it_reads(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("moved", partitions=1, replication_factor=3)
        await send(shared_cluster.bootstrap, "moved", [b"%d" % number for number in range(100)])
        place = TopicPartition("moved", 0)
        async with Consumer(
            "moved",
            bootstrap=shared_cluster.bootstrap,
            group="movers",
            auto_offset_reset="earliest",
            auto_commit=False,
        ) as consumer:
            assert await read_until(consumer, 99) == 0
            await consumer.commit()
            await admin.reset_offsets("movers", {place: 40})
            assert await read_until(consumer, 99) == 40
            undone = await admin.undo_reset("movers", validate_only=True)
            assert [(item.before, item.after) for item in undone.offsets] == [(40, 100)]
            await admin.undo_reset("movers")
            await send(shared_cluster.bootstrap, "moved", [b"new"])
            assert await read_until(consumer, 100) == 100
            again = await admin.undo_reset("movers")
            assert again.reset_id == undone.reset_id + 1
            assert await read_until(consumer, 100) == 40
        assert (await admin.group_offsets("movers"))[place].committed == 40


async def read_until(consumer: Consumer, last: int) -> int:
    """Read to that offset; return the first offset that was read."""
    first: int | None = None
    while True:
        for records in (await consumer.poll(timeout_ms=200)).values():
            first = records[0].offset if first is None else first
            if records[-1].offset >= last:
                return first


async def test_the_offsets_topic_is_read_by_our_client_and_by_kafkas(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("watched", partitions=2, replication_factor=3)
        for number in range(20):
            offsets = {TopicPartition("watched", partition): number for partition in range(2)}
            await admin.commit_offsets("watchers", offsets)
        places = [TopicPartition(CONSUMER_OFFSETS_TOPIC, number) for number in range(50)]
        ours: list[tuple[int, object]] = []
        async with Consumer(bootstrap=shared_cluster.bootstrap) as consumer:
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            while len(ours) < 40:
                for records in (await consumer.poll(timeout_ms=200)).values():
                    ours += [item for record in records if (item := commit_of(record.offset, record.key, record.value))]
    expected = [(partition, number) for number in range(20) for partition in range(2)]
    assert [value for _, value in ours] == expected
    theirs = await asyncio.to_thread(read_with_kafka_python, shared_cluster.bootstrap)
    assert theirs == ours


def read_with_kafka_python(bootstrap: str) -> list[tuple[int, object]]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), auto_offset_reset="earliest", group_id=None)
    found: list[tuple[int, object]] = []
    try:
        consumer.assign([KafkaPartition(CONSUMER_OFFSETS_TOPIC, number) for number in range(50)])
        while len(found) < 40:
            for records in consumer.poll(timeout_ms=200).values():
                found += [item for record in records if (item := commit_of(record.offset, record.key, record.value))]
    finally:
        consumer.close()
    return found


def commit_of(offset: int, key: bytes | None, value: bytes | None) -> tuple[int, object] | None:
    """(log offset, (partition, committed offset)) of a commit of the group under test."""
    told = decoded(key, value)
    committed = told["value"]
    if told["type"] != "offset" or told["group"] != "watchers" or not isinstance(committed, dict):
        return None
    return offset, (told["partition"], committed["offset"])

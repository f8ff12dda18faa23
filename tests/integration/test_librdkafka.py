"""librdkafka (confluent-kafka) in groups that the coordinator assigns (KIP-848), against three real brokers."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from integration.cluster import Cluster, until
from integration.load import send

from barnabas.net.client.consumer.consumer import Consumer as OurConsumer

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: scripts/setup.sh")

PARTITIONS = 4
PER_PARTITION = 25
POLL_S = 0.2
# librdkafka shows them to the application, and repeats the request by itself: a coordinator may move at any time.
MOVED = {confluent_kafka.KafkaError.NOT_COORDINATOR, confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS}


class Reader:
    """One member; what it read is kept by place."""

    def __init__(self, cluster: Cluster, topic: str, group: str, **options: Any) -> None:
        self.read: dict[tuple[int, int], bytes] = {}
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **options,
            }
        )
        self.consumer.subscribe([topic])

    @property
    def owned(self) -> set[int]:
        return {item.partition for item in self.consumer.assignment()}

    async def poll(self) -> None:
        for message in await asyncio.to_thread(self.consumer.consume, 100, POLL_S):
            if (error := message.error()) is None:
                self.read[message.partition(), message.offset()] = message.value()
            else:
                assert error.code() in MOVED, error

    def close(self) -> None:
        self.consumer.close()


@contextmanager
def readers(cluster: Cluster, topic: str, group: str, *, count: int) -> Iterator[list[Reader]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Reader(cluster, topic, group))) for _ in range(count)]


def everything(per_partition: int = PER_PARTITION) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(per_partition)}


async def filled(cluster: Cluster, topic: str) -> str:
    """A new topic with records in each partition."""
    await cluster.ready()
    name = f"{topic}-{uuid.uuid4().hex[:8]}"
    async with cluster.admin() as admin:
        await admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    await fill(cluster, name)
    return name


async def fill(cluster: Cluster, topic: str) -> None:
    for number in range(PARTITIONS):
        await send(cluster.bootstrap, topic, [b"%d" % time.monotonic_ns()] * PER_PARTITION, partition=number)


async def test_it_joins_reads_commits_and_goes_on_where_it_was(shared_cluster: Cluster) -> None:
    topic = await filled(shared_cluster, "resumed")

    async def read_all(reader: Reader, wanted: set[tuple[int, int]]) -> None:
        async def has_read() -> bool:
            await reader.poll()
            return reader.read.keys() >= wanted

        await until(has_read, f"{len(wanted)} records are read")

    with closing(Reader(shared_cluster, topic, topic)) as first:
        await read_all(first, everything())
        await asyncio.to_thread(first.consumer.commit, asynchronous=False)
    await fill(shared_cluster, topic)
    with closing(Reader(shared_cluster, topic, topic)) as second:
        news = everything(2 * PER_PARTITION) - everything()
        await read_all(second, news)
        assert second.read.keys() == news, "what was committed is not read again"


async def test_two_members_share_and_one_takes_over_what_the_other_leaves(shared_cluster: Cluster) -> None:
    topic = await filled(shared_cluster, "shared")
    with readers(shared_cluster, topic, topic, count=2) as (one, other):

        async def is_shared() -> bool:
            await asyncio.gather(one.poll(), other.poll())
            half = PARTITIONS // 2
            return len(one.owned) == len(other.owned) == half and one.owned | other.owned == set(range(PARTITIONS))

        await until(is_shared, "each has a half")
        await asyncio.to_thread(other.close)

        async def has_all() -> bool:
            await one.poll()
            return one.owned == set(range(PARTITIONS))

        await until(has_all, "the one that stays has everything")


async def test_a_pattern_brings_topics_that_are_created_later(shared_cluster: Cluster) -> None:
    """The pattern goes to the coordinator (ConsumerGroupHeartbeat 1), which resolves it."""
    prefix = f"pattern-{uuid.uuid4().hex[:8]}"
    await filled(shared_cluster, prefix)
    with closing(Reader(shared_cluster, f"^{prefix}-.*", prefix)) as reader:
        topics: set[str] = set()

        async def has(count: int) -> bool:
            await reader.poll()
            topics.update(item.topic for item in reader.consumer.assignment())
            return len(topics) == count

        await until(lambda: has(1), "the topic that is there")
        await filled(shared_cluster, prefix)
        await until(lambda: has(2), "and the one that came later")
    assert all(topic.startswith(prefix) for topic in topics)


async def test_ours_and_librdkafka_s_consumers_are_of_one_group(shared_cluster: Cluster) -> None:
    topic = await filled(shared_cluster, "both")
    ours = OurConsumer(topic, bootstrap=shared_cluster.bootstrap, group=topic, auto_offset_reset="earliest")
    async with ours:
        with closing(Reader(shared_cluster, topic, topic)) as theirs:

            async def is_shared() -> bool:
                await asyncio.gather(ours.poll(timeout_ms=200), theirs.poll())
                mine = {number for _, number in ours.assignment}
                return len(mine) == PARTITIONS // 2 and mine | theirs.owned == set(range(PARTITIONS))

            await until(is_shared, "they share the partitions")


async def test_its_members_outlive_the_coordinator(new_cluster: Callable[..., Cluster]) -> None:
    """Killed by -9: its slots go to another broker with all that the quorum knows of the group: the same members go on."""
    cluster = new_cluster()
    topic = await filled(cluster, "outlived")
    async with cluster.admin() as admin:
        with readers(cluster, topic, topic, count=2) as members:

            async def have_read(per_partition: int) -> bool:
                await asyncio.gather(*(member.poll() for member in members))
                read = members[0].read.keys() | members[1].read.keys()
                return read >= everything(per_partition) and all(member.owned for member in members)

            await until(lambda: have_read(PER_PARTITION), "everything is read")
            before = await admin.describe_group(topic)
            cluster.kill(before.coordinator)
            await fill(cluster, topic)
            await until(lambda: have_read(2 * PER_PARTITION), "what came since is read too")
            await asyncio.to_thread(members[0].consumer.commit, asynchronous=False)
            after = await admin.describe_group(topic)
            assert after.coordinator != before.coordinator
            assert {item.member_id for item in after.members} == {item.member_id for item in before.members}

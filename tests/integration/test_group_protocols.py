"""Consumers of one group as processes of their own: both group protocols, an assignor of one's own, kill -9, slow handlers,
and Kafka's client in the same group as ours."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.cluster import Cluster, clean_environment, until
from integration.load import send
from kafka import KafkaConsumer

from barnabas import sync
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer

PARTITIONS = 6
PER_PARTITION = 20
MEMBER = Path(__file__).with_name("group_member.py")
SESSION_MS = 3_000
LONG_SESSION_MS = 2_500  # of members that must not lose it: a machine that is busy may hold up a heartbeat for a second
PROTOCOLS: list[dict[str, Any]] = [
    {"group_protocol": "consumer", "assignor": "uniform"},
    {"group_protocol": "classic", "assignor": "cooperative-sticky"},
    {"group_protocol": "classic", "assignor": "range"},
    {"group_protocol": "classic", "assignor": "even-odd"},
]


class Member:
    """A process that reads; what it says is collected from its output as it comes."""

    def __init__(self, folder: Path, name: str, bootstrap: str, topic: str, **options: Any) -> None:
        self.path = folder / f"{name}.jsonl"
        with self.path.open("wb") as out, (folder / f"{name}.err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(MEMBER), bootstrap, topic, json.dumps(options)],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env=clean_environment(),
            )

    def said(self) -> Iterator[dict[str, Any]]:
        for line in self.path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)

    @property
    def owned(self) -> set[int]:
        found: set[int] = set()
        for item in self.said():
            found |= set(item.get("assigned", ()))
            found -= set(item.get("revoked", ())) | set(item.get("lost", ()))
        return found

    @property
    def read(self) -> set[tuple[int, int]]:
        return {(item["read"][0], item["read"][1]) for item in self.said() if "read" in item}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


async def filled(cluster: Cluster, topic: str) -> None:
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    await fill(cluster, topic)


async def fill(cluster: Cluster, topic: str) -> None:
    for number in range(PARTITIONS):
        await send(cluster.bootstrap, topic, [b"x"] * PER_PARTITION, partition=number)


def everything(times: int = 1) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(PER_PARTITION * times)}


def share_all(*members: Member) -> bool:
    """Each has something, and everything is somebody's, once."""
    owned = [number for member in members for number in member.owned]
    return sorted(owned) == list(range(PARTITIONS)) and all(member.owned for member in members)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda found: "-".join(found.values()))
async def test_members_are_killed_and_the_others_read_on(
    shared_cluster: Cluster, tmp_path: Path, protocol: dict[str, Any]
) -> None:
    topic = "killed-" + "-".join(protocol.values())
    await filled(shared_cluster, topic)
    options = {"group": topic, "session_timeout_ms": SESSION_MS, **protocol}
    members = [Member(tmp_path, f"m{n}", shared_cluster.bootstrap, topic, **options) for n in range(2)]
    try:
        await until(lambda: share_all(*members), "two members share the partitions")
        await until(lambda: members[0].read | members[1].read == everything(), "everything was read")
        members[0].kill()
        await fill(shared_cluster, topic)
        await until(lambda: members[1].owned == set(range(PARTITIONS)), "the other one has everything")
        await until(lambda: members[0].read | members[1].read == everything(2), "and has read it")
        members.append(Member(tmp_path, "m2", shared_cluster.bootstrap, topic, **options))
        await until(lambda: share_all(*members[1:]), "a newcomer gets its share")
    finally:
        for member in members:
            member.kill()


async def test_a_slow_handler_keeps_its_partitions(shared_cluster: Cluster, tmp_path: Path) -> None:
    """Each record takes longer than a whole session; heartbeats go on in the background."""
    topic = "slow"
    await filled(shared_cluster, topic)
    options = {"group": topic, "session_timeout_ms": LONG_SESSION_MS, "handler_ms": LONG_SESSION_MS + 500}
    member = Member(tmp_path, "slow", shared_cluster.bootstrap, topic, **options)
    try:
        await until(lambda: len(member.read) >= 3, "it has read for several sessions")
        assert [name for item in member.said() for name in item if name != "read"] == ["assigned"]
    finally:
        member.kill()


async def test_a_handler_that_blocks_does_not_stop_the_heartbeats_of_the_sync_consumer(shared_cluster: Cluster) -> None:
    topic = "blocking"
    await filled(shared_cluster, topic)
    told: list[str] = []

    consumers: list[sync.Consumer] = []

    def revoked(partitions: Iterable[TopicPartition]) -> None:
        consumers[0].commit(dict.fromkeys(partitions, 2))
        told.append("revoked")

    def read() -> int:
        options: dict[str, Any] = {
            "bootstrap": shared_cluster.bootstrap,
            "group": topic,
            "session_timeout_ms": LONG_SESSION_MS,
            "auto_offset_reset": "earliest",
            "on_assigned": lambda _: told.append("assigned"),
            "on_revoked": lambda partitions: revoked(partitions),
            "on_lost": lambda _: told.append("lost"),
        }
        count = 0
        with sync.Consumer(topic, **options) as consumer:
            consumers.append(consumer)
            for _ in consumer:
                time.sleep(LONG_SESSION_MS / 1000 + 0.5)  # The application's thread; the loop has one of its own.
                count += 1
                if count == 3:
                    break
            assert told == ["assigned"]
        return count

    assert await asyncio.to_thread(read) == 3
    assert told == ["assigned", "revoked"]
    async with shared_cluster.admin() as admin:
        committed = await admin.group_offsets(topic)
    assert {item.committed for item in committed.values()} == {2}, "a listener of the sync consumer commits"


async def test_our_consumer_and_kafka_s_are_of_one_classic_group(shared_cluster: Cluster) -> None:
    """kafka-python and the SDK join each other's group: either may lead, and both understand what the leader says."""
    topic = "mixed"
    await filled(shared_cluster, topic)
    ours = Consumer(
        topic,
        bootstrap=shared_cluster.bootstrap,
        group=topic,
        group_protocol="classic",
        assignor="range",
        auto_offset_reset="earliest",
    )
    async with ours:
        while len(ours.assignment) < PARTITIONS:
            await ours.poll(timeout_ms=200)
        theirs = await asyncio.to_thread(
            KafkaConsumer,
            topic,
            bootstrap_servers=shared_cluster.bootstrap.split(","),
            group_id=topic,
            auto_offset_reset="earliest",
        )
        try:
            half = PARTITIONS // 2

            async def is_shared() -> bool:
                await asyncio.gather(ours.poll(timeout_ms=200), asyncio.to_thread(theirs.poll, timeout_ms=200))
                mine, others = {number for _, number in ours.assignment}, theirs.assignment() or set()
                numbers = {item.partition for item in others}
                return len(mine) == len(numbers) == half and mine | numbers == set(range(PARTITIONS))

            await until(is_shared, "they share the partitions")
            await ours.unsubscribe()

            async def has_all() -> bool:
                await asyncio.to_thread(theirs.poll, timeout_ms=200)
                return len(theirs.assignment() or ()) == PARTITIONS

            await until(has_all, "Kafka's client leads now and has everything")
            await ours.subscribe(topic)
            await until(is_shared, "ours is back, and follows Kafka's leader")
        finally:
            await asyncio.to_thread(theirs.close)

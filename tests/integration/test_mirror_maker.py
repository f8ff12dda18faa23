"""MirrorMaker 2, unchanged, in both directions between two clusters: topics, records, offsets of groups, and no loops."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from integration import java_client
from integration.cluster import Cluster, until
from integration.load import read_all, send
from integration.programs import QUICK_JAVA, Program

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer

VERSION: Final = "4.1.1"
LIMIT_S: Final = 360.0
START_S: Final = 150.0  # of a JVM with seven connectors
COUNT: Final = 200

if java_client.find():
    pytest.skip(java_client.find(), allow_module_level=True)


def settings(east: Cluster, west: Cluster) -> dict[str, object]:
    both: dict[str, object] = {
        "clusters": "east, west",
        "east.bootstrap.servers": east.bootstrap,
        "west.bootstrap.servers": west.bootstrap,
        "topics": "orders.*",
        "groups": "billing.*",
        "replication.factor": 3,
        "checkpoints.topic.replication.factor": 3,
        "heartbeats.topic.replication.factor": 3,
        "offset-syncs.topic.replication.factor": 3,
        "offset.storage.replication.factor": 3,
        "status.storage.replication.factor": 3,
        "config.storage.replication.factor": 3,
        "refresh.topics.interval.seconds": 1,
        "refresh.groups.interval.seconds": 1,
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": 1,
        "emit.checkpoints.interval.seconds": 1,
        "offset.lag.max": 0,
        "consumer.auto.offset.reset": "earliest",
        "dedicated.mode.enable.internal.rest": "false",
    }
    return both | {"east->west.enabled": "true", "west->east.enabled": "true"}


@contextmanager
def mirroring(folder: Path, libraries: Path, values: dict[str, object]) -> Iterator[Program]:
    file = folder / "mirror.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
    quiet = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *QUICK_JAVA]
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    program = Program("mirror-maker", ["java", *quiet, "-cp", f"{libraries}/*", main, str(file)], folder / "programs")
    program.start()
    try:
        yield program
    finally:
        program.kill()


async def values_of(cluster: Cluster, topic: str) -> list[bytes]:
    """Up to the ends of its partitions."""
    found = await read_all(cluster.bootstrap, topic)
    return [value for records in found.values() for value in records.values()]


async def committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    async with cluster.admin() as admin:
        found = await admin.group_offsets(group, only_reachable=True)
    return {place: lag.committed for place, lag in found.items() if lag.has_committed}


@pytest.mark.timeout(LIMIT_S)
async def test_both_directions(new_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    libraries = java_client.fetch(tmp_path / "libraries", VERSION, "mirror.xml")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    east, west = new_cluster(3, name="east"), new_cluster(3, name="west")
    await asyncio.gather(east.ready(), west.ready())
    for cluster, name in ((east, b"east"), (west, b"west")):
        async with cluster.admin() as admin:
            await admin.create_topic("orders", partitions=2, replication_factor=3, configs={"retention.ms": "86400000"})
        await send(cluster.bootstrap, "orders", [b"%s-%d" % (name, number) for number in range(COUNT)])
    place = TopicPartition("orders", 0)
    async with Consumer("orders", bootstrap=east.bootstrap, group="billing", auto_commit=False) as consumer:
        while place not in consumer.assignment:
            await consumer.poll(timeout_ms=200)
        async with east.admin() as admin:
            end = (await admin.list_offsets("orders"))[place].offset
        # MirrorMaker translates an offset far behind the end to one that is lower; the end is translated exactly.
        await consumer.commit({place: end})
    with mirroring(tmp_path, libraries, settings(east, west)):
        for cluster, copy, name in ((west, "east.orders", b"east"), (east, "west.orders", b"west")):
            await _has_copies(cluster, copy, {b"%s-%d" % (name, number) for number in range(COUNT)})
            async with cluster.admin() as admin:
                configs = {entry.key: entry.value for entry in await admin.describe_configs(copy)}
                assert configs["retention.ms"] == "86400000"
                assert len((await admin.describe_topic(copy)).partitions) == 2
        copied = TopicPartition("east.orders", 0)

        async def is_translated() -> bool:
            return (await committed(west, "billing")).get(copied, -1) == end

        await until(is_translated, "the offset of the group is in the other cluster", timeout_s=START_S)
        await send(east.bootstrap, "orders", [b"late"])

        async def has_late() -> bool:
            return b"late" in await values_of(west, "east.orders")

        await until(has_late, "new records follow", timeout_s=START_S)
        for cluster in (east, west):
            async with cluster.admin() as admin:
                names = {name for name in await admin.list_topics() if "orders" in name}
            assert len(names) == 2, f"copies of copies: {names}"
        assert len(await values_of(east, "orders")) == COUNT + 1, "nothing has come back"


async def _has_copies(cluster: Cluster, topic: str, wanted: set[bytes]) -> None:
    async def are_there() -> bool:
        async with cluster.admin() as admin:
            if topic not in await admin.list_topics():
                return False
        return set(await values_of(cluster, topic)) >= wanted

    await until(are_there, f"{topic} is copied", timeout_s=START_S)
    found = await values_of(cluster, topic)
    assert len(found) == len(wanted), "each record once"

"""Topics on running brokers: retention, segments, deletion, growth, configuration, automatic creation."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.cluster import Cluster, full_isr, partitions_of, until
from integration.load import read_all, send

from barnabas.log.vocabulary.errors import BarnabasError, InvalidConfigError, UnknownTopicOrPartitionError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import EARLIEST
from barnabas.net.client.consumer.consumer import Consumer

Maker = Callable[..., Cluster]
RECORD = b"x" * 1_000


def segments(cluster: Cluster, topic: str, partition: int = 0) -> dict[int, list[Path]]:
    """The segment files of each broker that holds the partition."""
    folders = {node.node_id: node.data / f"{topic}-{partition}" for node in cluster.nodes}
    return {node_id: sorted(folder.glob("*.log")) for node_id, folder in folders.items() if folder.is_dir()}


async def test_segments_roll_and_retention_by_size_removes_them(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        configs = {"segment.bytes": "20000", "retention.bytes": "60000", "file.delete.delay.ms": "100"}
        await admin.create_topic("by-size", partitions=1, replication_factor=3, configs=configs)
        await send(shared_cluster.bootstrap, "by-size", [RECORD] * 300, batch_size=5_000)

        async def trimmed() -> bool:
            (start,) = (await admin.list_offsets("by-size", timestamp_ms=EARLIEST)).values()
            counts = [len(files) for files in segments(shared_cluster, "by-size").values()]
            return start.offset > 0 and len(counts) == 3 and all(1 < count <= 6 for count in counts)

        await until(trimmed, "old segments are gone on all replicas")

        async def read_between_two_removals() -> dict[int, bytes] | None:
            """More may go while it is read: what was removed during the writing was removed without what came after."""
            (before,) = (await admin.list_offsets("by-size", timestamp_ms=EARLIEST)).values()
            (found,) = (await read_all(shared_cluster.bootstrap, "by-size")).values()
            (after,) = (await admin.list_offsets("by-size", timestamp_ms=EARLIEST)).values()
            return found if before.offset == after.offset == min(found) else None

        stored = await until(read_between_two_removals, "the log begins where it is said to begin")
        assert list(stored) == list(range(min(stored), 300))


async def test_retention_by_time_and_its_change_on_a_running_topic(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("by-time", partitions=1, replication_factor=3, configs={"segment.bytes": "20000"})
        await send(shared_cluster.bootstrap, "by-time", [RECORD] * 100, batch_size=5_000)
        before = segments(shared_cluster, "by-time")
        assert all(len(files) > 3 for files in before.values())
        await admin.alter_config("by-time", {"retention.ms": "1000", "file.delete.delay.ms": "100"})
        entries = {entry.key: entry.value for entry in await admin.describe_configs("by-time")}
        assert entries["retention.ms"] == "1000"

        async def emptied() -> bool:
            (start,) = (await admin.list_offsets("by-time", timestamp_ms=EARLIEST)).values()
            return start.offset == 100 and all(
                len(files) == 1 for files in segments(shared_cluster, "by-time").values()
            )

        await until(emptied, "everything is too old")
        assert await send(shared_cluster.bootstrap, "by-time", [b"new"]) == [100]


async def test_a_wrong_change_of_configuration_changes_nothing(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("strict", partitions=1, replication_factor=3)
        with pytest.raises(InvalidConfigError, match=r"retention\.ms"):
            await admin.alter_config("strict", {"retention.mss": "5"})
        with pytest.raises(InvalidConfigError, match="soon"):
            await admin.alter_config("strict", {"segment.bytes": "30000", "retention.ms": "soon"})
        entries = {entry.key: entry for entry in await admin.describe_configs("strict")}
        assert entries["segment.bytes"].value != "30000"


async def test_min_insync_replicas_takes_effect_at_once(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("guarded", partitions=1, replication_factor=2)
        assert await send(shared_cluster.bootstrap, "guarded", [b"one"]) == [0]
        await admin.alter_config("guarded", {"min.insync.replicas": "2"})
        assert await send(shared_cluster.bootstrap, "guarded", [b"two"]) == [1]


async def test_a_deleted_topic_is_gone_from_every_disk_and_its_name_is_free(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("gone", partitions=3, replication_factor=3, configs={"file.delete.delay.ms": "100"})
        await send(shared_cluster.bootstrap, "gone", [b"old"])
        assert len(list(shared_cluster.folder.glob("*/data/gone-*"))) == 9
        await admin.delete_topic("gone")
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.describe_topic("gone")
        await until(lambda: not list(shared_cluster.folder.glob("*/data/gone-*")), "its folders are gone")
        await admin.create_topic("gone", partitions=1, replication_factor=3)
        assert await send(shared_cluster.bootstrap, "gone", [b"new"]) == [0]
    assert await read_all(shared_cluster.bootstrap, "gone") == {TopicPartition("gone", 0): {0: b"new"}}


async def test_partitions_are_added_under_a_running_consumer(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("growing", partitions=1, replication_factor=3)
        await send(shared_cluster.bootstrap, "growing", [b"before"])
        await admin.add_partitions("growing", 4)
        assert len(await partitions_of(admin, "growing")) == 4
        await full_isr(admin, ["growing"])
        with pytest.raises(BarnabasError, match="4"):
            await admin.add_partitions("growing", 2)
    assert await send(shared_cluster.bootstrap, "growing", [b"after"], partition=3) == [0]
    stored = await read_all(shared_cluster.bootstrap, "growing")
    assert stored == {TopicPartition("growing", 0): {0: b"before"}, TopicPartition("growing", 3): {0: b"after"}}


async def test_a_topic_is_made_when_it_is_first_written_to_unless_forbidden(
    shared_cluster: Cluster, new_cluster: Maker
) -> None:
    await shared_cluster.ready()
    assert await send(shared_cluster.bootstrap, "by-itself", [b"one"]) == [0]
    async with shared_cluster.admin() as admin:
        assert len((await partitions_of(admin, "by-itself"))[0].replicas) == 3
    strict = await new_cluster(1, auto_create_topics_enable="false").ready()
    with pytest.raises(UnknownTopicOrPartitionError, match="by-itself"):
        await send(strict.bootstrap, "by-itself", [b"one"], max_block_ms=1_000)
    async with strict.admin() as admin:
        assert await admin.list_topics() == []


async def test_deleted_records_are_gone_from_all_disks_and_stay_gone_with_the_next_leader(
    shared_cluster: Cluster,
) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("cut", partitions=1, replication_factor=3, configs={"segment.bytes": "20000"})
        await send(shared_cluster.bootstrap, "cut", [RECORD] * 100, batch_size=5_000)
        with pytest.raises(BarnabasError, match="committed up to offset 100"):
            await admin.delete_records("cut", 0, before_offset=101)
        command = [sys.executable, "-m", "barnabas", "topic", "delete-records", "cut", "--before", "70"]
        done = await asyncio.create_subprocess_exec(
            *command, "--bootstrap", shared_cluster.bootstrap, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await done.communicate()
        assert (done.returncode, out) == (0, b"cut-0 begins at offset 70 now\n"), err

        def trimmed() -> bool:
            firsts = [int(files[0].stem) for files in segments(shared_cluster, "cut").values()]
            leftovers = [path for node in shared_cluster.nodes for path in (node.data / "cut-0").glob("*.deleted")]
            return len(firsts) == 3 and all(50 < first <= 70 for first in firsts) and not leftovers

        await until(trimmed, "the segments below are gone on all replicas")
        leader = (await admin.describe_topic("cut")).partitions[0].leader
        await admin.elect_leader("cut", 0, target=(leader + 1) % 3)

        async def moved() -> bool:
            return (await admin.describe_topic("cut")).partitions[0].leader != leader

        await until(moved, "another broker leads")
        (start,) = (await admin.list_offsets("cut", timestamp_ms=EARLIEST)).values()
        assert start.offset == 70
        (stored,) = (await read_all(shared_cluster.bootstrap, "cut")).values()
        assert sorted(stored) == list(range(70, 100))


async def test_a_group_reads_a_topic_while_it_is_trimmed(shared_cluster: Cluster) -> None:
    """A consumer that is overtaken by retention goes on at the new start instead of standing still."""
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("overtaken", partitions=1, replication_factor=3, configs={"segment.bytes": "20000"})
        await send(shared_cluster.bootstrap, "overtaken", [RECORD] * 100, batch_size=5_000)
        async with Consumer(
            "overtaken", bootstrap=shared_cluster.bootstrap, group="slow", auto_offset_reset="earliest"
        ) as consumer:
            first: list[int] = []
            while not first:
                for records in (await consumer.poll(max_records=5)).values():
                    first += [record.offset for record in records]
            await admin.delete_records("overtaken", 0, before_offset=90)
            consumer.seek(TopicPartition("overtaken", 0), 5)
            later: list[int] = []
            while 99 not in later:
                for records in (await consumer.poll()).values():
                    later += [record.offset for record in records]
    assert first[0] == 0 and [offset for offset in later if offset >= 90] == list(range(90, 100))

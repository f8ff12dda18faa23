"""One broker of three runs out of disk: nothing is acknowledged falsely, reads and the others go on, and it comes back.

The disk is a small tmpfs, so these tests need root (as CI has).
"""

from collections.abc import Callable
from pathlib import Path

from integration.cluster import Cluster, full_isr, partitions_of, until
from integration.load import Load, read_all, send
from integration.small_disk import SmallDisk
from integration.wire import produce
from simulation.log_building import batch_of

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin

Maker = Callable[..., Cluster]
MIN_ISR_2 = {"min.insync.replicas": "2"}
POOR = 2  # the broker whose disk is small
CHUNK = b"x" * 100_000  # larger than what a page at a file's end still takes


async def test_a_full_data_disk_refuses_writes_and_nothing_else(
    mounts: Callable[[Path, int], SmallDisk], new_cluster: Maker, tmp_path: Path
) -> None:
    """The quorum's journal lies on another disk, so the broker stays: as leader it refuses, as follower it falls out; and
    when nobody makes room, somebody who has it leads instead."""
    data = tmp_path / "cluster" / str(POOR) / "data"
    disk = mounts(data, 16)
    mounts(data / "__cluster_metadata", 64)
    cluster = await new_cluster(3, replica_lag_time_max_ms="1500").ready()
    poor = cluster.nodes[POOR]
    process = poor.process
    async with cluster.admin() as admin:
        await admin.create_topic("led", assignment=[[POOR, 0, 1]], configs=MIN_ISR_2)
        await admin.create_topic("followed", assignment=[[0, 1, POOR]], configs=MIN_ISR_2)
        await send(cluster.bootstrap, "led", [b"%d" % number for number in range(10)])
        await send(cluster.bootstrap, "followed", [b"%d" % number for number in range(10)])
        disk.fill()
        size = poor.log_size()
        for _ in range(5):
            told = await produce((poor.host, poor.port), "led", batch_of(CHUNK))
            assert told.error == ErrorCode.KAFKA_STORAGE_ERROR
            assert "the disk is full" in told.message and "free space" in told.message
        assert await read_all(cluster.bootstrap, "led") == {
            TopicPartition("led", 0): {number: b"%d" % number for number in range(10)}
        }
        # It cannot follow, so it leaves the ISR, and acks=all is acknowledged by the other two.
        assert await send(cluster.bootstrap, "followed", [CHUNK] * 20, batch_size=150_000) == list(range(10, 30))

        async def is_out() -> bool:
            return set((await partitions_of(admin, "followed"))[0].isr) == {0, 1}

        await until(is_out, "every broker knows that it has left the ISR")  # its leader knew when it acknowledged
        complaints = [line for line in poor.log_since(size) if "No space left" in line]
        assert 1 <= len(complaints) <= 6, "\n".join(complaints)  # once for each partition and kind, not for each try

        async def handed_over() -> bool:
            return (await partitions_of(admin, "led"))[0].leader in (0, 1)

        await until(handed_over, "the leadership is handed to a broker with room")
        assert await send(cluster.bootstrap, "led", [CHUNK] * 5, batch_size=150_000) == list(range(10, 15))
        await until(lambda: _troubles(admin), "the folder is told")
        disk.free()
        await full_isr(admin, ["led", "followed"])
        assert await send(cluster.bootstrap, "led", [b"again"]) == [15]
        await until(lambda: _no_troubles(admin), "the folder is well again, by itself")
    stored = await read_all(cluster.bootstrap, "led")
    assert stored[TopicPartition("led", 0)][15] == b"again"
    assert poor.process is process and poor.is_running, "it came back by itself"


async def _troubles(admin: Admin) -> list[str]:
    brokers = (await admin.describe_cluster()).brokers
    return [f"data folder {folder.path} is {folder.state}" for item in brokers for folder in item.troubled_folders]


async def _no_troubles(admin: Admin) -> bool:
    return not await _troubles(admin)


async def test_a_disk_that_fills_up_under_load_loses_nothing(
    mounts: Callable[[Path, int], SmallDisk], new_cluster: Maker, tmp_path: Path
) -> None:
    """Here the quorum's journal lies on the full disk too. It must never be guessed at, so the broker may stop."""
    disk = mounts(tmp_path / "cluster" / str(POOR) / "data", 16)
    cluster = await new_cluster(3, replica_lag_time_max_ms="1500").ready()
    poor = cluster.nodes[POOR]
    async with cluster.admin() as admin:
        await admin.create_topic("led", assignment=[[POOR, 0, 1]], configs=MIN_ISR_2)
        await admin.create_topic("followed", assignment=[[0, 1, POOR]], configs=MIN_ISR_2)
        async with (
            Load(cluster.bootstrap, "led", partitions=1) as led,
            Load(cluster.bootstrap, "followed", partitions=1) as followed,
        ):
            await until(lambda: led.count > 300 and followed.count > 300, "the load runs")
            disk.fill()
            size = poor.log_size()
            before = followed.count

            async def noticed() -> bool:
                parts = [*await partitions_of(admin, "followed"), *await partitions_of(admin, "led")]
                return all(POOR not in item.isr or item.leader == POOR for item in parts)

            await until(noticed, "the poor broker is no in-sync follower")
            await until(lambda: followed.count > before + 300, "the others serve")
            disk.free()
            if not poor.is_running:
                assert any("No space left" in line for line in poor.log_since(size))
                cluster.start(POOR)
            count = led.count
            await full_isr(admin, ["led", "followed"])
            await until(lambda: led.count > count + 300, "writes to the partition that it led go on")
        assert not followed.failed and not led.failed
    led.check(await read_all(cluster.bootstrap, "led"))
    followed.check(await read_all(cluster.bootstrap, "followed"))

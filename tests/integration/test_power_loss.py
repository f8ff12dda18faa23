"""Power of all brokers is cut at the same moment, under load: with flush.messages=1 nothing that was acknowledged is lost.

Each broker has an ext4 of its own that is shut down without a flush, so these tests need root (as CI has).
"""

import asyncio
from pathlib import Path

import pytest
from faults.cluster import DISK_NEED, FaultCluster
from integration.cluster import full_isr, until
from integration.load import Load, read_all, send

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

TOPIC = "ledger"
ENOUGH = 200  # acknowledged records between two cuts
FLUSH_FIRST = {"min.insync.replicas": "2", "flush.messages": "1"}
# Not beside the campaign with power losses: a broker's copy of the mount table would keep the other cluster's disks mounted.
pytestmark = pytest.mark.xdist_group("power losses")


def cluster_with_disks(folder: Path) -> FaultCluster:
    cluster = FaultCluster(folder, needs=frozenset({DISK_NEED}))
    cluster.__enter__()
    if DISK_NEED in cluster.lacking:
        cluster.__exit__(None, None, None)
        pytest.skip(f"power cannot be cut here: {cluster.lacking[DISK_NEED]}")
    return cluster


async def started(cluster: FaultCluster) -> None:
    cluster.start()

    async def is_up() -> bool:
        try:
            async with cluster.admin() as admin:
                found = await admin.describe_cluster()
        except BarnabasError:
            return False
        return found.controller_id >= 0 and sum(not item.fenced for item in found.brokers) == len(cluster.brokers)

    await until(is_up, "all brokers are active")


async def create_topic(cluster: FaultCluster, name: str, configs: dict[str, str]) -> None:
    async with cluster.admin() as admin:
        await admin.create_topic(name, partitions=3, replication_factor=3, configs=configs)


def cut_power_of_all(cluster: FaultCluster) -> None:
    for broker in cluster.brokers:
        assert broker.disk is not None
        broker.disk.cut_power()
    cluster.kill_all()
    for broker in cluster.brokers:
        assert broker.disk is not None
        broker.disk.restore_power()


async def test_what_was_flushed_first_survives_the_loss_of_all_power(tmp_path: Path) -> None:
    cluster = cluster_with_disks(tmp_path / "cluster")
    try:
        await started(cluster)
        await create_topic(cluster, TOPIC, FLUSH_FIRST)
        async with Load(cluster.bootstrap, TOPIC, partitions=3, producers=3) as load:
            for _ in range(2):
                wanted = load.count + ENOUGH
                await until(lambda wanted=wanted: load.count >= wanted, "the load goes on")  # type: ignore[misc]
                await asyncio.to_thread(cut_power_of_all, cluster)
                cluster.start()
            wanted = load.count + ENOUGH
            await until(lambda: load.count >= wanted, "records are acknowledged again")
        assert not load.failed
        async with cluster.admin() as admin:
            await full_isr(admin, [TOPIC])
        load.check(await read_all(cluster.bootstrap, TOPIC))
    finally:
        cluster.__exit__(None, None, None)


async def test_acks_1_of_such_a_topic_survives_too_and_the_default_does_not_wait(tmp_path: Path) -> None:
    """The other half of the promise: without the setting, the very same cut does lose records (so the test can fail)."""
    cluster = cluster_with_disks(tmp_path / "cluster")
    try:
        await started(cluster)
        await create_topic(cluster, "flushed", FLUSH_FIRST)
        await create_topic(cluster, "cached", {"min.insync.replicas": "2"})
        values = [b"%d" % number for number in range(50)]
        async with cluster.admin() as admin:
            await full_isr(admin, ["flushed", "cached"])
        for topic, acks in (("cached", "all"), ("flushed", "1")):
            assert await send(cluster.bootstrap, topic, values, acks=acks) == list(range(50))
        await asyncio.to_thread(cut_power_of_all, cluster)
        await started(cluster)
        async with cluster.admin() as admin:
            await full_isr(admin, ["flushed", "cached"])
        stored = await read_all(cluster.bootstrap, "flushed")
        assert stored == {TopicPartition("flushed", 0): dict(enumerate(values))}
        assert len((await read_all(cluster.bootstrap, "cached")).get(TopicPartition("cached", 0), {})) < len(values)
    finally:
        cluster.__exit__(None, None, None)

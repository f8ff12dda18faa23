"""A cluster of an older version, from before feature level 2 or the last release, is upgraded broker by broker, and back, while
producers write: docs/upgrade.md."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from integration.cluster import Cluster, full_isr, until
from integration.load import Load, read_all, send
from integration.older_version import STOP_S, last_release, older_launcher, roll

from barnabas.log.vocabulary.access.quotas import QuotaEntity
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.local.local_cluster import LAUNCHER

pytestmark = pytest.mark.timeout(300)
Maker = Callable[..., Cluster]
OLD: Final = "25ed9851b5d05609143d6548bd0cf332af2bdbd3"
RELEASE: Final = last_release()
PARTITIONS: Final = 3


@pytest.fixture(scope="module")
def old_launcher(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Starts a broker of the older version."""
    return older_launcher(OLD, tmp_path_factory.mktemp("old"))


async def test_a_rolling_upgrade_and_downgrade_lose_nothing(new_cluster: Maker, old_launcher: tuple[str, ...]) -> None:
    await upgraded_and_back(new_cluster, old_launcher, knows_quotas=False)


@pytest.mark.skipif(RELEASE is None, reason="there is no release with a tag v... before this commit")
async def test_the_last_release_is_upgraded_and_goes_back(new_cluster: Maker, tmp_path: Path) -> None:
    assert RELEASE is not None
    await upgraded_and_back(new_cluster, older_launcher(RELEASE, tmp_path), knows_quotas=True)


async def upgraded_and_back(new_cluster: Maker, old_launcher: tuple[str, ...], *, knows_quotas: bool) -> None:
    """`knows_quotas`: does the older version?"""
    cluster = await new_cluster(3, launcher=old_launcher).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        await full_isr(admin, ["t"])
        await send(cluster.bootstrap, "t", [b"0:0:-1"])
        await admin.commit_offsets("readers", {TopicPartition("t", 0): 1})
    load = Load(cluster.bootstrap, "t", partitions=PARTITIONS)
    async with load:
        await roll(cluster, 0, LAUNCHER)
        if not knows_quotas:
            async with cluster.admin() as admin:
                with pytest.raises(BarnabasError):  # brokers of the older version could not read the record
                    await admin.quotas.alter(QuotaEntity(client_id="batch"), {"producer_byte_rate": 1e6})
        await roll(cluster, 0, old_launcher)  # and back: nothing has raised the feature level
        for node_id in (0, 1, 2):
            await roll(cluster, node_id, LAUNCHER)
        at_the_end = load.count
        await until(lambda: load.count > at_the_end, "producers go on")
    assert not load.failed and load.count > 100
    stored = await read_all(cluster.bootstrap, "t")
    load.check(stored)
    async with cluster.admin() as admin:
        assert (await admin.group_offsets("readers"))[TopicPartition("t", 0)].committed == 1
        await admin.quotas.alter(QuotaEntity(client_id="batch"), {"producer_byte_rate": 1e6})


async def test_after_a_newer_feature_was_used_an_older_broker_refuses_to_start(
    new_cluster: Maker, old_launcher: tuple[str, ...]
) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        await full_isr(admin, ["t"])
        await admin.quotas.alter(QuotaEntity(client_id="batch"), {"producer_byte_rate": 1e6})
        node = cluster.nodes[2]
        node.signal(signal.SIGTERM)
        await asyncio.to_thread(node.process.wait, STOP_S)
        node.launcher = old_launcher
        node.launch()
        await until(lambda: not node.is_running, "the older broker stops")
        assert "not known to this version" in node.log() or "feature level" in node.log()
        node.launcher = LAUNCHER
        node.launch()
        await cluster.ready()
        await full_isr(admin, ["t"])

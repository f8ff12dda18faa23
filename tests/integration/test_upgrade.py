"""A cluster of an older version is upgraded broker by broker, and back, while producers write: docs/upgrade.md.

There is no release yet, so the older version is a commit of the past, from before feature level 2. It runs as it was then,
with the packages of today.
"""

import asyncio
import io
import signal
import subprocess
import tarfile
from collections.abc import Callable
from typing import Final

import pytest
from integration.cluster import Cluster, full_isr, until
from integration.load import Load, read_all, send
from tidy.source_tree import ROOT

from barnabas.log.vocabulary.access.quotas import QuotaEntity
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.local_cluster import LAUNCHER

pytestmark = pytest.mark.timeout(300)
Maker = Callable[..., Cluster]
OLD: Final = "25ed9851b5d05609143d6548bd0cf332af2bdbd3"
STOP_S: Final = 45
PARTITIONS: Final = 3


def _archive() -> bytes:
    """Empty where the history was not cloned."""
    done = subprocess.run(
        ["git", "archive", OLD, "scripts/barnabas", "consumer_groups", "kraft", "log", "net"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else b""


@pytest.fixture(scope="module")
def old_launcher(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Starts a broker of the older version; its package is put together as setuptools would."""
    archive = _archive()
    if not archive:
        pytest.skip(f"this clone has no commit {OLD}")
    tree = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(tree)
    package = tree / "package" / "barnabas"
    (tree / "scripts/barnabas").rename(tree / "face")
    package.parent.mkdir()
    (tree / "face").rename(package)
    for name in ("consumer_groups", "kraft", "log", "net"):
        (tree / name).rename(package / name)
    return ("env", f"PYTHONPATH={package.parent}", *LAUNCHER)


async def roll(cluster: Cluster, node_id: int, launcher: tuple[str, ...]) -> None:
    """As docs/upgrade.md says: stop one broker, start it with the other version, wait until nothing is missing."""
    node = cluster.nodes[node_id]
    node.signal(signal.SIGTERM)
    assert await asyncio.to_thread(node.process.wait, STOP_S) == 0
    node.launcher = launcher
    node.launch()
    await cluster.ready()
    async with cluster.admin() as admin:
        await full_isr(admin, ["t"])


async def test_a_rolling_upgrade_and_downgrade_lose_nothing(new_cluster: Maker, old_launcher: tuple[str, ...]) -> None:
    cluster = await new_cluster(3, launcher=old_launcher).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        await full_isr(admin, ["t"])
        await send(cluster.bootstrap, "t", [b"0:0:-1"])
        await admin.commit_offsets("readers", {TopicPartition("t", 0): 1})
    load = Load(cluster.bootstrap, "t", partitions=PARTITIONS)
    async with load:
        await roll(cluster, 0, LAUNCHER)
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

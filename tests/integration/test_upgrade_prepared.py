"""A cluster is upgraded broker by broker, and one broker back, while transactions are prepared: none is lost or doubled, and
readers of committed records wait for none that is decided.

The older version is the first one that knows prepared transactions. Its records of them have fewer fields.
"""

from collections.abc import Callable
from typing import Final

import pytest
from integration.cluster import Cluster, full_isr
from integration.older_version import older_launcher, roll
from integration.prepared_decisions import PARTITIONS, Decisions

from barnabas.net.base.local.local_cluster import LAUNCHER

pytestmark = pytest.mark.timeout(600)
Maker = Callable[..., Cluster]
OLD: Final = "85071e5fdffbcd87460b6d952fae0a7e8d30741f"


async def test_prepared_transactions_survive_an_upgrade_and_a_broker_that_goes_back(
    new_cluster: Maker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    old_launcher = older_launcher(OLD, tmp_path_factory.mktemp("old"))
    cluster = await new_cluster(3, launcher=old_launcher).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        await full_isr(admin, ["t"])
    decisions = Decisions(cluster)
    await decisions.prepare("old-new", "old-mixed", "old-aborted")
    await roll(cluster, 0, LAUNCHER)
    await decisions.check()
    await decisions.decide("old-mixed", is_commit=True)
    await decisions.prepare("mixed-new", "mixed-given-up", "mixed-back")
    await roll(cluster, 1, LAUNCHER)
    await decisions.give_up("mixed-given-up")
    await decisions.decide("old-aborted", is_commit=False)
    await roll(cluster, 1, old_launcher)  # and back, while transactions wait
    await decisions.check()
    await decisions.decide("mixed-back", is_commit=True)
    for node_id in (1, 2):
        await roll(cluster, node_id, LAUNCHER)
    await decisions.check()
    await decisions.prepare("new-new")
    for name in ("old-new", "mixed-new", "new-new"):
        await decisions.decide(name, is_commit=True)
    await decisions.check()

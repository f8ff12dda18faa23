"""A controller is elected on slow disks, too: each vote and the first entry of a new leader wait for several flushes."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from faults.shim import why_not
from integration.cluster import Cluster, until
from integration.test_stalls import Shimmed, controller_of

Maker = Callable[..., Cluster]
SLOW: Final = {"sync_us": 300_000.0, "delay_us": 20_000.0}  # of every flush, and of every write
ELECTED_S: Final = 20.0

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(300)]


@pytest.mark.alone("an election on slow disks within 20 s")
async def test_two_voters_with_slow_disks_elect_a_controller(new_cluster: Maker, tmp_path: Path) -> None:
    cluster = await new_cluster().ready()
    shimmed = Shimmed(cluster, tmp_path)
    await shimmed.ready()
    killed = await controller_of(cluster)
    left = [node for node in cluster.nodes if node.node_id != killed]
    for shim in shimmed.shims:
        shim.order(**SLOW)
    cluster.kill(killed)

    async def leads() -> bool:
        """Its own entry is committed, and others see it."""
        return await controller_of(cluster) in [node.node_id for node in left]

    await until(leads, "a controller", timeout_s=ELECTED_S)
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=1, replication_factor=1)

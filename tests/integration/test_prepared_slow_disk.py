"""Transactions are prepared and decided while disks are slow and their coordinators are killed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from faults.shim import why_not
from integration.cluster import Cluster, full_isr
from integration.prepared_decisions import PARTITIONS, Decisions
from integration.test_stalls import Shimmed, controller_of

Maker = Callable[..., Cluster]
SLOW: Final = {"delay_us": 5_000.0, "sync_us": 80_000.0}  # of every write, and of every flush
TIMEOUT_MS: Final = 20_000  # of an open transaction; a slow broker takes seconds for one
COUNT: Final = 4  # at a time

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(300)]


async def test_prepared_transactions_on_slow_disks_whose_brokers_are_killed(new_cluster: Maker, tmp_path: Path) -> None:
    cluster = await new_cluster().ready()
    shimmed = Shimmed(cluster, tmp_path)
    await shimmed.ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        await full_isr(admin, ["t"])
    for shim in shimmed.shims:
        shim.order(**SLOW)
    decisions = Decisions(cluster)
    names = [f"slow-{number}" for number in range(COUNT)]
    await asyncio.gather(*(decisions.prepare(name, timeout_ms=TIMEOUT_MS) for name in names))
    await decisions.check()
    killed = await controller_of(cluster)
    cluster.kill(killed)  # it also coordinates some of them
    more = [f"killed-{number}" for number in range(COUNT)]
    await asyncio.gather(*(decisions.prepare(name, timeout_ms=TIMEOUT_MS) for name in more))
    await asyncio.gather(*(decisions.decide(name, is_commit=name != names[0]) for name in names))
    cluster.start(killed)
    await cluster.ready()
    await decisions.check()
    for name in more:
        await decisions.decide(name, is_commit=True)
    await decisions.check()

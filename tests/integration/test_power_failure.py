"""The power of all machines fails, and each disk has lost other writes: the longest log leads, whoever led before (KIP-966).

What a power failure leaves behind is made by hand while the brokers are down: another boot id, and logs without their ends.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from integration.cluster import Cluster, clean_environment, full_isr, partitions_of, until
from integration.load import read_all

from barnabas.net.client.producer.producer import Producer

COUNT = 60
TOPIC = "kept"


def segment(cluster: Cluster, node_id: int) -> Path:
    (found,) = (cluster.nodes[node_id].data / f"{TOPIC}-0").glob("*.log")
    return found


def lose(cluster: Cluster, node_id: int, share: float) -> None:
    """The machine starts anew, without the last part of the partition's log."""
    (cluster.nodes[node_id].data / ".barnabas_boot_id").write_text("boot.id=another\n")
    path = segment(cluster, node_id)
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * (1 - share)))


async def written(cluster: Cluster, *, replicas: int = 3) -> int:
    """Records in batches of their own, with acks=all; returns the leader."""
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, partitions=1, replication_factor=replicas, configs={"min.insync.replicas": "2"})
        await full_isr(admin, [TOPIC])
        leader = (await partitions_of(admin, TOPIC))[0].leader
    async with Producer(bootstrap=cluster.bootstrap, acks="all", compression="none") as producer:
        for number in range(COUNT):
            await (await producer.send(TOPIC, b"%d" % number))
    return leader


async def values(cluster: Cluster) -> list[int]:
    found = await read_all(cluster.bootstrap, TOPIC)
    return [int(value) for records in found.values() for _, value in sorted(records.items())]


@pytest.mark.parametrize("lossless", [False, True], ids=["all have lost something", "one has lost nothing"])
async def test_the_longest_log_leads_after_a_power_failure(new_cluster: Callable[..., Cluster], lossless: bool) -> None:
    cluster = await new_cluster().ready()
    leader = await written(cluster)
    short, long = (node.node_id for node in cluster.nodes if node.node_id != leader)
    cluster.kill(0, 1, 2)
    lose(cluster, leader, 0.9)
    lose(cluster, short, 0.5)
    lose(cluster, long, 0.0 if lossless else 0.1)
    cluster.start(0, 1, 2)
    await cluster.ready()
    kept = await values(cluster)
    assert kept == list(range(len(kept)))
    assert len(kept) == COUNT if lossless else COUNT * 0.8 <= len(kept) < COUNT
    async with cluster.admin() as admin:
        await full_isr(admin, [TOPIC])
        (partition,) = await partitions_of(admin, TOPIC)
    assert partition.unclean_elections == 1, "the loss is told"


async def test_an_empty_disk_does_not_lead_while_the_other_brokers_are_down(
    new_cluster: Callable[..., Cluster],
) -> None:
    """Broker A leads alone, dies, and comes back with a new disk, before B and C, which have nearly all records."""
    cluster = await new_cluster().ready()
    leader = await written(cluster)
    others = [node.node_id for node in cluster.nodes if node.node_id != leader]
    cluster.kill(0, 1, 2)
    for node_id in others:
        lose(cluster, node_id, 0.1 * node_id)
    lose(cluster, leader, 1.0)
    segment(cluster, leader).unlink()
    cluster.start(leader, others[0])

    async def is_leaderless() -> bool:
        async with cluster.admin() as admin:
            (found,) = await partitions_of(admin, TOPIC)
            return found.leader < 0

    await until(is_leaderless, "the partition has no leader")
    cluster.start(others[1])
    await cluster.ready()
    kept = await values(cluster)
    assert len(kept) >= COUNT * 0.75 and kept == list(range(len(kept)))


async def elect(cluster: Cluster, *more: str) -> "CompletedProcess[str]":
    command = [sys.executable, "-m", "barnabas", "partition", "elect", TOPIC, *more, "--bootstrap", cluster.bootstrap]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, env=clean_environment(), check=False
    )


async def test_an_operator_gives_up_what_a_lost_broker_has(new_cluster: Callable[..., Cluster]) -> None:
    """The partition has two replicas; the third broker holds the quorum together with the follower that returns."""
    cluster = await new_cluster().ready()
    leader = await written(cluster, replicas=2)
    refused = await elect(cluster, "0", "--accept-loss")
    assert refused.returncode == 1 and f"is led by broker {leader}" in refused.stderr
    assert "kept has no partition 7" in (await elect(cluster, "7")).stderr

    async with cluster.admin() as admin:
        await full_isr(admin, [TOPIC])
        (follower,) = (node_id for node_id in (await partitions_of(admin, TOPIC))[0].replicas if node_id != leader)
        await admin.alter_config(TOPIC, {"min.insync.replicas": "1"})
    cluster.kill(follower)

    async def has_left() -> bool:
        async with cluster.admin() as admin:
            return follower not in (await partitions_of(admin, TOPIC))[0].isr

    await until(has_left, "the follower is out of the ISR")
    cluster.kill(leader)
    cluster.start(follower)

    async def has_no_leader() -> bool:
        async with cluster.admin() as admin:
            return (await partitions_of(admin, TOPIC))[0].leader < 0

    await until(has_no_leader, "the partition waits for its last leader")
    shown = await elect(cluster, "0")
    assert shown.returncode == 0 and f"waits for one of the brokers {leader}." in shown.stdout
    done = await elect(cluster, "0", "--accept-loss")
    assert done.returncode == 0 and "is led by broker" in done.stdout, done.stderr
    assert await values(cluster) == list(range(COUNT))

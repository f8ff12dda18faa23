"""Somebody who can reach the quorum ports and is no voter: neither stops a process nor the cluster, nor stays on a disk."""

from collections.abc import Callable

from hostile.attack import Port
from hostile.quorum_strangers import append_entries, speak
from hostile.suite import addresses
from integration.cluster import Cluster

from barnabas.kraft.quorum.config import MAX_TERM

Maker = Callable[..., Cluster]


async def test_forged_terms_and_forged_leaders_change_nothing(new_cluster: Maker) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        before = await admin.describe_quorum()
        for victim, address in enumerate(addresses(cluster, Port.QUORUM)):
            for claimed in {0, 1, 2} - {victim}:
                for term in (MAX_TERM - 1, 2**63 - 2):
                    await speak(address, claimed, {"type": "stale_term", "term": term})
                await speak(address, claimed, append_entries(before.term))
        after = await admin.describe_quorum()
        assert (after.leader_id, after.term) == (before.leader_id, before.term)
        assert any("did not confirm at its own address" in node.log() for node in cluster.nodes)
    cluster.kill(0, 1, 2)
    cluster.start(0, 1, 2)
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", replication_factor=3)
        assert (await admin.describe_quorum()).term < before.term + 100

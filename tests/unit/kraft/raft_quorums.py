"""Simulated quorums for tests of single rules: one that runs, voters that are cut off, and what must hold at the end."""

from simulation.raft_cluster import SimulatedQuorum

from barnabas.kraft.quorum.config import (
    SnapshotPolicy,
)
from barnabas.kraft.raft.consensus.core import RaftCore


def running(voters: int = 3, policy: SnapshotPolicy | None = None) -> SimulatedQuorum:
    cluster = SimulatedQuorum(11, voters, policy or SnapshotPolicy(entries=10**9))
    cluster.start_all()
    cluster.commit()
    assert cluster.wait_until_equal()
    return cluster


def core_of(cluster: SimulatedQuorum, node_id: int) -> RaftCore:
    return cluster.nodes[node_id].quorum._started


def finish(cluster: SimulatedQuorum) -> None:
    assert not cluster.oracle.violations
    assert not cluster.loop.failures
    cluster.close()


def isolate(cluster: SimulatedQuorum, node_id: int, *, silent: bool = False) -> None:
    for other in cluster.ids:
        if other != node_id:
            cluster.net.cut(node_id, other, silent=silent)


def reunite(cluster: SimulatedQuorum, node_id: int) -> None:
    for other in cluster.ids:
        cluster.net.heal(node_id, other)


def all_linked(cluster: SimulatedQuorum) -> bool:
    return all(len(node.quorum._transport._links) == len(cluster.nodes) - 1 for node in cluster.nodes.values())

"""Quorums of one process are strangers to each other: each has its own clock, and pysyncobj's modules stay as they are."""

import pysyncobj.syncobj as syncobj
from simulation.raft_cluster import SimulatedQuorum
from unit.kraft.raft_quorums import finish

BEHIND_S = 1_000.0


def running(seed: int, began_s: float) -> SimulatedQuorum:
    cluster = SimulatedQuorum(seed, 3)
    cluster.loop.run_for(began_s)
    cluster.start_all()
    cluster.commit()
    assert cluster.wait_until_equal()
    return cluster


def test_two_quorums_with_different_clocks_live_in_one_process() -> None:
    """Each one heartbeats, commits and elects by its own clock while the other one's shows another time."""
    early = running(1, 0.0)
    late = running(2, BEHIND_S)
    assert late.loop.time() - early.loop.time() > BEHIND_S / 2
    terms = [cluster.nodes[cluster.wait_for_leader()].quorum.leadership.term for cluster in (early, late)]
    for cluster, term in zip((early, late, early), (*terms, terms[0]), strict=True):
        cluster.loop.run_for(5.0)  # many heartbeats: a leader that sends none is deposed
        assert cluster.nodes[cluster.wait_for_leader()].quorum.leadership.term == term
        cluster.commit()
    for cluster in (late, early):
        cluster.kill(cluster.wait_for_leader())
        cluster.commit()
        finish(cluster)


def test_an_engine_changes_nothing_in_pysyncobj() -> None:
    before = dict(vars(syncobj)), dict(vars(syncobj.SyncObj))
    finish(running(3, 0.0))
    assert (dict(vars(syncobj)), dict(vars(syncobj.SyncObj))) == before

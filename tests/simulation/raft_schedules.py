"""A directed schedule of three voters, for a bug that random faults do not find: see `isr_schedules`."""

from .raft_cluster import SimulatedQuorum


def run_vote_schedule(seed: int) -> list[str]:
    """One voter elects another and loses its power at once; the third, who has heard nothing of that term, asks for its vote in
    the same term. Returns what was violated."""
    cluster = SimulatedQuorum(seed, 3)
    cluster.start_all()
    cluster.commit()
    former = cluster.wait_for_leader()
    cluster.loop.run_for(cluster.rng.uniform(0.0, 0.5))
    others = [node_id for node_id in cluster.ids if node_id != former]
    for node_id in others:
        cluster.net.cut(former, node_id, silent=True)
    leads = cluster.loop.run_until(lambda: cluster.leader in others, 10.0)
    assert leads, "the others elected nobody"
    elected = cluster.leader
    assert elected is not None
    (elector,) = (node_id for node_id in others if node_id != elected)
    cluster.net.cut(elected, elector, silent=True)  # before it has heard the leader that it elected
    cluster.kill(elector, power=True)
    cluster.loop.run_for(cluster.rng.uniform(0.0, 0.5))
    cluster.start(elector)
    cluster.net.heal(former, elector)
    leads = cluster.loop.run_until(lambda: cluster.leader not in (None, elected), 10.0)
    cluster.net.heal(former, elected)
    cluster.net.heal(elected, elector)
    cluster.commit()
    cluster.close()
    return cluster.oracle.violations

"""Leadership that is handed over: on demand, and by leaders that must not lead."""

from simulation.raft_cluster import TIMING
from unit.kraft.raft_quorums import all_linked, core_of, finish, isolate, running


def test_leadership_is_handed_over_on_demand() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    assert cluster.loop.run_until(lambda: all_linked(cluster), 5.0)
    cluster.commit()
    assert cluster.wait_until_equal()
    target = next(n for n in cluster.ids if n != leader)
    assert not cluster.nodes[target].quorum.transfer_leadership(leader)
    assert cluster.nodes[leader].quorum.transfer_leadership(target)
    assert cluster.loop.run_until(lambda: cluster.leader == target, 0.2)
    cluster.commit()
    finish(cluster)


def test_a_leader_that_must_not_lead_hands_over_at_once() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    assert cluster.loop.run_until(lambda: all_linked(cluster), 5.0)
    cluster.nodes[leader].quorum.set_may_lead(False)
    assert cluster.loop.run_until(lambda: cluster.leader not in (None, leader), 0.2)
    cluster.loop.run_for(5.0)
    assert cluster.leader != leader
    cluster.commit()
    finish(cluster)


def test_a_leader_that_must_not_lead_follows_when_nobody_takes_over_in_time() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    assert cluster.loop.run_until(lambda: all_linked(cluster), 5.0)
    best, other = sorted(
        (n for n in cluster.ids if n != leader), key=lambda n: (-core_of(cluster, leader).engine.match_of(n), n)
    )
    for node_id in (leader, best):
        cluster.nodes[node_id].quorum.set_may_lead(False)
    assert not cluster.loop.run_until(lambda: cluster.leader == best, 0.5), "it was asked to lead, and must not"
    assert cluster.loop.run_until(lambda: cluster.leader == other, 3.0)
    cluster.commit()
    finish(cluster)


def test_voters_that_must_not_lead_elect_nobody_and_may_lead_again() -> None:
    cluster = running()
    cluster.wait_for_leader()
    for node in cluster.nodes.values():
        node.quorum.set_may_lead(False)
    cluster.loop.run_for(5.0)
    assert cluster.leader is None
    cluster.nodes[1].quorum.set_may_lead(True)
    assert cluster.loop.run_until(lambda: cluster.leader == 1, 2.0)
    cluster.commit()
    finish(cluster)


def test_the_only_voter_leads_whatever_it_is_told() -> None:
    cluster = running(1)
    cluster.nodes[0].quorum.set_may_lead(False)
    cluster.loop.run_for(3.0)
    assert cluster.leader == 0
    cluster.commit()
    finish(cluster)


def test_what_a_leader_appended_in_the_step_in_which_it_gives_up_is_written_at_once() -> None:
    """No tick, and no message of the next leader, has to come before."""
    cluster = running()
    leader_id = cluster.wait_for_leader()
    leader = core_of(cluster, leader_id)
    isolate(cluster, leader_id)
    assert cluster.loop.run_until(lambda: not leader.formation.peers, TIMING.heartbeat_s)
    assert not leader.hand_over.begin(cluster.loop.time()), "there is no other voter"
    written = leader.journal.last_index
    leader.elections.may_lead = False
    cluster.append(leader_id)
    leader.step()
    assert not leader.engine.is_leader and leader.journal.last_index == written + 1
    assert cluster.loop.run_until(lambda: leader.journal.durable_index == written + 1, cluster.fsync_s)
    finish(cluster)

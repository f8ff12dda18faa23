"""Forming a cluster without a format step, and blank voters that may have forgotten something."""

import logging

import pytest
from simulation.raft_cluster import SimulatedQuorum, run_after_formation
from unit.kraft.raft_quorums import core_of

from barnabas.kraft.quorum.formation import Formation, VoterState
from barnabas.kraft.raft.protocol.messages import AppendReply, Welcome


def formed(voters: int = 3) -> SimulatedQuorum:
    cluster = SimulatedQuorum(7, voters)
    cluster.start_all()
    cluster.commit()
    assert cluster.wait_until_equal()
    return cluster


def wiped(cluster: SimulatedQuorum, *node_ids: int) -> None:
    for node_id in node_ids:
        cluster.kill(node_id)
        cluster.disks[node_id].wipe()


@pytest.mark.parametrize("voters", [1, 3, 5])
def test_new_voters_form_a_cluster_at_once(voters: int) -> None:
    cluster = SimulatedQuorum(1, voters)
    cluster.start_all()
    began = cluster.loop.time()
    assert cluster.wait_for_leader() == 0
    assert cluster.loop.time() - began < 0.3
    assert cluster.loop.run_until(lambda: not any(n.quorum.is_blank for n in cluster.nodes.values()), 1.0)
    cluster.close()


def test_at_a_cold_start_the_lowest_voter_leads_without_a_timeout() -> None:
    cluster = formed()
    for node_id in cluster.ids:
        cluster.kill(node_id)
    began = cluster.loop.time()
    cluster.start_all()
    assert cluster.wait_for_leader() == 0
    assert cluster.loop.time() - began < 0.3
    cluster.close()


@pytest.mark.parametrize("seed", [26, 32, 81, 87])
def test_a_voter_that_was_formed_while_it_dialed_counts(seed: int) -> None:
    """Its hello called it blank: a peer that led later counted nothing of it, and gave up."""
    run_after_formation(seed)


def test_two_of_three_new_voters_do_not_form_a_cluster() -> None:
    cluster = SimulatedQuorum(1, 3)
    cluster.start(0)
    cluster.start(1)
    cluster.loop.run_for(10.0)
    assert cluster.leader is None
    assert cluster.nodes[0].quorum.is_blank
    cluster.start(2)
    cluster.commit()
    cluster.close()


def test_a_wiped_voter_learns_first_and_then_takes_part() -> None:
    cluster = formed()
    kept = [cluster.commit() for _ in range(5)]
    wiped(cluster, 2)
    node = cluster.start(2)
    assert node.quorum.is_blank
    assert cluster.loop.run_until(lambda: not node.quorum.is_blank, 5.0)
    assert {command for _, command in node.listener.state} >= set(kept)
    cluster.kill(cluster.wait_for_leader())
    cluster.commit()
    cluster.close()


def test_a_wiped_voter_does_not_count_for_a_majority() -> None:
    cluster = formed()
    command = cluster.commit()
    wiped(cluster, 2)
    cluster.kill(1)
    cluster.start(2)
    cluster.loop.run_for(10.0)
    assert cluster.leader is None
    assert cluster.nodes[2].quorum.is_blank
    cluster.start(1)
    cluster.commit()
    assert cluster.wait_until_equal()
    assert command in {known for _, known in cluster.nodes[2].listener.state}
    cluster.close()


def test_two_wiped_voters_of_three_never_form_a_new_cluster(caplog: pytest.LogCaptureFixture) -> None:
    cluster = formed()
    cluster.commit()
    wiped(cluster, 0, 1)
    with caplog.at_level(logging.WARNING):
        cluster.start(0)
        cluster.start(1)
        cluster.loop.run_for(60.0)
    assert cluster.leader is None
    assert cluster.nodes[0].quorum.is_blank
    complaints = [r.getMessage() for r in caplog.records if "a majority has lost its data" in r.getMessage()]
    assert 2 <= len(complaints) <= 6
    cluster.close()


def test_a_leader_whose_other_voters_come_back_wiped_commits_nothing_and_gives_up() -> None:
    """They return before it misses them; its own copy alone is no majority."""
    cluster = formed()
    leader = cluster.wait_for_leader()
    node, others = cluster.nodes[leader], [node_id for node_id in cluster.ids if node_id != leader]
    core = core_of(cluster, leader)
    assert cluster.loop.run_until(
        lambda: core.engine.commit_index == core.journal.last_index, 5.0
    )  # no answer is under way
    committed = core.engine.commit_index
    wiped(cluster, *others)
    for other in others:
        cluster.start(other)
    assert cluster.loop.run_until(lambda: len(core_of(cluster, leader).formation.peers) == 2, 1.0, every_s=0.0005)
    assert node.quorum.leadership.is_self, "it counts, once at least, with nobody whose copies count"
    cluster.loop.run_for(5.0)
    assert not node.fatal and not node.quorum.leadership.is_self
    assert core_of(cluster, leader).engine.commit_index == committed
    cluster.close()


def test_blank_peers_do_not_count() -> None:
    formation = Formation(0, frozenset(range(5)), blank=False)
    peers = [1, 2, 3, 4]
    assert formation.counting(peers) == peers and formation.peers_without_barrier() == []
    formation.peer_connected(1, VoterState.VOTER)
    formation.peer_connected(3, VoterState.BLANK)
    formation.peer_connected(2, VoterState.BLANK)
    assert formation.counting(peers) == [1, 4] and formation.peers_without_barrier() == [2, 3]
    formation.peer_joined(2)
    formation.peer_disconnected(3)
    assert formation.counting(peers) == peers and formation.peers_without_barrier() == []


def test_a_wiped_old_voter_cannot_help_a_stale_leader_commit() -> None:
    """Leader 0 is cut off; 1 and 2 commit; 2 is wiped and comes back on 0's side only. It must not help 0."""
    cluster = formed(3)
    leader = cluster.wait_for_leader()
    ally, victim = [n for n in cluster.ids if n != leader]
    cluster.net.cut(leader, ally, silent=False)
    cluster.net.cut(leader, victim, silent=False)
    cluster.loop.run_until(lambda: cluster.leader not in (None, leader), 5.0)
    command = cluster.commit()
    wiped(cluster, victim)
    cluster.net.cut(ally, victim, silent=False)
    cluster.net.heal(leader, victim)
    cluster.start(victim)
    cluster.loop.run_for(10.0)
    assert cluster.leader is None or cluster.leader == ally
    cluster.net.heal(leader, ally)
    cluster.net.heal(ally, victim)
    cluster.commit()
    assert cluster.wait_until_equal()
    assert command in {known for _, known in cluster.nodes[victim].listener.state}
    assert not cluster.oracle.violations
    cluster.close()


@pytest.mark.parametrize("seed", range(6))
def test_forming_survives_kills_in_the_middle_of_it(seed: int) -> None:
    cluster = SimulatedQuorum(seed, 3)
    for round_ in range(8):
        cluster.start_all()
        cluster.loop.run_for(0.002 * (round_ + 1) + 0.001 * seed)
        for node_id in cluster.ids:
            cluster.kill(node_id, power=True)
        cluster.loop.run_for(0.1)
    cluster.start_all()
    cluster.commit()
    assert cluster.wait_until_equal()
    cluster.close()


def test_an_answer_of_a_former_connection_does_not_count() -> None:
    formation = Formation(0, frozenset({0, 1, 2}), blank=True)
    formation.peer_connected(1, VoterState.BLANK)
    formation.peer_connected(2, VoterState.BLANK)
    assert formation.open_round(1.0, nonce=11)
    assert not formation.answered(1, 11, VoterState.BLANK)
    formation.peer_disconnected(1)
    assert not formation.answered(2, 11, VoterState.BLANK)


def test_the_word_that_all_were_blank_counts_only_for_who_answered() -> None:
    formation = Formation(0, frozenset({0, 1, 2}), blank=True)
    formation.peer_connected(1, VoterState.BLANK)
    formation.answer(1, 5, VoterState.BLANK)
    assert not formation.told_formed(1, 6)
    assert not formation.told_formed(2, 5)
    assert formation.told_formed(1, 5)
    formation.peer_disconnected(1)
    assert not formation.told_formed(1, 5)


def test_peers_of_another_cluster_are_refused_by_both_names(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedQuorum(3, 2)
    cluster.start(0, cluster_id="here")
    with caplog.at_level(logging.WARNING):
        cluster.start(1, cluster_id="there")
        cluster.loop.run_for(3.0)
    lines = [r.getMessage() for r in caplog.records if "belongs to cluster" in r.getMessage()]
    assert any("here" in line and "there" in line for line in lines)
    assert len(lines) <= 2
    assert cluster.nodes[0].quorum.connected_voters == []
    cluster.close()


def test_what_a_blank_voter_learned_in_an_earlier_term_of_this_leader_is_no_reason_to_welcome_it() -> None:
    """Another leader may have replaced those entries since, and their indexes say nothing about the barrier of this term."""
    cluster = formed()
    core = core_of(cluster, cluster.wait_for_leader())
    counted, blank = core.electorate.other_ids
    sent = list[object]()
    core.leader._transport.send = lambda _peer_id, message: not sent.append(message)  # type: ignore[assignment, func-returns-value]
    core.formation.peer_connected(blank, VoterState.BLANK)
    core.leader.peer_connected(blank)
    core.leader.raise_barriers()

    def replies(peer_id: int, next_index: int, *, is_success: bool) -> None:
        reply = AppendReply(term=core.engine.term, next_index=next_index, is_reset=False, is_success=is_success)
        core.leader.on_append_reply(peer_id, reply)

    replies(blank, core.journal.last_index + 101, is_success=True)
    core.elections.step_down(core.engine.term + 1)
    core.elections._campaign(asked=False)
    core.elections.become_leader()
    core.leader.raise_barriers()
    barrier = core.formation.barriers[blank]
    core.journal.sync_soon()
    assert cluster.loop.run_until(lambda: core.journal.durable_index >= barrier, 1.0)
    replies(counted, barrier + 1, is_success=True)
    core.leader.commit_what_a_majority_has()
    assert core.engine.commit_index >= barrier
    replies(blank, 1, is_success=False)  # a sign of life
    assert not [message for message in sent if isinstance(message, Welcome)]
    replies(blank, barrier + 1, is_success=True)
    assert [message.index for message in sent if isinstance(message, Welcome)] == [barrier]
    cluster.close()

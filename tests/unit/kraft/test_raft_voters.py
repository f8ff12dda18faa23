"""The rules of changing voters, one by one, and the configuration as journal and snapshots hold it."""

import pytest
from simulation.raft_changes import ChangingQuorum
from simulation.raft_cluster import TIMING
from unit.kraft.raft_quorums import core_of

from barnabas.kraft.quorum.config import MAX_APPLIED_PER_STEP
from barnabas.kraft.quorum.journal_format import NO_OP
from barnabas.kraft.quorum.snapshot_format import pack_snapshot, unpack_snapshot
from barnabas.kraft.quorum.voters import BOOTSTRAP_INDEX, MEMBERSHIP, Membership, VoterSet, decode_voters, encode_voters
from barnabas.kraft.raft.consensus.voter_changes import LEARNER_LAPSES_AFTER_S
from barnabas.log.vocabulary.errors import InvalidRequestError, NotControllerError
from barnabas.log.vocabulary.node_address import NodeAddress


def voter(node_id: int) -> NodeAddress:
    return NodeAddress(node_id=node_id, host="sim", port=node_id)


def voters(*node_ids: int) -> tuple[NodeAddress, ...]:
    return tuple(voter(node_id) for node_id in node_ids)


def test_a_configuration_is_written_as_ever() -> None:
    """It lies in journals and snapshots: these are the bytes of version 0.1.0."""
    listed = ((1, "a", 9093), (200, "n\u00e4me", 65535), (2**31 - 1, "x" * 40, 0))
    given = tuple(NodeAddress(node_id=node_id, host=host, port=port) for node_id, host, port in listed)
    written = "939301a161cd238593ccc8a56ec3a46d65cdffff93ce7fffffffd928" + "78" * 40 + "00"
    assert encode_voters(given).hex() == written
    assert decode_voters(bytes.fromhex(written), 7) == VoterSet(voters=given, index=7)


def entry(index: int, *node_ids: int) -> tuple[bytes, int, int]:
    return (MEMBERSHIP + encode_voters(voters(*node_ids)), index, 1)


def running(count: int = 3, others: int = 2) -> ChangingQuorum:
    cluster = ChangingQuorum(5, count, others=others)
    cluster.start_all()
    cluster.commit()
    cluster.loop.run_for(0.5)  # everybody has joined
    return cluster


def change(cluster: ChangingQuorum, node_id: int, *, add: bool) -> None:
    def is_done() -> bool:
        leader = cluster.leader
        if leader is None:
            return False
        quorum = cluster.nodes[leader].quorum
        try:
            return (quorum.add_voter(voter(node_id)) if add else quorum.remove_voter(node_id)).done
        except NotControllerError:
            return False

    assert cluster.loop.run_until(is_done, 10.0)


def finish(cluster: ChangingQuorum) -> None:
    assert not cluster.oracle.violations
    assert not cluster.loop.failures
    cluster.close()


def test_a_configuration_counts_from_its_append_and_no_longer_when_it_is_truncated() -> None:
    membership = Membership(VoterSet(voters=voters(0, 1, 2)), [])
    assert membership.appended(entry(5, 0, 1, 2, 3))
    assert membership.current.majority == 3
    assert membership.at(4).ids == {0, 1, 2}
    assert membership.truncated(5)
    assert membership.current.ids == {0, 1, 2}
    assert not membership.truncated(2)


@pytest.mark.parametrize(("index", "left"), [(4, 0), (5, 0), (6, 5), (9, 5), (10, 9), (11, 9)])
def test_a_truncation_takes_the_configurations_behind_it_alone(index: int, left: int) -> None:
    membership = Membership(VoterSet(voters=voters(0, 1, 2)), [entry(5, 0, 1), entry(9, 0)])
    assert membership.truncated(index) == (index <= 9)
    assert membership.current.ids == {0: {0, 1, 2}, 5: {0, 1}, 9: {0}}[left]


def test_a_snapshot_without_a_configuration_leaves_the_first_one_in_force() -> None:
    membership = Membership(VoterSet(voters=voters(0, 1, 2)), [entry(5, 0, 1)])
    membership.restored(None, [])
    assert membership.current.ids == {0, 1, 2}
    membership.restored(VoterSet(voters=voters(0, 3), index=9), [entry(11, 0)])
    assert membership.current.ids == {0} and membership.at(10).ids == {0, 3}


def test_a_configuration_is_forgotten_when_a_later_step_has_applied_the_next_one() -> None:
    """A step applies some of the entries only: the last ones are applied without another commit."""
    cluster = running(1, others=0)
    core = core_of(cluster, 0)
    before, term = core.journal.last_index, core.engine.term
    for index in range(before + 1, before + MAX_APPLIED_PER_STEP + 1):
        core.journal.add(NO_OP, index, term)
    last = before + MAX_APPLIED_PER_STEP + 1
    command = MEMBERSHIP + encode_voters(voters(0))
    core.journal.add(command, last, term)
    assert core.electorate.membership.appended((command, last, term))
    core.journal.sync_soon()
    assert cluster.loop.run_until(lambda: core.applier.applied_index == last, 5.0)
    assert core.electorate.membership.at(before).index == last, "nothing needs the former one any more"
    finish(cluster)


def test_no_voter_is_a_peer_of_itself() -> None:
    cluster = running()
    for node_id in range(3):
        core = core_of(cluster, node_id)
        core.links.changed()
        assert core.links._linked == set(core.electorate.other_ids) == {0, 1, 2} - {node_id}
    finish(cluster)


def test_whoever_is_being_removed_stays_linked_until_it_is_committed() -> None:
    membership = Membership(VoterSet(voters=voters(0, 1, 2)), [entry(5, 0, 1)])
    assert membership.reachable(4).keys() == {0, 1, 2}
    assert membership.reachable(5).keys() == {0, 1}


def test_a_snapshot_holds_the_configuration_of_its_last_entry() -> None:
    in_force = VoterSet(voters=voters(1, 4), index=7)
    found = unpack_snapshot(pack_snapshot((b"\0", 9, 2), (b"\0", 8, 2), [b"state"], in_force))
    assert found.voters == in_force
    assert list(found.chunks()) == [b"state"]
    assert unpack_snapshot(pack_snapshot((b"\0", 9, 2), (b"\0", 8, 2), [])).voters is None


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x90", b"\x91\x01", encode_voters(())])
def test_what_is_no_configuration_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="entry 3"):
        decode_voters(packed, 3)


def test_a_restart_uses_the_stored_voters_whatever_server_properties_say() -> None:
    cluster = running()
    change(cluster, 3, add=True)
    change(cluster, 0, add=False)
    cluster.commit()
    for node_id in cluster.ids:
        cluster.kill(node_id, power=True)
    cluster.start_all()
    cluster.commit()
    assert cluster.newest_voters() == [1, 2, 3]
    assert cluster.leader in (1, 2, 3)
    finish(cluster)


def test_the_first_leader_writes_the_configuration_of_server_properties_into_the_journal() -> None:
    """From then on, another server.properties changes nothing, even if no voter was ever added or removed."""
    cluster = running()
    memberships = [core.electorate.membership for core in (core_of(cluster, node_id) for node_id in cluster.bootstrap)]
    assert all(item.current.index > BOOTSTRAP_INDEX and item.current.ids == {0, 1, 2} for item in memberships)
    finish(cluster)


def test_a_learner_counts_for_nothing() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    for other in cluster.ids:
        if other not in (leader, 3):
            cluster.net.cut(leader, other, silent=True)
    core = cluster.nodes[leader].quorum._started
    core.changes.add_voter(voter(3), cluster.loop.time())
    before = core.engine.commit_index
    cluster.append(leader)
    cluster.loop.run_for(TIMING.leader_fallback_s * 2)
    assert core.engine.commit_index == before
    assert not core.engine.is_leader
    finish(cluster)


def test_the_leader_hands_over_before_it_is_removed() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    began = cluster.loop.time()
    change(cluster, leader, add=False)
    assert cluster.loop.time() - began < TIMING.election_min_s
    assert cluster.leader != leader
    assert leader not in cluster.newest_voters()
    cluster.commit()
    finish(cluster)


def test_what_is_refused_names_its_reason() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    dead, alive = [node for node in (0, 1, 2) if node != leader]
    quorum = cluster.nodes[leader].quorum
    quorum.add_voter(NodeAddress(node_id=9, host="sim", port=9))
    with pytest.raises(InvalidRequestError, match="node 9 is being added"):
        quorum.add_voter(voter(3))
    quorum.remove_voter(9)
    cluster.kill(dead)
    cluster.loop.run_for(TIMING.leader_fallback_s * 1.5)
    with pytest.raises(InvalidRequestError, match=rf"\[{dead}\] cannot be reached"):
        quorum.remove_voter(alive)
    change(cluster, dead, add=False)
    with pytest.raises(NotControllerError):
        cluster.nodes[alive].quorum.remove_voter(leader)
    finish(cluster)


def test_a_learner_that_nobody_asks_for_any_more_makes_way_for_another_one() -> None:
    cluster = running()
    quorum = cluster.nodes[cluster.wait_for_leader()].quorum
    quorum.add_voter(NodeAddress(node_id=9, host="sim", port=9))
    cluster.loop.run_for(LEARNER_LAPSES_AFTER_S - 1)
    with pytest.raises(InvalidRequestError, match="node 9 is being added"):
        quorum.add_voter(voter(3))
    cluster.loop.run_for(2.0)
    assert not quorum.add_voter(voter(3)).done
    finish(cluster)


def test_one_change_at_a_time() -> None:
    """Two uncommitted ones could have majorities without a common voter."""
    cluster = running()
    leader = cluster.wait_for_leader()
    first, second = [node for node in (0, 1, 2) if node != leader]
    for other in (first, second):
        cluster.net.cut(leader, other, silent=True)
    quorum, membership = cluster.nodes[leader].quorum, core_of(cluster, leader).electorate.membership
    assert not quorum.remove_voter(first).done
    assert membership.current.ids == {leader, second}
    assert "must be committed first" in quorum.remove_voter(second).state
    assert membership.current.ids == {leader, second}
    finish(cluster)


def test_what_a_removed_voter_had_on_its_disk_counts_no_longer() -> None:
    """It may come back with an empty one."""
    cluster = running()
    leader = cluster.wait_for_leader()
    gone = next(node for node in (0, 1, 2) if node != leader)
    engine = core_of(cluster, leader).engine
    assert engine.match_of(gone) > 0
    change(cluster, gone, add=False)
    cluster.loop.run_for(0.5)
    assert cluster.leader == leader and engine.match_of(gone) == 0
    finish(cluster)


def test_the_last_voter_is_not_removed() -> None:
    cluster = running(1)
    with pytest.raises(InvalidRequestError, match="the only one"):
        cluster.nodes[0].quorum.remove_voter(0)
    finish(cluster)


def test_a_removed_voter_disturbs_nobody() -> None:
    cluster = running(4)
    leader = cluster.wait_for_leader()
    removed = next(node for node in (0, 1, 2, 3) if node != leader)
    change(cluster, removed, add=False)
    term = cluster.nodes[leader].quorum.leadership.term
    cluster.loop.run_for(10.0)
    assert cluster.nodes[leader].quorum.leadership.term == term
    assert cluster.nodes[leader].quorum.leadership.is_self
    finish(cluster)


def test_a_leader_that_leaves_hands_over_faster_than_an_election() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    node = cluster.nodes.pop(leader)
    began = cluster.loop.time()
    cluster.loop.run_until_complete(node.quorum.close())
    assert cluster.loop.run_until(lambda: cluster.leader not in (None, leader), 1.0)
    assert cluster.loop.time() - began < 0.1
    finish(cluster)

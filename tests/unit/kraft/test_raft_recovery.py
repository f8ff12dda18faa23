"""A folder that is made the whole quorum: what it holds stays, damaged votes and forged terms are mended."""

import pytest
from simulation.raft_cluster import DIRECTORY, SimulatedQuorum

from barnabas.kraft.quorum.config import MAX_TERM, SnapshotPolicy
from barnabas.kraft.raft.disk.folder import JOURNAL_NAME, SNAPSHOT_NAME
from barnabas.kraft.raft.disk.meta import valid_slots
from barnabas.kraft.raft.disk.storage import DamagedQuorumError
from barnabas.kraft.raft.recovery import NothingToRecover, Recovery, inspect, make_sole_voter
from barnabas.log.vocabulary.node_address import NodeAddress

JOURNAL = f"{DIRECTORY}/{JOURNAL_NAME}"
ACCEPTED = b"accepted"
GIVEN = tuple(NodeAddress(node_id=node_id, host="sim", port=node_id) for node_id in range(3))


def stopped(policy: SnapshotPolicy | None = None, commands: int = 5) -> SimulatedQuorum:
    """Three voters that have stopped; the disks of 1 and 2 are lost."""
    cluster = SimulatedQuorum(7, 3, policy or SnapshotPolicy(entries=10**9))
    cluster.start_all()
    for _ in range(commands):
        cluster.commit()
    assert cluster.wait_until_equal()
    cluster.loop.run_for(1.0)
    for node_id in cluster.ids:
        cluster.kill(node_id)
    cluster.disks[1].wipe()
    cluster.disks[2].wipe()
    return cluster


def found_in(cluster: SimulatedQuorum) -> Recovery:
    return inspect(cluster.disks[0], journal_path=JOURNAL, snapshot_path=f"{DIRECTORY}/{SNAPSHOT_NAME}", given=GIVEN)


def recover(cluster: SimulatedQuorum) -> Recovery:
    found = found_in(cluster)
    make_sole_voter(cluster.disks[0], journal_path=JOURNAL, found=found, voter=GIVEN[0], command=ACCEPTED)
    return found


@pytest.mark.parametrize("policy", [SnapshotPolicy(entries=10**9), SnapshotPolicy(entries=20)])
def test_the_only_voter_has_everything_and_goes_on_alone(policy: SnapshotPolicy) -> None:
    cluster = stopped(policy, commands=60)
    acked = set(cluster.oracle.acked)
    recover(cluster)
    recover(cluster)  # as after a crash in the middle
    cluster.start(0)
    assert cluster.wait_for_leader() == 0
    cluster.commit()
    commands = [command for _, command in cluster.nodes[0].listener.state]
    assert {*commands} >= acked
    assert commands.count(ACCEPTED) == 2  # behind all that the folder held, before anything new
    assert commands.index(ACCEPTED) >= len(acked) and commands[-1] != ACCEPTED
    assert cluster.nodes[0].quorum.voters.ids == {0}
    assert not cluster.oracle.violations
    cluster.close()


def test_the_newest_vote_is_replaced_last() -> None:
    """A crash in the middle leaves a slot that can be read and is newer than all before."""
    cluster = stopped()
    path = f"{JOURNAL}.meta"
    newest = max(meta.sequence for meta in valid_slots(cluster.disks[0], path))
    recover(cluster)
    assert sorted(meta.sequence for meta in valid_slots(cluster.disks[0], path)) == [newest + 1, newest + 2]
    cluster.close()


@pytest.mark.parametrize("slots", [(0,), (0, 1)])
def test_damaged_votes_are_mended(slots: tuple[int, ...]) -> None:
    cluster = stopped()
    for slot in slots:
        cluster.disks[0].files[f"{JOURNAL}.meta.{slot}"].data[-1] ^= 1
    with pytest.raises(DamagedQuorumError, match="cluster recover"):
        cluster.start(0)
    recover(cluster)
    cluster.start(0)
    assert cluster.wait_for_leader() == 0
    cluster.close()


def test_a_forged_term_goes_back_to_that_of_the_entries() -> None:
    cluster = SimulatedQuorum(3, 1)
    cluster.start_all()
    cluster.commit()
    cluster.nodes[0].quorum._started.engine.set_term(MAX_TERM + 5, None)
    cluster.nodes[0].quorum._started.engine.set_term(MAX_TERM + 6, None)
    cluster.kill(0)
    found = recover(cluster)
    assert found.next_term == found.last_term + 1
    cluster.start(0)
    cluster.commit()
    assert cluster.nodes[0].quorum._started.engine.term < 100
    cluster.close()


def test_a_folder_without_entries_is_refused() -> None:
    cluster = SimulatedQuorum(3, 3)
    with pytest.raises(NothingToRecover):
        found_in(cluster)
    cluster.close()

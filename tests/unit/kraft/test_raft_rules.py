"""What the quorum adds to the rules of pysyncobj's core, one test each; the numbers only keep them apart."""

import inspect
import pathlib
import random
import re

import pytest
from simulation.raft_cluster import DIRECTORY, TIMING, SimulatedQuorum
from unit.kraft.raft_quorums import all_linked, core_of, finish, isolate, reunite, running

import barnabas.kraft.raft.consensus.engine as engine
from barnabas.kraft.quorum.config import (
    MAX_COMMAND_BYTES,
    MAX_PENDING_COMMANDS,
    MAX_TERM,
    MAX_TERM_STEP,
    SnapshotPolicy,
)
from barnabas.kraft.quorum.journal_format import Entry
from barnabas.kraft.quorum.quorum import AppendOutcome
from barnabas.kraft.raft.consensus.core import RaftCore
from barnabas.kraft.raft.consensus.following import LogDiverged
from barnabas.kraft.raft.disk.folder import JOURNAL_NAME
from barnabas.kraft.raft.disk.meta import MetaStore
from barnabas.kraft.raft.disk.storage import DamagedQuorumError
from barnabas.kraft.raft.protocol.messages import AppendEntries, AppendReply, InstallSnapshot, RequestVote, StaleTerm
from barnabas.log.vocabulary.errors import InvalidRequestError

KRAFT = pathlib.Path(inspect.getfile(engine)).parents[2]


def test_every_private_name_that_is_touched_is_asserted_at_start() -> None:
    used = {
        name
        for path in KRAFT.rglob("*.py")
        for name in re.findall(r"_SyncObj__\w+", path.read_text())
        if name != "_SyncObj__name"
    }
    assert used <= engine.TOUCHED_NAMES
    assert engine.PINNED_VERSION == "0.3.17"


def test_only_one_file_imports_pysyncobj() -> None:
    importing = [p.name for p in KRAFT.rglob("*.py") if re.search(r"^(from|import) pysyncobj", p.read_text(), re.M)]
    assert importing == ["engine.py"]


def test_nothing_pickles() -> None:
    assert not [p.name for p in KRAFT.rglob("*.py") if re.search(r"import pickle|pickle\.", p.read_text())]


def test_rule_3_the_commit_index_never_passes_the_journal() -> None:
    """It was stored by a process whose journal went further: new entries there would count as committed without a quorum."""
    cluster = running()
    cluster.kill(2)
    store = MetaStore(cluster.disks[2], f"{DIRECTORY}/{JOURNAL_NAME}.meta")
    store.store(raft_term=store.current.raft_term, voted_for=None, commit_index=99, blank=False)
    isolate(cluster, 2)
    cluster.start(2)
    core = core_of(cluster, 2)
    assert core.engine.commit_index == core.journal.last_index < 99
    cluster.close()


def test_rule_4_an_acknowledgement_of_another_term_moves_nothing() -> None:
    cluster = running()
    core = core_of(cluster, cluster.wait_for_leader())
    peer = core.electorate.other_ids[0]
    before = core.engine.match_of(peer)
    stale = AppendReply(term=core.engine.term - 1, next_index=999, is_reset=False, is_success=True)
    core.receive(peer, stale)
    assert core.engine.match_of(peer) == before
    finish(cluster)


def test_rule_5_nothing_is_acknowledged_before_it_is_on_disk() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    cluster.fsync_s = 0.0
    outcomes: dict[bytes, AppendOutcome] = {}
    for node_id in cluster.ids:
        cluster.nodes[node_id].executor._delay = lambda: 0.2
    command = cluster.append(leader, outcomes)
    cluster.loop.run_for(0.15)
    assert command not in outcomes
    cluster.loop.run_for(0.4)
    assert outcomes[command] is AppendOutcome.COMMITTED
    finish(cluster)


def test_rule_5_a_single_voter_too_waits_for_its_disk() -> None:
    cluster = running(1)
    cluster.nodes[0].executor._delay = lambda: 0.2
    outcomes: dict[bytes, AppendOutcome] = {}
    command = cluster.append(0, outcomes)
    cluster.loop.run_for(0.15)
    assert not outcomes
    cluster.loop.run_for(0.1)
    assert outcomes == {command: AppendOutcome.COMMITTED}
    finish(cluster)


def test_the_only_voter_leads_again_at_once() -> None:
    cluster = running(1)
    for power in (False, True):
        cluster.kill(0, power=power)
        cluster.start(0)
        began = cluster.loop.time()
        assert cluster.wait_for_leader() == 0
        assert cluster.loop.time() - began < TIMING.heartbeat_s
    cluster.commit()
    finish(cluster)


def test_rule_7_a_voter_that_was_away_does_not_depose_the_leader() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    away = next(n for n in cluster.ids if n != leader)
    term = cluster.nodes[leader].quorum.leadership.term
    isolate(cluster, away)
    cluster.loop.run_for(5.0)
    reunite(cluster, away)
    cluster.loop.run_for(2.0)
    assert cluster.wait_until_equal()
    assert cluster.nodes[leader].quorum.leadership == core_of(cluster, leader).leadership
    assert cluster.nodes[leader].quorum.leadership.term == term
    finish(cluster)


def test_rule_9_a_stale_leader_is_told() -> None:
    cluster = running()
    old = cluster.wait_for_leader()
    isolate(cluster, old)
    cluster.loop.run_until(lambda: cluster.leader not in (None, old), 5.0)
    assert cluster.loop.run_until(
        lambda: not cluster.nodes[old].quorum.leadership.is_self, TIMING.leader_fallback_s * 2
    )
    reunite(cluster, old)
    assert cluster.loop.run_until(lambda: cluster.nodes[old].quorum.leadership.leader_id == cluster.leader, 2.0)
    finish(cluster)


def test_rule_10_a_follower_forwards_nothing() -> None:
    cluster = running()
    follower = next(n for n in cluster.ids if n != cluster.wait_for_leader())
    outcomes: dict[bytes, AppendOutcome] = {}
    command = cluster.append(follower, outcomes)
    assert not outcomes, "an outcome within append"
    cluster.loop.run_for(0.5)
    assert outcomes == {command: AppendOutcome.NOT_APPENDED}
    finish(cluster)


def test_rule_10_an_append_of_a_former_term_is_refused() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    outcomes: list[AppendOutcome] = []
    quorum = cluster.nodes[leader].quorum
    quorum.append(b"stale", term=quorum.leadership.term - 1, done=outcomes.append)
    cluster.loop.run_for(0.5)
    assert outcomes == [AppendOutcome.NOT_APPENDED]
    finish(cluster)


def test_rule_11_entries_that_match_are_kept() -> None:
    cluster = running()
    leader = core_of(cluster, cluster.wait_for_leader())
    follower = core_of(cluster, leader.electorate.other_ids[0])
    last = follower.journal.last_index
    entries = tuple(follower.journal.entries_from(2, 1))
    early = AppendEntries(term=leader.engine.term, commit_index=1, prev_index=1, prev_term=0, entries=entries)
    follower.receive(leader.electorate.node_id, early)
    assert follower.journal.last_index == last
    finish(cluster)


def test_whoever_would_replace_committed_entries_is_named_with_the_cure() -> None:
    cluster = running()
    leader = core_of(cluster, cluster.wait_for_leader())
    follower = core_of(cluster, leader.electorate.other_ids[0])
    cluster.commit()
    assert cluster.wait_until_equal()
    index, term = follower.engine.commit_index, follower.engine.term
    older = ((b"\0older copy", index, term + 1),)
    replaced = AppendEntries(term=term + 1, commit_index=0, prev_index=index - 1, prev_term=term, entries=older)
    with pytest.raises(LogDiverged) as caught:
        follower.follower._store(replaced)
    told = str(caught.value)
    assert f"voter {leader.electorate.node_id}, replaces entry {index} of term {term}" in told
    assert "older copies of __cluster_metadata" in told and "barnabas cluster recover --config" in told
    finish(cluster)


def test_a_heartbeat_commits_no_entries_that_were_not_compared() -> None:
    cluster = running()
    leader = core_of(cluster, cluster.wait_for_leader())
    follower = core_of(cluster, leader.electorate.other_ids[0])
    follower.journal.add(b"\0divergent", follower.journal.last_index + 1, follower.engine.term)
    committed = follower.engine.commit_index
    bare = InstallSnapshot(term=leader.engine.term, commit_index=99, chunk=None)
    follower.receive(leader.electorate.node_id, bare)
    assert follower.engine.commit_index == committed
    early = AppendEntries(term=leader.engine.term, commit_index=99, prev_index=1, prev_term=0, entries=())
    follower.receive(leader.electorate.node_id, early)
    assert follower.engine.commit_index == committed
    cluster.close()


def test_rule_12_an_acknowledgement_does_not_move_the_sending_back() -> None:
    cluster = running()
    core = core_of(cluster, cluster.wait_for_leader())
    peer = core.electorate.other_ids[0]
    core.engine.set_next(peer, core.journal.last_index + 1)
    late = AppendReply(term=core.engine.term, next_index=2, is_reset=False, is_success=True)
    core.receive(peer, late)
    assert core.engine.next_of(peer) == core.journal.last_index + 1
    finish(cluster)


def test_rule_13_what_cannot_be_applied_stops_the_process() -> None:
    cluster = running(1)
    node = cluster.nodes[0]

    def refuse(_commands: object) -> None:
        raise ValueError("unknown record")

    node.listener.committed = refuse  # type: ignore[method-assign,assignment]
    cluster.append(0)
    cluster.loop.run_for(0.5)
    assert len(node.fatal) == 1
    assert "unknown record" in node.fatal[0]
    cluster.close()


def test_rule_15_the_broken_link_of_the_leader_is_a_hint() -> None:
    cluster = running()
    for _ in range(5):
        leader = cluster.wait_for_leader()
        assert cluster.loop.run_until(lambda: all_linked(cluster), 5.0)
        cluster.kill(leader)
        began = cluster.loop.time()
        assert cluster.loop.run_until(lambda: cluster.leader is not None, 5.0)
        assert cluster.loop.time() - began < 0.15
        cluster.start(leader)
        cluster.commit()
        assert cluster.wait_until_equal()
    finish(cluster)


@pytest.mark.parametrize("seed", range(40))
def test_followers_of_a_broken_link_do_not_take_each_others_votes(seed: int) -> None:
    """They once campaigned at the same moment, about one time in ten, and waited out their election timers then."""
    cluster = SimulatedQuorum(seed, 3, SnapshotPolicy(entries=10**9))
    cluster.start_all()
    cluster.commit()
    for _ in range(3):
        leader = cluster.wait_for_leader()
        assert cluster.loop.run_until(lambda: all_linked(cluster), 5.0)
        cluster.kill(leader)
        began = cluster.loop.time()
        assert cluster.loop.run_until(lambda: cluster.leader is not None, 5.0)
        assert cluster.loop.time() - began < 0.15
        cluster.start(leader)
        cluster.commit()
        assert cluster.wait_until_equal()
    finish(cluster)


def test_rule_16_a_command_that_a_snapshot_jumped_over_is_unknown() -> None:
    cluster = running(3, SnapshotPolicy(entries=20))
    old = cluster.wait_for_leader()
    isolate(cluster, old, silent=True)
    outcomes: dict[bytes, AppendOutcome] = {}
    command = cluster.append(old, outcomes)
    cluster.loop.run_until(lambda: cluster.leader not in (None, old), 5.0)
    for _ in range(60):
        cluster.commit()
    reunite(cluster, old)
    cluster.loop.run_for(1.0)
    assert cluster.wait_until_equal()
    assert cluster.nodes[old].listener.restored
    assert outcomes == {command: AppendOutcome.UNKNOWN}
    finish(cluster)


def test_a_command_that_was_overwritten_is_discarded() -> None:
    cluster = running()
    old = cluster.wait_for_leader()
    isolate(cluster, old, silent=True)
    outcomes: dict[bytes, AppendOutcome] = {}
    command = cluster.append(old, outcomes)
    cluster.loop.run_until(lambda: cluster.leader not in (None, old), 5.0)
    cluster.commit()
    reunite(cluster, old)
    cluster.loop.run_for(1.0)
    assert outcomes == {command: AppendOutcome.DISCARDED}
    assert not core_of(cluster, old).commands._waiting
    finish(cluster)


def test_rule_17_a_leader_with_300_divergent_entries_is_back_at_once() -> None:
    cluster = running()
    old = cluster.wait_for_leader()
    isolate(cluster, old, silent=True)
    for _ in range(300):
        cluster.append(old)
    cluster.loop.run_until(lambda: cluster.leader not in (None, old), 5.0)
    cluster.commit()
    reunite(cluster, old)
    began = cluster.loop.time()
    assert cluster.wait_until_equal()
    assert cluster.loop.time() - began < 1.0
    finish(cluster)


@pytest.mark.parametrize("size_bytes", [65_000, 200_000, MAX_COMMAND_BYTES - len(b"0:2")])
def test_rule_2o_large_commands_are_as_good_as_small_ones(size_bytes: int) -> None:
    cluster = running()
    began = cluster.loop.time()
    for _ in range(3):
        cluster.commit(size_bytes=size_bytes)
    assert cluster.loop.time() - began < 0.2
    assert cluster.wait_until_equal()
    finish(cluster)


def test_a_command_over_the_limit_is_refused_by_name() -> None:
    cluster = running(1)
    with pytest.raises(InvalidRequestError, match=str(MAX_COMMAND_BYTES)):
        cluster.nodes[0].quorum.append(b"x" * (MAX_COMMAND_BYTES + 1), term=1, done=lambda _outcome: None)
    finish(cluster)


def test_rule_2p_the_queue_is_bounded() -> None:
    cluster = running(1)
    outcomes: list[AppendOutcome] = []
    quorum = cluster.nodes[0].quorum
    for _ in range(MAX_PENDING_COMMANDS + 10):
        quorum.append(b"x", term=quorum.leadership.term, done=outcomes.append)
    cluster.loop.run_for(2.0)
    assert outcomes.count(AppendOutcome.NOT_APPENDED) == 10
    assert outcomes.count(AppendOutcome.COMMITTED) == MAX_PENDING_COMMANDS
    core = core_of(cluster, 0)
    assert (core.commands._waiting, core.commands._waiting_count, core.commands._queued_bytes) == ({}, 0, 0)
    cluster.close()


def test_a_callback_that_fails_is_fatal_and_not_repeated() -> None:
    cluster = running(1)
    calls: list[AppendOutcome] = []

    def done(outcome: AppendOutcome) -> None:
        calls.append(outcome)
        raise RuntimeError("bug above")

    cluster.nodes[0].quorum.append(b"x", term=cluster.nodes[0].quorum.leadership.term, done=done)
    cluster.loop.run_for(0.5)
    assert len(calls) == 1
    assert len(cluster.nodes[0].fatal) == 1
    cluster.close()


def test_a_read_barrier_commits_and_shows_nothing() -> None:
    cluster = running()
    leader = cluster.nodes[cluster.wait_for_leader()]
    before, outcomes = len(leader.listener.state), list[AppendOutcome]()
    leader.quorum.read_barrier(outcomes.append)
    cluster.loop.run_for(0.2)
    assert outcomes == [AppendOutcome.COMMITTED]
    assert len(leader.listener.state) == before
    finish(cluster)


def test_a_read_barrier_of_an_isolated_leader_does_not_pass() -> None:
    cluster = running()
    old = cluster.wait_for_leader()
    isolate(cluster, old, silent=True)
    outcomes: list[AppendOutcome] = []
    cluster.nodes[old].quorum.read_barrier(outcomes.append)
    cluster.loop.run_for(3.0)
    assert AppendOutcome.COMMITTED not in outcomes
    finish(cluster)


def test_a_leader_commits_while_its_own_journal_cannot_be_flushed() -> None:
    """Two followers are a majority; a leader with a disk that hangs loses nothing by leading."""
    cluster = running()
    leader = cluster.wait_for_leader()
    assert cluster.loop.run_until(lambda: all_linked(cluster), 5.0)
    cluster.nodes[leader].executor.stop()
    cluster.commit()
    assert cluster.leader == leader
    finish(cluster)


def test_a_lagging_follower_is_given_a_snapshot_in_chunks() -> None:
    cluster = running(3, SnapshotPolicy(entries=20))
    lagging = next(n for n in cluster.ids if n != cluster.wait_for_leader())
    cluster.kill(lagging)
    for _ in range(30):
        cluster.commit(size_bytes=10_000)
    rng = random.Random(1)
    noise = rng.randbytes(900_000)  # does not compress: several chunks
    leader = cluster.wait_for_leader()
    outcomes: list[AppendOutcome] = []
    quorum = cluster.nodes[leader].quorum
    quorum.append(noise, term=quorum.leadership.term, done=outcomes.append)
    cluster.loop.run_for(0.5)
    quorum.take_snapshot()
    cluster.loop.run_for(0.5)
    node = cluster.start(lagging)
    assert cluster.wait_until_equal()
    assert node.listener.restored == 1
    cluster.commit()
    assert cluster.wait_until_equal()
    finish(cluster)


def test_a_damaged_snapshot_is_never_skipped() -> None:
    cluster = running(3, SnapshotPolicy(entries=20))
    for _ in range(60):
        cluster.commit()
    cluster.kill(2)
    data = cluster.disks[2].files[f"{DIRECTORY}/quorum.snapshot"].data
    data[len(data) // 2] ^= 1
    with pytest.raises(DamagedQuorumError, match="snapshot is damaged"):
        cluster.start(2)
    cluster.disks[2].remove(f"{DIRECTORY}/quorum.snapshot")
    with pytest.raises(DamagedQuorumError, match="snapshot is missing"):
        cluster.start(2)
    cluster.close()


def test_a_failed_snapshot_is_not_tried_on_every_tick() -> None:
    cluster = running(1, SnapshotPolicy(entries=20))
    listener = cluster.nodes[0].listener

    def broken() -> list[bytes]:
        raise OSError("no")

    tries = []
    listener.snapshot = lambda: tries.append(1) or broken  # type: ignore[method-assign,func-returns-value]
    for _ in range(60):
        cluster.commit()
    cluster.loop.run_for(10.0)
    assert len(tries) == 1
    cluster.loop.run_for(40.0)
    assert len(tries) == 2
    finish(cluster)


def test_a_closed_quorum_tells_what_is_open_and_keeps_what_it_has() -> None:
    cluster = running(3)
    leader = cluster.wait_for_leader()
    outcomes: dict[bytes, AppendOutcome] = {}
    isolate(cluster, leader, silent=True)
    command = cluster.append(leader, outcomes)
    cluster.loop.run_for(0.05)
    node = cluster.nodes.pop(leader)
    cluster.loop.run_until_complete(node.quorum.close())
    assert outcomes == {command: AppendOutcome.UNKNOWN}
    cluster.net.kill(leader)
    reunite(cluster, leader)
    cluster.start(leader)
    cluster.commit()
    assert cluster.wait_until_equal()
    finish(cluster)


def forged_append(core: RaftCore, term: int, entries: tuple[Entry, ...] = ()) -> AppendEntries:
    last, last_term = core.journal.last_index, core.journal.last_term
    return AppendEntries(term=term, commit_index=last, prev_index=last, prev_term=last_term, entries=entries)


def test_a_term_that_no_election_can_have_reached_is_taken_in_steps_and_the_quorum_lives_on() -> None:
    cluster = running()
    victim = core_of(cluster, cluster.wait_for_leader())
    before = victim.engine.term
    for _ in range(50):
        for message in (
            StaleTerm(term=MAX_TERM - 1),
            AppendReply(term=MAX_TERM - 1, next_index=1, is_reset=False, is_success=True),
            forged_append(victim, MAX_TERM - 1),
            RequestVote(term=MAX_TERM - 1, last_log_index=9, last_log_term=9, is_transfer=True),
        ):
            victim.receive(victim.electorate.other_ids[0], message)
    assert victim.engine.term == before + MAX_TERM_STEP and victim.credibility.refused_messages == 200
    assert not victim.halted
    cluster.commit()
    assert cluster.wait_until_equal()
    finish(cluster)


def test_a_term_that_is_one_step_too_far_is_not_believed() -> None:
    cluster = running()
    victim = core_of(cluster, cluster.wait_for_leader())
    before = victim.engine.term
    victim.receive(victim.electorate.other_ids[0], StaleTerm(term=before + MAX_TERM_STEP + 1))
    assert (victim.engine.term, victim.credibility.refused_messages) == (before + MAX_TERM_STEP, 1)
    finish(cluster)


def test_a_voter_that_is_many_terms_behind_catches_up() -> None:
    cluster = running()
    core = core_of(cluster, 2)
    cluster.kill(0)
    cluster.kill(1)
    core.engine.set_term(5 * MAX_TERM_STEP, None)
    cluster.start(0)
    cluster.start(1)
    cluster.commit()
    assert cluster.wait_until_equal()
    assert core_of(cluster, 0).engine.term > 5 * MAX_TERM_STEP
    finish(cluster)


def test_another_leader_in_the_term_is_refused_and_stops_neither_leader_nor_follower() -> None:
    cluster = running()
    leader = cluster.wait_for_leader()
    core = core_of(cluster, leader)
    core.receive(core.electorate.other_ids[0], forged_append(core, core.engine.term))
    assert core.engine.is_leader and core.credibility.refused_messages == 1 and not core.halted
    follower_id, other_id = core.electorate.other_ids
    follower = core_of(cluster, follower_id)
    entries = ((b"\x00forged", follower.journal.last_index + 1, follower.engine.term),)
    forged = forged_append(follower, follower.engine.term, entries)
    last_index = follower.journal.last_index
    follower.receive(other_id, forged)
    assert follower.credibility.refused_messages == 1 and follower.journal.last_index == last_index
    assert follower.engine.leader_id == leader
    cluster.commit()
    assert cluster.wait_until_equal()
    finish(cluster)


def test_a_folder_with_a_forged_term_is_refused_with_the_cure() -> None:
    cluster = running(1)
    core_of(cluster, 0).engine.set_term(MAX_TERM, None)
    cluster.kill(0)
    with pytest.raises(DamagedQuorumError, match="was forged"):
        cluster.start(0)
    cluster.close()


def test_rule_4_an_acknowledgement_of_another_term_counts_for_no_entry_that_the_peer_may_lack() -> None:
    cluster = running()
    core = core_of(cluster, cluster.wait_for_leader())
    peer = core.electorate.other_ids[0]
    core.engine.set_match(peer, 1)
    next_index = core.journal.last_index + 1
    core.receive(peer, AppendReply(term=core.engine.term - 1, next_index=next_index, is_reset=False, is_success=True))
    assert core.engine.match_of(peer) == 1
    finish(cluster)


def test_an_entry_of_an_earlier_term_is_not_committed_by_counting() -> None:
    """The paper, 5.4.2 and figure 8: a majority that has it may still be overruled."""
    cluster = running()
    core = core_of(cluster, cluster.wait_for_leader())
    committed, last_index = core.engine.commit_index, core.journal.last_index + 1
    core.journal.add(b"\0of the earlier term", last_index, core.engine.term)
    core.engine.set_term(core.engine.term + 1, core.electorate.node_id)
    for peer in core.electorate.other_ids:
        core.engine.set_match(peer, last_index)
    core.leader.commit_what_a_majority_has()
    assert core.engine.is_leader and core.engine.commit_index == committed
    cluster.close()


def test_a_blank_voter_does_not_vote() -> None:
    """It may have voted in that term, or acknowledged what the candidate lacks, and forgotten it."""
    cluster = running()
    cluster.kill(2)
    cluster.disks[2].wipe()
    isolate(cluster, 2)
    cluster.start(2)
    core = core_of(cluster, 2)
    assert core.formation.blank
    ask = RequestVote(term=9, last_log_index=99, last_log_term=9, is_transfer=True)
    core.receive(0, ask)
    assert (core.engine.term, core.engine.voted_for) == (0, None)
    cluster.close()


def test_a_vote_outlives_the_process() -> None:
    """Forgotten, two candidates of one term could each have a majority."""
    cluster = running()
    isolate(cluster, 2)
    term, last_index = core_of(cluster, 2).engine.term + 1, core_of(cluster, 2).journal.last_index
    ask = RequestVote(term=term, last_log_index=last_index, last_log_term=term - 1, is_transfer=True)
    core_of(cluster, 2).receive(0, ask)
    assert core_of(cluster, 2).engine.voted_for == 0
    cluster.kill(2)
    cluster.start(2)
    core_of(cluster, 2).receive(1, ask)
    assert (core_of(cluster, 2).engine.term, core_of(cluster, 2).engine.voted_for) == (term, 0)
    cluster.close()

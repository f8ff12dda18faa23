"""What one commit costs the voters: messages and steps beyond those that agreement needs were a third of a transaction."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from simulation.raft_cluster import TIMING, SimulatedQuorum
from unit.kraft.raft_quorums import all_linked, core_of, finish, isolate, reunite, running

from barnabas.kraft.quorum.quorum import AppendOutcome
from barnabas.kraft.raft.consensus.leading import TELLS_PER_HEARTBEAT
from barnabas.kraft.raft.driver import TICKS_PER_HEARTBEAT
from barnabas.kraft.raft.protocol.messages import AppendEntries, AppendReply, Joined, Message

COMMANDS = 20
LONGER_THAN_A_COMMIT_S = 0.02  # and shorter than a heartbeat
# Per commit. The leader sends the entry and the new commit index, each to two followers, which acknowledge the entry.
MOST_ENTRIES, MOST_REPLIES = 4, 2
# The leader: appended, acknowledged. A follower: has the entry, learns of the commit. And now and then a tick.
MOST_STEPS = 2 + 2 * 2
# Without others who wait: they learn of the commit with the next entry, and apply it when the flush of that entry has begun.
MOST_QUIET_ENTRIES, MOST_QUIET_STEPS = 2, 2 + 2 * 2


class _Counts:
    """Of all voters."""

    def __init__(self, cluster: SimulatedQuorum) -> None:
        self.sent: Counter[type[Message]] = Counter()
        self.steps = 0
        for node_id in cluster.ids:
            self._watch(cluster, node_id)

    def _watch(self, cluster: SimulatedQuorum, node_id: int) -> None:
        core = core_of(cluster, node_id)
        transport, driver = core.follower._transport, cluster.nodes[node_id].quorum._driver
        send, run = transport.send, driver._run

        def counted(peer_id: int, message: Message) -> bool:
            self.sent[type(message)] += 1
            return send(peer_id, message)

        def counted_run() -> None:
            self.steps += driver._step_is_scheduled  # else it is a tick, which comes anyway
            run()

        transport.send = counted  # type: ignore[method-assign]
        driver._run = counted_run  # type: ignore[method-assign]


def _commit(cluster: SimulatedQuorum, leader_id: int, *, others_wait: bool = True) -> None:
    outcomes: dict[bytes, AppendOutcome] = {}
    cluster.append(leader_id, outcomes, others_wait=others_wait)
    assert cluster.loop.run_until(lambda: bool(outcomes), 1.0)


@pytest.mark.parametrize(
    ("others_wait", "most_entries", "most_steps"),
    [(True, MOST_ENTRIES, MOST_STEPS), (False, MOST_QUIET_ENTRIES, MOST_QUIET_STEPS)],
)
def test_messages_and_steps_of_a_commit(others_wait: bool, most_entries: int, most_steps: int) -> None:
    cluster = running()
    cluster.loop.run_for(1.0)
    leader = cluster.wait_for_leader()
    core = core_of(cluster, leader)
    counts = _Counts(cluster)
    began = cluster.loop.time()
    for _ in range(COMMANDS):
        _commit(cluster, leader, others_wait=others_wait)
        if others_wait:
            cluster.loop.run_for(LONGER_THAN_A_COMMIT_S)
    heartbeats = 2 * (int((cluster.loop.time() - began) / TIMING.heartbeat_s) + 1)
    assert core.engine.commit_index == core.journal.last_index
    assert counts.sent[AppendEntries] <= most_entries * COMMANDS + heartbeats
    fewest = MOST_REPLIES * (COMMANDS - 1)  # one of the last may be under way
    assert fewest <= counts.sent[AppendReply] <= MOST_REPLIES * COMMANDS + heartbeats
    assert counts.steps <= most_steps * COMMANDS + 2 * heartbeats
    finish(cluster)


def test_others_learn_of_a_commit_at_once_or_at_the_first_tick_after_an_eighth_of_a_heartbeat() -> None:
    cluster = running()
    leader_id = cluster.wait_for_leader()
    cluster.loop.run_for(1.0)
    leader = core_of(cluster, leader_id)
    follower = core_of(cluster, leader.electorate.other_ids[0])

    def told_within(within_s: float) -> bool:
        return cluster.loop.run_until(lambda: follower.engine.commit_index == leader.journal.last_index, within_s)

    for others_wait in (True, False, True):
        _commit(cluster, leader_id)  # so that no heartbeat is due soon
        assert told_within(0.05)
        _commit(cluster, leader_id, others_wait=others_wait)
        assert told_within(0.002) == others_wait
        assert told_within(TIMING.heartbeat_s / TELLS_PER_HEARTBEAT + TIMING.heartbeat_s / TICKS_PER_HEARTBEAT)
    # One that is waited for takes the others along.
    cluster.append(leader_id, others_wait=False)
    _commit(cluster, leader_id)
    assert told_within(0.02)
    finish(cluster)


def test_what_an_earlier_leader_appended_is_told_at_once() -> None:
    """Only the leader that has appended a command knows that others do not wait for it."""
    commands = core_of(cluster := running(), cluster.wait_for_leader()).commands
    engine, first = commands._engine, commands._journal.last_index + 1
    for others_wait in (False, False, True):
        commands.submit(b"x", engine.term, lambda _outcome: None, others_wait=others_wait)
    commands.append_queued()
    assert not commands.do_others_wait(first, first + 1)
    assert commands.do_others_wait(first, first + 2)
    assert commands.do_others_wait(first - 1, first)
    engine.term += 1
    assert commands.do_others_wait(first, first + 1)
    engine.term -= 1
    commands.settle(first, engine.term)
    assert commands.do_others_wait(first, first)
    cluster.close()


def test_an_entry_leaves_before_its_leader_begins_to_flush_it() -> None:
    """The disks of all voters work at the same time. The entry left a pass of the loop later, behind the write to the journal."""
    cluster = running()
    leader_id = cluster.wait_for_leader()
    cluster.loop.run_for(1.0)
    core = core_of(cluster, leader_id)
    order = []
    links = core.leader._transport._links  # type: ignore[attr-defined]
    for peer_id in core.electorate.other_ids:
        write = links[peer_id]._transport.write

        def left(data: bytes, write: Callable[[bytes], None] = write) -> None:
            order.append("sent")
            write(data)

        links[peer_id]._transport.write = left
    sync_soon = core.journal.sync_soon

    def flushed() -> None:
        if core.journal.last_index > core.journal.durable_index:
            order.append("flush")
        sync_soon()

    core.journal.sync_soon = flushed  # type: ignore[method-assign]
    _commit(cluster, leader_id)
    assert order[:3] == ["sent", "sent", "flush"]
    finish(cluster)


def test_an_acknowledgement_leaves_with_the_end_of_its_flush() -> None:
    """The leader waits for it, and not for a pass of the follower's loop."""
    cluster = running()
    leader_id = cluster.wait_for_leader()
    cluster.loop.run_for(1.0)
    follower = core_of(cluster, core_of(cluster, leader_id).electorate.other_ids[0]).follower
    link = follower._transport._links[leader_id]._transport  # type: ignore[attr-defined]
    write, on_durable = link.write, follower.on_durable
    writes: list[bytes] = []
    left: list[int] = []

    def noted(data: bytes) -> None:
        writes.append(bytes(data))
        write(data)

    def flushed() -> None:
        owes, before = follower._unacknowledged is not None, len(writes)
        on_durable()
        if owes:
            left.append(len(writes) - before)

    link.write = noted
    follower.on_durable = flushed  # type: ignore[method-assign]
    _commit(cluster, leader_id)
    assert left == [1]
    finish(cluster)


def test_a_follower_begins_its_flush_a_step_before_it_applies_earlier_entries() -> None:
    """Applying held the interpreter, so that the thread that flushes began when it was over."""
    cluster = running()
    leader_id = cluster.wait_for_leader()
    cluster.loop.run_for(1.0)
    core = core_of(cluster, core_of(cluster, leader_id).electorate.other_ids[0])
    _commit(cluster, leader_id, others_wait=False)
    assert core.applier.applied_index < core.journal.last_index
    steps: list[tuple[bool, int]] = []
    step = core._step

    def noted() -> None:
        step()
        steps.append((core.journal.durable_index < core.journal.last_index, core.applier.applied_index))

    core._step = noted  # type: ignore[method-assign]
    first = core.journal.last_index
    cluster.append(leader_id, others_wait=False)
    assert cluster.loop.run_until(lambda: core.applier.applied_index == first, 1.0)
    assert steps[-2:] == [(True, first - 1), (True, first)]
    finish(cluster)


def test_a_follower_that_is_only_told_of_commits_still_gives_signs_of_life() -> None:
    cluster = running()
    leader = core_of(cluster, cluster.wait_for_leader())
    for _ in range(100):
        leader.leader.must_send = True
        cluster.loop.run_for(TIMING.heartbeat_s / 5)
        now = cluster.loop.time()
        assert leader.engine.heard_since(leader.electorate.other_ids, now - 2 * TIMING.heartbeat_s) == 2
    assert leader.engine.is_leader
    finish(cluster)


def test_an_acknowledgement_that_was_lost_with_its_link_is_given_again() -> None:
    cluster = running()
    leader_id = cluster.wait_for_leader()
    leader = core_of(cluster, leader_id)
    follower_id = leader.electorate.other_ids[0]
    follower = core_of(cluster, follower_id).follower
    assert follower._acknowledged is not None
    core_of(cluster, follower_id).disconnected(leader_id)
    assert follower._acknowledged is None
    cluster.close()


def test_the_others_do_not_wait_for_a_read_barrier() -> None:
    cluster = running()
    leader_id = cluster.wait_for_leader()
    cluster.loop.run_for(1.0)
    leader = core_of(cluster, leader_id)
    _commit(cluster, leader_id)  # so that no heartbeat is due soon
    cluster.loop.run_for(0.02)
    outcomes: list[AppendOutcome] = []
    cluster.nodes[leader_id].quorum.read_barrier(outcomes.append)
    assert cluster.loop.run_until(lambda: bool(outcomes), 1.0)
    cluster.loop.run_for(0.002)
    assert outcomes == [AppendOutcome.COMMITTED]
    for peer_id in leader.electorate.other_ids:
        assert core_of(cluster, peer_id).engine.commit_index == leader.engine.commit_index - 1
    finish(cluster)


def test_a_link_that_comes_back_costs_no_word_about_the_formation() -> None:
    """Only a peer that was told that this voter is blank must learn that it is none any more."""
    cluster = running()
    counts = _Counts(cluster)
    isolate(cluster, 2)
    cluster.loop.run_for(1.0)
    assert not all_linked(cluster)
    reunite(cluster, 2)
    assert cluster.loop.run_until(lambda: all_linked(cluster), 5.0)
    cluster.loop.run_for(1.0)
    assert counts.sent[AppendEntries] and not counts.sent[Joined]
    finish(cluster)


def test_the_algorithm_has_no_thread_of_its_own() -> None:
    """Its library would tick by itself, beside the steps of the core, which alone know what is on the disk."""
    before = threading.active_count()
    cluster = running(1)
    assert threading.active_count() == before
    finish(cluster)

"""What one commit costs the voters: messages and steps beyond those that agreement needs were a third of a transaction."""

from collections import Counter

from simulation.raft_cluster import TIMING, SimulatedQuorum
from unit.kraft.raft_quorums import core_of, finish, running

from barnabas.kraft.raft.protocol.messages import AppendEntries, AppendReply, Message

COMMANDS = 20
LONGER_THAN_A_COMMIT_S = 0.02  # and shorter than a heartbeat
# Per commit. The leader sends the entry and the new commit index, each to two followers, which acknowledge the entry.
MOST_ENTRIES, MOST_REPLIES = 4, 2
# The leader: appended, flushed, acknowledged. A follower: has the entry, learns of the commit. And now and then a tick.
MOST_STEPS = 3 + 2 * 2


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


def test_messages_and_steps_of_a_commit() -> None:
    cluster = running()
    cluster.loop.run_for(1.0)
    leader = cluster.wait_for_leader()
    counts = _Counts(cluster)
    began = cluster.loop.time()
    for _ in range(COMMANDS):
        cluster.append(leader)
        cluster.loop.run_for(LONGER_THAN_A_COMMIT_S)
    heartbeats = 2 * (int((cluster.loop.time() - began) / TIMING.heartbeat_s) + 1)
    assert core_of(cluster, leader).engine.commit_index == core_of(cluster, leader).journal.last_index
    assert counts.sent[AppendEntries] <= MOST_ENTRIES * COMMANDS + heartbeats
    assert MOST_REPLIES * COMMANDS <= counts.sent[AppendReply] <= MOST_REPLIES * COMMANDS + heartbeats
    assert counts.steps <= MOST_STEPS * COMMANDS + 2 * heartbeats
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

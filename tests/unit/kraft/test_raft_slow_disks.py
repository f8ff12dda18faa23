"""How elections bear slow disks, one rule each; `simulation.slow_elections` has whole histories."""

import pytest
from simulation.raft_cluster import TIMING
from simulation.slow_elections import SlowQuorum
from unit.kraft.raft_quorums import core_of, finish, isolate, running

from barnabas.kraft.quorum.config import RaftTiming
from barnabas.kraft.raft.consensus.elections import ElectionPatience
from barnabas.kraft.raft.protocol.messages import AppendReply, PreVote, RequestPreVote, RequestVote, StaleTerm, Vote


def _patience(undecided: int) -> ElectionPatience:
    patience = ElectionPatience(RaftTiming(), 0.0)
    for _ in range(undecided):
        patience.grow(0.0)
    return patience


@pytest.mark.parametrize(("undecided", "factor"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 5), (9, 5)])
def test_timeouts_double_from_the_second_campaign_on_up_to_the_limit(undecided: int, factor: int) -> None:
    assert _patience(undecided).factor == factor


def test_timeouts_fall_step_by_step_while_one_leader_stays() -> None:
    patience = _patience(20)
    patience.leader_begins(100.0)
    assert patience.factor == 4
    patience.leader_stays(107.9)
    assert patience.factor == 4
    patience.leader_stays(108.0)  # as long as the longest timeout of this factor
    assert patience.factor == 2
    patience.leader_stays(112.0)
    assert patience.factor == 1
    patience.leader_stays(114.0)
    patience.grow(115.0)
    assert patience.factor == 1  # as at the beginning


def test_a_campaign_with_a_result_leaves_the_timeouts_as_they_were() -> None:
    """Leaders that are killed one soon after another are not replaced more slowly."""
    patience = ElectionPatience(RaftTiming(), 0.0)
    for now in range(10):
        patience.grow(now)
        patience.leader_begins(now)
        assert patience.factor == 1
    patience.grow(11.0)
    patience.grow(12.0)
    assert patience.factor == 2


def test_another_leader_has_to_stay_as_long() -> None:
    patience = _patience(20)
    patience.leader_begins(100.0)
    patience.grow(107.0)
    patience.leader_begins(107.0)
    patience.leader_stays(109.0)
    assert patience.factor == 4


def test_a_voter_writes_term_and_vote_at_once() -> None:
    cluster = running()
    core = core_of(cluster, next(node_id for node_id in cluster.ids if node_id != cluster.leader))
    isolate(cluster, core.electorate.node_id, silent=True)
    written = list[str]()
    cluster.disks[core.electorate.node_id].took_time = written.append
    term, candidate = core.engine.term + 3, core.electorate.other_ids[0]
    core.engine.decide_vote(
        candidate, RequestVote(term=term, last_log_index=10**6, last_log_term=term, is_transfer=False)
    )
    assert (core.engine.term, core.engine.voted_for) == (term, candidate)
    assert written == ["write_atomically"]
    finish(cluster)


def test_the_term_of_a_refused_candidate_is_on_the_disk() -> None:
    cluster = running()
    core = core_of(cluster, next(node_id for node_id in cluster.ids if node_id != cluster.leader))
    isolate(cluster, core.electorate.node_id, silent=True)
    term = core.engine.term + 3
    voted = core.engine.decide_vote(
        core.electorate.other_ids[0], RequestVote(term=term, last_log_index=0, last_log_term=0, is_transfer=False)
    )
    assert not voted and core.engine.voted_for is None
    hard_state = core.forming._hard_state
    assert (hard_state.term, hard_state.voted_for) == (term, None)
    finish(cluster)


class _Voter:
    """A voter of three that is cut off from the others; `sent` is what it wants to send them."""

    def __init__(self) -> None:
        self.cluster = running()
        self.node_id = next(node_id for node_id in self.cluster.ids if node_id != self.cluster.leader)
        isolate(self.cluster, self.node_id, silent=True)
        self.core = core_of(self.cluster, self.node_id)
        self.sent = list[object]()
        self.core.elections._transport.send = lambda peer_id, message: self.sent.append(message)  # type: ignore[assignment,func-returns-value]
        self.cluster.loop.run_for(TIMING.election_min_s)  # it hears no leader any more
        self.others = self.core.electorate.other_ids

    def is_asked_for_a_pre_vote(self) -> bool:
        self.sent.clear()
        term = self.core.engine.term + 1
        self.core.elections.on_pre_vote(
            self.others[1], RequestPreVote(term=term, last_log_index=10**6, last_log_term=term)
        )
        return any(isinstance(message, PreVote) for message in self.sent)

    def votes(self) -> None:
        term = self.core.engine.term + 1
        self.core.elections.on_request_vote(
            self.others[0], RequestVote(term=term, last_log_index=10**6, last_log_term=term, is_transfer=False)
        )
        assert any(isinstance(message, Vote) for message in self.sent)


def test_a_voter_that_has_just_voted_gives_no_pre_vote_to_another_candidate() -> None:
    voter = _Voter()
    assert voter.is_asked_for_a_pre_vote()
    voter.votes()
    assert not voter.is_asked_for_a_pre_vote()
    voter.cluster.loop.run_for(TIMING.election_min_s - TIMING.heartbeat_s + 0.01)
    assert voter.is_asked_for_a_pre_vote()
    finish(voter.cluster)


def test_a_vote_for_a_candidate_whose_link_broke_binds_no_more() -> None:
    voter = _Voter()
    voter.votes()
    assert not voter.is_asked_for_a_pre_vote()
    voter.core.disconnected(voter.others[1])
    assert not voter.is_asked_for_a_pre_vote()
    voter.core.disconnected(voter.others[0])
    assert voter.is_asked_for_a_pre_vote()
    finish(voter.cluster)


def test_a_late_vote_counts_while_the_next_campaign_is_prepared() -> None:
    voter = _Voter()
    elections, engine = voter.core.elections, voter.core.engine
    elections._campaign(asked=False)
    elections._start_prevote()
    assert engine.is_candidate
    elections.on_response_vote(voter.others[0], Vote(term=engine.term))
    assert engine.is_leader
    term = engine.term
    for peer_id in voter.others:  # of the poll that was open
        elections.on_pre_vote_ok(peer_id, PreVote(term=term + 1))
    assert engine.is_leader and engine.term == term
    voter.cluster.close()


def test_the_timeout_of_a_candidate_begins_when_its_own_vote_is_on_the_disk() -> None:
    cluster = SlowQuorum(3, 3)
    cluster.start_all()
    cluster.commit()
    core = core_of(cluster, next(node_id for node_id in cluster.ids if node_id != cluster.leader))
    cluster.slow_down(1.0, 0.0)
    core.elections._campaign(asked=False)
    assert core.elections._deadline >= cluster.loop.time() + 2 * 0.8 + TIMING.election_min_s
    cluster.close()


def test_the_time_of_own_writes_is_no_silence_of_the_others() -> None:
    cluster = running()
    leader = core_of(cluster, cluster.wait_for_leader())
    follower = core_of(cluster, next(node_id for node_id in cluster.ids if node_id != cluster.leader))
    now = cluster.loop.time()
    for core in (leader, follower):
        core.elections.excuse_absence(now)
    remaining_s = follower.elections._deadline - now
    for core in (leader, follower):
        core.elections.excuse_absence(now + 5.0)
    assert follower.elections._deadline - (now + 5.0) == pytest.approx(remaining_s - TIMING.heartbeat_s)
    leader.elections.give_up_if_isolated(now + 5.0)
    assert leader.engine.is_leader
    leader.elections.give_up_if_isolated(now + 5.0 + TIMING.leader_fallback_s)
    assert not leader.engine.is_leader
    cluster.close()


def test_a_follower_whose_flush_is_under_way_gives_signs_of_life_but_acknowledges_nothing() -> None:
    cluster = running()
    follower = core_of(cluster, next(node_id for node_id in cluster.ids if node_id != cluster.leader))
    cluster.loop.run_for(0.5)  # it has nothing in its hands any more
    assert follower.journal.durable_index == follower.journal.last_index
    cluster.nodes[follower.electorate.node_id].executor._delay = lambda: 20.0
    sent = list[AppendReply]()
    genuine = follower.follower._transport.send

    def send(peer_id: int, message: object) -> bool:
        if isinstance(message, AppendReply):
            sent.append(message)
        return genuine(peer_id, message)  # type: ignore[arg-type]

    follower.follower._transport.send = send  # type: ignore[method-assign]
    durable = follower.journal.durable_index
    cluster.append(cluster.wait_for_leader())
    cluster.loop.run_for(2.0)
    waiting = [reply for reply in sent if not reply.is_success]
    assert 10 < len(waiting) <= 2.0 / TIMING.heartbeat_s + 1
    assert all(not reply.is_reset and reply.next_index == durable + 1 for reply in waiting)
    assert follower.journal.durable_index == durable
    finish(cluster)


def test_a_candidate_of_an_earlier_term_is_told_the_present_one() -> None:
    """It would campaign in vain otherwise, term after term."""
    cluster = running()
    core = core_of(cluster, next(node_id for node_id in cluster.ids if node_id != cluster.leader))
    core.elections._leader_heard_at = -1_000.0
    peer, term, sent = core.electorate.other_ids[0], core.engine.term, list[tuple[int, object]]()

    def send(peer_id: int, message: object) -> bool:
        sent.append((peer_id, message))
        return True

    core.elections._transport.send = send  # type: ignore[method-assign]
    core.elections.on_request_vote(
        peer, RequestVote(term=term - 1, last_log_index=10**6, last_log_term=term, is_transfer=False)
    )
    core.elections.on_pre_vote(peer, RequestPreVote(term=term, last_log_index=10**6, last_log_term=term))
    assert sent == [(peer, StaleTerm(term=term))] * 2
    finish(cluster)


def test_a_follower_acknowledges_the_newest_of_what_waited_for_its_flush() -> None:
    """Not at the next heartbeat: a commit would wait for it."""
    cluster = running()
    follower = core_of(cluster, next(node_id for node_id in cluster.ids if node_id != cluster.leader))
    cluster.nodes[follower.electorate.node_id].executor._delay = lambda: 20.0
    leader = cluster.wait_for_leader()
    follower.follower._unacknowledged = (leader, follower.engine.term - 1, 10**6)  # of a leader that is gone
    for _ in range(3):
        cluster.append(leader)
        cluster.loop.run_for(0.1)
    assert follower.follower._unacknowledged == (leader, follower.engine.term, follower.journal.last_index)
    finish(cluster)


def test_a_vote_for_a_leader_whose_link_broke_binds_no_more() -> None:
    voter = _Voter()
    voter.votes()
    assert not voter.is_asked_for_a_pre_vote()
    voter.core.elections.leader_link_lost()
    assert voter.is_asked_for_a_pre_vote()
    finish(voter.cluster)


def test_a_leader_gives_up_as_late_as_others_campaign_and_takes_it_for_a_failed_election() -> None:
    cluster = running()
    leader = core_of(cluster, cluster.wait_for_leader())
    elections, now = leader.elections, cluster.loop.time()
    elections._patience = _patience(2)
    assert elections._patience.factor == 2
    elections.give_up_if_isolated(now + 1.9 * TIMING.leader_fallback_s)
    assert leader.engine.is_leader
    elections.give_up_if_isolated(now + 2.3 * TIMING.leader_fallback_s)
    assert not leader.engine.is_leader and elections._patience.factor == 4
    cluster.close()


def test_the_timeouts_of_a_quorum_fall_while_its_leader_stays() -> None:
    cluster = running()
    cluster.wait_for_leader()
    cores = [core_of(cluster, node_id) for node_id in cluster.ids]
    for core in cores:
        for _ in range(2):
            core.elections._patience.grow(cluster.loop.time())
    cluster.loop.run_for(5 * TIMING.election_max_s)
    assert [core.elections._patience.factor for core in cores] == [1, 1, 1]
    finish(cluster)

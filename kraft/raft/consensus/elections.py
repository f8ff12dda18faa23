"""Elections: pre-vote, votes, stale terms, and the hint of a broken link.

With pre-vote (Ongaro, 9.6) and leader stickiness, a voter that was partitioned cannot depose a healthy leader. Therefore it is
safe to campaign at once when the link to the leader breaks, and after kill -9 the next leader is elected within 100 ms.

Slow disks: a vote takes two flushes, during which a voter hears nothing. So a campaign goes on until another one replaces it; a
voter that has just voted gives no pre-vote to another candidate; the time of own writes is no silence of others; and timeouts
grow while campaigns have no result (`ElectionPatience`).
"""

from ...quorum.config import LINK_LOSS_DELAY_S, LINK_LOSS_STEP_S, RaftTiming
from ...quorum.formation import Formation
from ..protocol.messages import PreVote, RequestPreVote, RequestVote, StaleTerm, TimeoutNow, Vote
from .electorate import Electorate
from .engine import PysyncobjEngine
from .ports import Journal, Ports, info, send_to_all, warning

NEVER = float("-inf")


class ElectionPatience:
    """The factor of the timeouts: it doubles with each campaign that had no result, and falls again while one leader stays.

    Raft's timeouts must be longer than a broadcast with its flushes (Ongaro, 3.9), and slow disks show what that takes only when
    campaigns fail. The first repetition is not slower: simultaneous candidates split the votes on healthy disks, too.

    Invariant: 1 <= `factor` <= most_patience.
    """

    def __init__(self, timing: RaftTiming, now: float) -> None:
        self._timing = timing
        self._most_doublings = max(0, (timing.most_patience - 1).bit_length())
        self._undecided = 0  # campaigns without a result, one less for each period in which a leader stayed
        self._stable_since = now
        self.factor = 1

    def grow(self, now: float) -> None:
        """This voter campaigns or has voted for a candidate, or it led and could not stay."""
        self._count(min(self._undecided + 1, self._most_doublings + 1), now)

    def leader_begins(self, now: float) -> None:
        """The newest campaign has a result."""
        self._count(max(0, self._undecided - 1), now)

    def leader_stays(self, now: float) -> None:
        """Asked in every step with a leader."""
        if self._undecided and now - self._stable_since >= self._timing.election_max_s * self.factor:
            self._count(self._undecided - 1, now)

    def _count(self, undecided: int, now: float) -> None:
        self._undecided = undecided
        self._stable_since = now
        self.factor = min(1 << max(0, undecided - 1), self._timing.most_patience)


class Elections:
    """Invariant: while `formation.blank`, this voter's term and vote never change by an election."""

    def __init__(
        self,
        electorate: Electorate,
        formation: Formation,
        engine: PysyncobjEngine,
        journal: Journal,
        ports: Ports,
    ) -> None:
        self._node_id = electorate.node_id
        self._electorate = electorate
        self._formation = formation
        self._engine = engine
        self._journal = journal
        self._transport = ports.transport
        self._clock = ports.clock
        self._rng = ports.rng
        self._timing = ports.timing
        self._sticky_s = ports.timing.election_min_s - ports.timing.heartbeat_s
        self._wake = ports.wake
        self._wake_later = ports.wake_later
        self._report = ports.report
        self._leader_heard_at = NEVER
        self._voted_at = NEVER  # for a candidate that may not know it yet, or for itself
        self._prevote_term: int | None = None  # of the poll that is open
        self._prevotes: set[int] = set()
        self._votes: set[int] = set()
        self._led_by = (-1, -1)  # (term, its leader): a term never has another one
        self._is_taking_over = False  # the leader has requested it: its heartbeats do not delay the campaign
        self._patience = ElectionPatience(self._timing, self._clock())
        self._looked_at = self._clock()  # until when this voter could hear its peers
        self.may_lead = True  # False: this node votes and follows, and leaves the leadership to others if there are any
        self.restart_timer()

    def restart_timer(self) -> None:
        timeout_s = self._rng.uniform(self._timing.election_min_s, self._timing.election_max_s) * self._patience.factor
        self._looked_at = self._clock()
        self._deadline = self._looked_at + timeout_s

    def excuse_absence(self, now: float) -> None:
        """Asked in every step. Peers were not silent while this voter did not listen because it waited for its own disk."""
        away_s = now - self._looked_at - self._timing.heartbeat_s
        self._looked_at = now
        if self._engine.leader_id is not None:
            self._patience.leader_stays(now)
        if away_s <= 0:
            return
        self._deadline += away_s
        if self._engine.is_leader:
            for peer_id in self._electorate.other_ids:
                self._engine.set_heard(peer_id, min(now, self._engine.heard_at(peer_id) + away_s))

    # Campaigning

    def campaign_if_due(self, now: float) -> None:
        """A voter that does not lead asks this in every step."""
        if self._formation.blank or not self._electorate.is_voter:
            return
        if not self._electorate.other_ids:  # a single voter does not have to wait
            self._campaign(asked=False)
        elif now <= self._deadline or not self.may_lead:
            return
        elif self._is_taking_over:
            self._campaign(asked=True)
        else:
            self._start_prevote()

    def _start_prevote(self) -> None:
        """An open campaign goes on: votes that slow disks have delayed arrive before the answers to this."""
        self.restart_timer()
        if not self._engine.is_candidate:
            self._engine.follow(None)
        self._prevote_term = self._engine.term + 1
        self._prevotes = {self._node_id}
        send_to_all(
            self._transport,
            self._electorate.other_ids,
            RequestPreVote(
                term=self._prevote_term,
                last_log_index=self._journal.last_index,
                last_log_term=self._journal.last_term,
            ),
        )

    def _campaign(self, *, asked: bool) -> None:
        """`asked`: the leader hands over its leadership; other voters then vote although they receive its messages."""
        self._prevote_term = None
        self._is_taking_over = False
        self._engine.start_candidacy()
        self._voted_at = self._clock()
        self._patience.grow(self._voted_at)
        self.restart_timer()  # after the two flushes of the own vote: the others have not been asked before
        self._votes = {self._node_id}
        self._report(info(f"campaign node={self._node_id} term={self._engine.term}"))
        send_to_all(
            self._transport,
            self._electorate.other_ids,
            RequestVote(
                term=self._engine.term,
                last_log_index=self._journal.last_index,
                last_log_term=self._journal.last_term,
                is_transfer=asked,
            ),
        )
        if self._electorate.majority == 1:
            self.become_leader()

    def candidate_link_lost(self) -> None:
        """The candidate that has got this vote will hardly lead."""
        self._voted_at = NEVER

    def leader_link_lost(self) -> None:
        """The leader's process has ended, or the network between us; pre-vote finds out which."""
        self._leader_heard_at = self._voted_at = NEVER
        before_us = sum(
            other < self._node_id for other in self._electorate.other_ids if other != self._engine.leader_id
        )
        delay_s = self._rng.uniform(*LINK_LOSS_DELAY_S) + before_us * LINK_LOSS_STEP_S
        if self._clock() + delay_s < self._deadline:
            self._deadline = self._clock() + delay_s
            self._wake_later(delay_s + 0.001)

    def campaign_at_once_if_first(self) -> None:
        """At a cold start the lowest id does not wait for its timeout. Pre-vote protects an existing leader."""
        cold = self._leader_heard_at == NEVER and not self._engine.is_leader and self._engine.leader_id is None
        if (
            cold
            and self._electorate.is_voter
            and not self._formation.blank
            and all(self._node_id < other for other in self._electorate.other_ids)
        ):
            self._deadline = 0.0
            self._wake()

    def note_leader(self, peer_id: int, term: int) -> None:
        """A message that only the leader of `term` sends; `term` is not behind ours."""
        self._leader_heard_at = self._clock()
        self._prevote_term = None
        if term > self._engine.term:
            self._is_taking_over = False
            self._engine.set_term(term, None)
        if not self._is_taking_over:
            self.restart_timer()
        if self._engine.leader_id != peer_id:
            self._patience.leader_begins(self._leader_heard_at)
        self._led_by = (term, peer_id)
        self._engine.follow(peer_id)

    def step_down(self, term: int) -> None:
        if term > self._engine.term:
            self._engine.set_term(term, None)
            self._engine.follow(None)

    def give_up_if_isolated(self, now: float) -> None:
        """A leader without contact to a majority stops before the others elect another one, unless their patience is shorter.
        What it answers until then waits for a commit where that matters (`ControllerResult.must_confirm`)."""
        oldest = now - self._timing.leader_fallback_s * self._patience.factor
        heard = self._engine.heard_since(self._formation.counting(self._electorate.other_ids), oldest)
        if heard + 1 < self._electorate.majority:
            self._patience.grow(now)
            self.give_up("no majority in reach")

    def give_up(self, reason: str) -> None:
        """Follow, and let the others elect."""
        self._report(warning(f"leader gives up node={self._node_id} term={self._engine.term} reason={reason}"))
        self._engine.follow(None)
        self.restart_timer()

    def is_live(self, peer_id: int, now: float) -> bool:
        """As leader: whether this voter is connected, counts, and has answered lately."""
        if peer_id == self._node_id:
            return True
        recent = now - self._engine.heard_at(peer_id) <= self._timing.leader_fallback_s
        return peer_id in self._formation.peers and self._formation.counts(peer_id) and recent

    def become_leader(self) -> None:
        self._led_by = (self._engine.term, self._node_id)
        self._prevote_term = None
        self._patience.leader_begins(self._clock())
        self._engine.become_leader()

    @property
    def leader_of_term(self) -> int | None:
        """The leader of the current term, as far as this node knows."""
        term, leader_id = self._led_by
        return leader_id if term == self._engine.term else None

    # Messages

    @property
    def _hears_a_leader(self) -> bool:
        return self._engine.is_leader or self._clock() - self._leader_heard_at < self._sticky_s

    def on_pre_vote(self, peer_id: int, message: RequestPreVote) -> None:
        if self._formation.blank or self._hears_a_leader:
            return
        if message.term <= self._engine.term:
            self._transport.send(peer_id, StaleTerm(term=self._engine.term))
        elif self._clock() - self._voted_at >= self._sticky_s and self._is_up_to_date(message):
            self._transport.send(peer_id, PreVote(term=message.term))

    def on_pre_vote_ok(self, peer_id: int, message: PreVote) -> None:
        if self._prevote_term != message.term or self._prevote_term != self._engine.term + 1:
            return
        self._prevotes.add(peer_id)
        if self._electorate.are_majority(self._prevotes):
            self._campaign(asked=False)

    def on_request_vote(self, peer_id: int, message: RequestVote) -> None:
        """Candidates may use a configuration that this node does not know yet, so theirs applies, not its own."""
        if self._formation.blank:
            return
        if message.term < self._engine.term:
            self._transport.send(peer_id, StaleTerm(term=self._engine.term))
            return
        may_vote = (
            message.is_transfer or not self._hears_a_leader
        )  # Raft thesis, 4.2.3: removed voters must not depose a leader
        if may_vote and self._engine.decide_vote(peer_id, message):
            self._voted_at = self._clock()
            self._patience.grow(self._voted_at)
            self.restart_timer()

    def on_response_vote(self, peer_id: int, message: Vote) -> None:
        if self._engine.is_candidate and message.term == self._engine.term and peer_id not in self._votes:
            self._votes.add(peer_id)
            if self._electorate.are_majority(self._votes):
                self.become_leader()

    def on_stale_term(self, _peer_id: int, message: StaleTerm) -> None:
        if not self._formation.blank:
            self.step_down(message.term)

    def on_timeout_now(self, peer_id: int, message: TimeoutNow) -> None:
        if not self._formation.blank and self._electorate.is_voter and self.may_lead:
            self._take_over_if_asked(peer_id, message)

    def _take_over_if_asked(self, peer_id: int, message: TimeoutNow) -> None:
        if self._engine.is_asked_to_take_over(peer_id, message):
            self._is_taking_over = True
            self._deadline = 0.0

    def _is_up_to_date(self, message: RequestPreVote) -> bool:
        theirs = (message.last_log_term, message.last_log_index)
        return bool(theirs >= (self._journal.last_term, self._journal.last_index))

"""Who may lead: pre-vote, votes, stale terms, the hint of a broken link, and blank voters (see `raft_formation`).

Pre-vote (Ongaro, 9.6) and leader stickiness keep a voter that was away from deposing a healthy leader. With them it
is safe to take the broken link to a leader as a hint to campaign at once, so kill -9 costs less than 100 ms.
"""

import logging
import random
from collections.abc import Callable

from ..quorum.config import LINK_LOSS_DELAY_S, LINK_LOSS_STEP_S, MAX_TERM_STEP, REFUSAL_LOG_INTERVAL_S, RaftTiming
from ..quorum.formation import Formation, VoterState
from ..quorum.voters import BOOTSTRAP_INDEX, Membership
from .disk.journal import DurableJournal
from .disk.snapshot import SnapshotSender
from .internals import MessageTransport, RaftInternals
from .net.messages import (
    AppendEntries,
    Formed,
    FormQuery,
    FormState,
    InstallSnapshot,
    Joined,
    Message,
    PreVote,
    RequestPreVote,
    RequestVote,
    StaleTerm,
    TimeoutNow,
    Vote,
    Welcome,
)

_log = logging.getLogger("barnabas.quorum")
_NEVER = float("-inf")
FROM_THE_LEADER = (AppendEntries, InstallSnapshot)


class RaftElections(RaftInternals):
    """Invariant: while `formation.blank`, this voter's term and vote never change by an election."""

    def __init__(
        self,
        *,
        node_id: int,
        membership: Membership,
        journal: DurableJournal,
        transport: MessageTransport,
        sender: SnapshotSender,
        clock: Callable[[], float],
        rng: random.Random,
        timing: RaftTiming,
        wake: Callable[[], None],
        wake_later: Callable[[float], None],
        batch_bytes: int,
    ) -> None:
        self.node_id = node_id
        self.membership = membership
        self._take_voters()
        self.formation = Formation(node_id, membership.current.ids, blank=journal.blank)
        self._clock = clock
        self._rng = rng
        self._timing = timing
        self._wake = wake
        self._wake_later = wake_later
        self._leader_heard_at = _NEVER
        self._prevote_term: int | None = None  # of the poll that is open
        self._prevotes: set[int] = set()
        self._votes: set[int] = set()
        self._led_by = (-1, -1)  # (term, its leader): a term never has another one
        self._term_raised_at = _NEVER
        self._refusal_told_at = _NEVER
        self.refused_messages = 0  # that were not believed, since the start
        self.may_lead = True  # False: this node votes and follows, and leaves the leadership to others if there are any
        super().__init__(
            node_id=node_id,
            other_ids=self.other_ids,
            journal=journal,
            transport=transport,
            sender=sender,
            clock=clock,
            timing=timing,
            batch_bytes=batch_bytes,
        )

    def _take_voters(self) -> None:
        """The configuration in force, in the form that is used at every step."""
        current = self.membership.current
        self.other_ids = sorted(current.ids - {self.node_id})
        self.majority = current.majority
        self.is_voter = self.node_id in current.ids

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._rng.uniform(self._timing.election_min_s, self._timing.election_max_s)

    def restart_election_timer(self) -> None:
        self.election_deadline = self._clock() + self._SyncObj__generateRaftTimeout()

    def tell(self, peer_id: int, message: Message) -> None:
        self.port.send(peer_id, message)

    def tell_all(self, message: Message) -> None:
        for peer_id in self.other_ids:
            self.port.send(peer_id, message)

    # Campaigning

    def campaign_if_due(self, now: float) -> None:
        if self.is_leader or self.formation.blank or not self.is_voter:
            return
        if not self.other_ids:  # the only voter has nobody to wait for
            self._campaign(asked=False)
        elif now <= self.election_deadline or not self.may_lead:
            return
        elif self.transfer_in_progress:
            self._campaign(asked=True)
        else:
            self._start_prevote()

    def _start_prevote(self) -> None:
        self.restart_election_timer()
        self.follow(None)
        self._prevote_term = self.term + 1
        self._prevotes = {self.node_id}
        self.tell_all(
            RequestPreVote(
                term=self._prevote_term,
                last_log_index=self.journal.last_index,
                last_log_term=self.journal.last_term,
            )
        )

    def _campaign(self, *, asked: bool) -> None:
        """`asked`: by the leader itself, who hands over; others then need not mind that they hear one."""
        self._prevote_term = None
        self.restart_election_timer()
        self.start_candidacy()
        self._votes = {self.node_id}
        _log.info("campaign node=%d term=%d", self.node_id, self.term)
        self.tell_all(
            RequestVote(
                term=self.term,
                last_log_index=self.journal.last_index,
                last_log_term=self.journal.last_term,
                is_transfer=asked,
            )
        )
        if self.majority == 1:
            self.become_leader()

    def leader_link_lost(self) -> None:
        """The leader's process has ended, or the network between us; pre-vote finds out which."""
        self._leader_heard_at = _NEVER
        before_us = sum(other < self.node_id for other in self.other_ids if other != self.leader_id)
        delay_s = self._rng.uniform(*LINK_LOSS_DELAY_S) + before_us * LINK_LOSS_STEP_S
        if self._clock() + delay_s < self.election_deadline:
            self.election_deadline = self._clock() + delay_s
            self._wake_later(delay_s + 0.001)

    def campaign_at_once_if_first(self) -> None:
        """At a cold start the lowest id does not wait for its timeout. Pre-vote spares a leader that exists."""
        cold = self._leader_heard_at == _NEVER and not self.is_leader and self.leader_id is None
        if (
            cold
            and self.is_voter
            and not self.formation.blank
            and all(self.node_id < other for other in self.other_ids)
        ):
            self.election_deadline = 0.0
            self._wake()

    def note_leader(self, peer_id: int, term: int) -> None:
        """A message that only the leader of `term` sends; `term` is not behind ours."""
        self._leader_heard_at = self._clock()
        self._prevote_term = None
        if term > self.term:
            self.transfer_in_progress = False
            self.set_term(term, None)
        if not self.transfer_in_progress:
            self.restart_election_timer()
        self._led_by = (term, peer_id)
        self.follow(peer_id)

    def step_down(self, term: int) -> None:
        if term > self.term:
            self.set_term(term, None)
            self.follow(None)

    def give_up_if_isolated(self, now: float) -> None:
        """A leader that hears no majority stops before the others may have elected another one."""
        oldest = now - self._timing.leader_fallback_s
        heard = sum(1 for peer in self.other_ids if self.formation.counts(peer) and self.heard_at(peer) > oldest)
        if heard + 1 < self.majority:
            _log.warning("leader gives up node=%d term=%d reason=no majority in reach", self.node_id, self.term)
            self.follow(None)
            self.restart_election_timer()

    # What is not believed

    def believes(self, peer_id: int, message: Message) -> bool:
        """Is this a message that our peers can have sent? Nothing that a peer says may end this process or stay on its disk
        for good, so a term is taken in plausible steps only, and a term has one leader.

        Raising our own term by any amount is always safe in Raft; what is refused is only to do it at once.
        """
        term = message.term
        if term > self.term + MAX_TERM_STEP:
            self._refused(peer_id, f"{type(message).__name__} of term {term}, ours is {self.term}")
            self._raise_term(message)
            return False
        if term == self.term and isinstance(message, FROM_THE_LEADER) and self._is_led_by_another(peer_id):
            self._refused(peer_id, f"two leaders in term {term}: {self._leader_of_term()} and {peer_id}")
            return False
        return True

    def _raise_term(self, message: Message) -> None:
        now = self._clock()
        may_learn = not self.formation.blank or isinstance(message, FROM_THE_LEADER)
        if may_learn and now - self._term_raised_at >= self._timing.heartbeat_s:
            self._term_raised_at = now
            self.step_down(self.term + MAX_TERM_STEP)

    def become_leader(self) -> None:
        self._led_by = (self.term, self.node_id)
        super().become_leader()

    def _leader_of_term(self) -> int | None:
        term, leader_id = self._led_by
        return leader_id if term == self.term else None

    def _is_led_by_another(self, peer_id: int) -> bool:
        return self._leader_of_term() not in (None, peer_id)

    def _refused(self, peer_id: int, reason: str) -> None:
        self.refused_messages += 1
        now = self._clock()
        if now - self._refusal_told_at >= REFUSAL_LOG_INTERVAL_S:
            self._refusal_told_at = now
            _log.error(
                "message refused node=%d peer=%d refused_so_far=%d reason=%s. Somebody forges messages of voters, or a voter "
                "runs twice: see who reaches the quorum ports",
                self.node_id,
                peer_id,
                self.refused_messages,
                reason,
            )

    # Messages

    @property
    def _hears_a_leader(self) -> bool:
        sticky_s = self._timing.election_min_s - self._timing.heartbeat_s
        return self.is_leader or self._clock() - self._leader_heard_at < sticky_s

    def on_pre_vote(self, peer_id: int, message: RequestPreVote) -> None:
        if self.formation.blank or self._hears_a_leader:
            return
        if message.term <= self.term:
            self.tell(peer_id, StaleTerm(term=self.term))
        elif self._is_up_to_date(message):
            self.tell(peer_id, PreVote(term=message.term))

    def on_pre_vote_ok(self, peer_id: int, message: PreVote) -> None:
        if self._prevote_term != message.term or self._prevote_term != self.term + 1:
            return
        self._prevotes.add(peer_id)
        if self._are_majority(self._prevotes):
            self._campaign(asked=False)

    def _are_majority(self, voters: set[int]) -> bool:
        """Of the configuration in force; others may have answered because of an older one."""
        return len(voters & self.membership.current.ids) >= self.majority

    def on_request_vote(self, peer_id: int, message: RequestVote) -> None:
        """Voters ask for our vote in a configuration that we may not know yet, so it is theirs that counts, not ours."""
        if self.formation.blank:
            return
        if message.term < self.term:
            self.tell(peer_id, StaleTerm(term=self.term))
        elif message.is_transfer or not self._hears_a_leader:  # thesis, 4.2.3: whoever was removed disturbs nobody
            self.decide_vote(peer_id, message)

    def on_response_vote(self, peer_id: int, message: Vote) -> None:
        if self.is_candidate and message.term == self.term and peer_id not in self._votes:
            self._votes.add(peer_id)
            if self._are_majority(self._votes):
                self.become_leader()

    def on_stale_term(self, _peer_id: int, message: StaleTerm) -> None:
        if not self.formation.blank:
            self.step_down(message.term)

    def on_timeout_now(self, peer_id: int, message: TimeoutNow) -> None:
        if not self.formation.blank and self.is_voter and self.may_lead:
            self.take_over(peer_id, message)

    def _is_up_to_date(self, message: RequestPreVote) -> bool:
        theirs = (message.last_log_term, message.last_log_index)
        return bool(theirs >= (self.journal.last_term, self.journal.last_index))

    # Blank voters

    def voter_state(self) -> VoterState:
        if self.formation.blank:
            return VoterState.BLANK
        untouched = self.term == 0 and self.voted_for is None and self.journal.last_index <= 1
        return VoterState.PRISTINE if untouched else VoterState.VOTER

    def form_if_possible(self, now: float) -> None:
        if not self.formation.blank:
            return
        may_form = self.is_voter and self.membership.current.index == BOOTSTRAP_INDEX  # later there is what to forget
        if may_form and self.formation.is_complete:
            self._become_voter("single voter")
            return
        nonce = self._rng.getrandbits(48)
        if may_form and self.formation.open_round(now, nonce):
            self.tell_all(FormQuery(nonce=nonce))
        complaint = self.formation.complaint(now)
        if complaint is not None:
            _log.warning("%s", complaint)

    def _become_voter(self, how: str) -> None:
        self.journal.clear_blank()
        self.formation.cleared()
        _log.info("voter takes part node=%d how=%s", self.node_id, how)
        for peer_id in sorted(self.formation.peers):
            self.tell(peer_id, Joined())
        if how == "learned":
            self.restart_election_timer()
        else:
            self.campaign_at_once_if_first()

    def on_form_query(self, peer_id: int, message: FormQuery) -> None:
        state = self.voter_state()
        self.formation.answer(peer_id, message.nonce, state)
        self.tell(peer_id, FormState(nonce=message.nonce, state=state))

    def on_form_state(self, peer_id: int, message: FormState) -> None:
        if self.formation.answered(peer_id, message.nonce, message.state):
            self.tell_all(Formed(nonce=message.nonce))
            self._become_voter("formation")

    def on_formed(self, peer_id: int, message: Formed) -> None:
        if self.formation.told_formed(peer_id, message.nonce):
            self._become_voter("formation")

    def on_joined(self, peer_id: int, _message: Joined) -> None:
        self.formation.peer_joined(peer_id)

    def on_welcome(self, peer_id: int, message: Welcome) -> None:
        """The leader says that what we have on disk holds all that we may have forgotten."""
        if not self.formation.blank:
            self.tell(peer_id, Joined())
        elif message.term == self.term and message.index <= self.journal.durable_index:
            self._become_voter("learned")

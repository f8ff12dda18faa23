"""Voters are added and removed one at a time, and leadership is handed over: what a leader does for it.

An added node learns first: it is sent the journal (or a snapshot) and counts for nothing, neither in a majority nor for our
right to lead. It is proposed as a voter when a whole round of catching up took it less than an election timeout (Ongaro's
thesis, 4.2.1), it was connected and not blank: the pause that its joining can cause is one round.

Whoever asks asks again until it is done (`VoterProgress`): a change that nobody asks about any more lapses as long as it is
not in the journal, and a new leader begins it anew. pysyncobj's own way of changing members is closed (research, 2i).
"""

import logging
from dataclasses import dataclass

from barnabas.log.vocabulary.errors import InvalidRequestError, NotControllerError

from ..quorum.voters import (
    BOOTSTRAP_INDEX,
    MAX_VOTERS,
    MEMBERSHIP,
    QuorumPeer,
    QuorumStatus,
    Voter,
    VoterProgress,
    VoterSet,
    encode_voters,
)
from .replication import RaftReplication

_log = logging.getLogger("barnabas.quorum")

LEARNER_LAPSES_AFTER_S = 15.0  # since somebody has asked for the change: the command that did has been given up
HAND_OVER_RESEND_S = 0.05  # the request to take over may be lost with a link


@dataclass(slots=True, kw_only=True)
class _Learner:
    """Invariant: not a voter. `round_end` is what it must have to end the round, 0: none has begun."""

    voter: Voter
    asked_at: float
    round_end: int = 0
    round_began_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class _HandOver:
    target: int
    deadline: float
    asked_at: float = float("-inf")


class RaftMembership(RaftReplication):
    """Invariant: a leader is a voter of its own configuration; it never removes itself, it hands over first."""

    _learner: _Learner | None = None
    _hand_over: _HandOver | None = None
    _has_offered: bool = False  # a leader that must not lead has asked another voter to take over
    _met: VoterSet | None = None
    _linked: frozenset[int] = frozenset()
    _links_index: int = -1  # of the committed configuration that the links were made for

    # Links

    def links_changed(self) -> None:
        """Links to all who may have to be heard; entries to the voters in force and to the learner only."""
        peers = dict(self.membership.reachable(self.commit_index))
        learners = []
        if self._learner is not None:
            learners = [self._learner.voter.node_id]
            peers[learners[0]] = self._learner.voter
        if self._met is not None and self._met.index > self.membership.current.index:
            peers = {**{voter.node_id: voter for voter in self._met.voters}, **peers}
        peers.pop(self.node_id, None)
        self._links_index = self.membership.at(self.commit_index).index
        for gone in sorted(self._linked - peers.keys()):
            self.forget_peer(gone)
        self._linked = frozenset(peers)
        self.set_recipients(self.other_ids, learners)
        self.port.set_peers({peer_id: (peer.host, peer.port) for peer_id, peer in sorted(peers.items())})

    def meet(self, voters: VoterSet) -> None:
        """What somebody else knows of the voters, for a node that hears no leader: while it was away, or when its disk was
        emptied, all that it knows may have been replaced. It only makes links; who votes is for the journal to say."""
        if voters.index > self.membership.current.index and voters != self._met:
            self._met = voters
            self.links_changed()

    # Requests, to the leader

    def add_voter(self, voter: Voter, now: float) -> VoterProgress:
        """Raises NotControllerError; InvalidRequestError where the change is refused."""
        self._check_leader()
        current = self.membership.current
        if voter.node_id in current.ids:
            return self._finished() if self._is_settled() else self._committing()
        self._check_alone(voter.node_id)
        if len(current.voters) >= MAX_VOTERS:
            raise InvalidRequestError(f"there are {MAX_VOTERS} voters already, which is the limit: remove one first")
        learner = self._learner
        if learner is None or learner.voter != voter:
            learner = self._learner = _Learner(voter=voter, asked_at=now)
            _log.info("learner begins node=%d learner=%d at=%s:%d", self.node_id, voter.node_id, voter.host, voter.port)
            self.links_changed()
        learner.asked_at = now
        self._wake()
        return VoterProgress(done=False, state=self._learner_state(learner))

    def remove_voter(self, node_id: int, now: float) -> VoterProgress:
        """Raises NotControllerError; InvalidRequestError where the change is refused."""
        self._check_leader()
        current = self.membership.current
        if node_id not in current.ids:
            if self._learner is not None and self._learner.voter.node_id == node_id:
                self._drop_learner("its removal is asked for")
            return self._finished() if self._is_settled() else self._committing()
        self._check_alone(node_id)
        if len(current.voters) == 1:
            raise InvalidRequestError(f"voter {node_id} is the only one: add another voter before you remove it")
        self._check_live_majority(node_id, now)
        if node_id == self.node_id:
            if not self.begin_hand_over(now):
                return VoterProgress(done=False, state="no other voter can take over the leadership yet")
            return VoterProgress(done=False, state=f"voter {node_id} leads and hands over first")
        if not self.may_change_voters():
            return VoterProgress(done=False, state="an earlier entry of this leader must be committed first")
        self._append_voters(current.without(node_id))
        return self._committing()

    def _check_leader(self) -> None:
        if not self.is_leader:
            raise NotControllerError(f"node {self.node_id} does not lead the quorum")

    def _check_alone(self, node_id: int) -> None:
        """One change at a time: a second learner is refused, and what is not committed yet is waited for."""
        if self._learner is not None and self._learner.voter.node_id != node_id:
            raise InvalidRequestError(
                f"node {self._learner.voter.node_id} is being added to the voters: wait until it is done, or for"
                f" {LEARNER_LAPSES_AFTER_S:g} s if that command was given up"
            )

    def _check_live_majority(self, node_id: int, now: float) -> None:
        rest = sorted(self.membership.current.ids - {node_id})
        dead = [peer for peer in rest if not self._is_live(peer, now)]
        needed = len(rest) // 2 + 1
        if len(rest) - len(dead) < needed:
            raise InvalidRequestError(
                f"without voter {node_id} the voters are {rest}, of which {needed} must be up, but {dead} cannot be"
                " reached: start these again, or remove a dead one first"
            )

    def _is_live(self, peer_id: int, now: float) -> bool:
        if peer_id == self.node_id:
            return True
        recent = now - self.heard_at(peer_id) <= self._timing.leader_fallback_s
        return peer_id in self.formation.peers and self.formation.counts(peer_id) and recent

    # Rules

    def may_change_voters(self) -> bool:
        """Only one change that is not committed, and only after an entry of our own term was: see `raft_voters`."""
        return self.is_leader and self._is_settled() and self.journal.term_at(self.commit_index) == self.term

    def _is_settled(self) -> bool:
        return self.membership.current.index <= self.commit_index

    def is_caught_up(self, learner: _Learner, now: float) -> bool:
        """Whether a round has just ended that took less than an election timeout; opens the next one otherwise."""
        peer_id = learner.voter.node_id
        if peer_id not in self.formation.peers or not self.formation.counts(peer_id):
            learner.round_end = 0
            return False
        if self.match_of(peer_id) < learner.round_end:
            return False
        was_quick = now - learner.round_began_at < self._timing.election_min_s
        if learner.round_end and was_quick:
            return True
        learner.round_end, learner.round_began_at = self.journal.last_index, now
        return False

    # In every step

    def advance_membership(self, now: float) -> None:
        if not self.is_leader:
            self._hand_over = None
            if self._learner is not None:
                self._drop_learner("we lead no more")
        elif self.may_change_voters():
            self._propose_next(now)
        self._give_way(now)
        if self.membership.at(self.commit_index).index != self._links_index:
            self.links_changed()
        self._advance_hand_over(now)
        self.membership.applied(self.applied_index)

    def _propose_next(self, now: float) -> None:
        current = self.membership.current
        learner = self._learner
        if current.index == BOOTSTRAP_INDEX:
            self._append_voters(
                current.voters
            )  # from here on it is the journal's, whatever server.properties say later
        elif learner is not None and self.is_caught_up(learner, now):
            self._learner = None
            self._append_voters(current.with_voter(learner.voter))
        elif learner is not None and now - learner.asked_at > LEARNER_LAPSES_AFTER_S:
            self._drop_learner("nobody asks for it any more")

    def _append_voters(self, voters: tuple[Voter, ...]) -> None:
        assert self.node_id in {voter.node_id for voter in voters}, "a leader never removes itself"
        index = self.journal.last_index + 1
        entry = (MEMBERSHIP + encode_voters(voters), index, self.term)
        self.journal.add(*entry)
        self.membership.appended(entry)
        self.voters_changed()
        self._resend = True
        self._wake()

    def _drop_learner(self, why: str) -> None:
        assert self._learner is not None
        _log.info("learner dropped node=%d learner=%d reason=%s", self.node_id, self._learner.voter.node_id, why)
        self._learner = None
        self.links_changed()

    # Handing over

    def begin_hand_over(self, now: float) -> bool:
        """Let the live voter with the longest log take over; appends wait meanwhile, for half an election timeout at most."""
        if self._hand_over is None:
            live = [peer for peer in self.other_ids if self._is_live(peer, now)]
            if not self.is_leader or not live:
                return False
            target = max(live, key=lambda peer: (self.match_of(peer), -peer))
            self._hand_over = _HandOver(target=target, deadline=now + self._timing.election_min_s / 2)
            _log.info("leadership is handed over node=%d to=%d", self.node_id, target)
            self._wake()
        return True

    def _give_way(self, now: float) -> None:
        """A leader that must not lead hands over. If nobody has taken over in time, it follows, and the others elect."""
        if self.may_lead or not self.is_leader or not self.other_ids:
            self._has_offered = False
        elif self._hand_over is None:
            if self._has_offered or not self.begin_hand_over(now):
                _log.warning("leader gives up node=%d term=%d reason=it must not lead", self.node_id, self.term)
                self.follow(None)
                self.restart_election_timer()
            self._has_offered = True

    @property
    def is_handing_over(self) -> bool:
        return self._hand_over is not None

    def _advance_hand_over(self, now: float) -> None:
        hand_over = self._hand_over
        if hand_over is None:
            return
        if now > hand_over.deadline or hand_over.target not in self.other_ids:
            _log.warning("nobody took over node=%d asked=%d", self.node_id, hand_over.target)
            self._hand_over = None
            self._wake()
        elif now - hand_over.asked_at > HAND_OVER_RESEND_S and self.ask_transfer(hand_over.target):
            hand_over.asked_at = now

    # What is told

    def _finished(self) -> VoterProgress:
        return VoterProgress(done=True, state=f"the voters are {sorted(self.membership.current.ids)}")

    def _committing(self) -> VoterProgress:
        return VoterProgress(done=False, state="the change waits for a majority of the new voters")

    def _learner_state(self, learner: _Learner) -> str:
        node_id = learner.voter.node_id
        if node_id not in self.formation.peers:
            return f"node {node_id} is not connected yet ({learner.voter.host}:{learner.voter.port})"
        return f"node {node_id} learns, {self._lag_of(node_id)} entries are missing"

    def _lag_of(self, peer_id: int) -> int:
        have = self.journal.durable_index if peer_id == self.node_id else self.match_of(peer_id)
        return max(0, self.journal.last_index - have)

    def status(self, now: float) -> QuorumStatus:
        """Lags and liveness are known to a leader only."""
        current = self.membership.current
        peers = [self._status_of(voter, now, is_voter=True) for voter in current.voters]
        change = "" if self._is_settled() else self._committing().state
        if self._learner is not None:
            peers.append(self._status_of(self._learner.voter, now, is_voter=False))
            change = self._learner_state(self._learner)
        return QuorumStatus(
            leader_id=self.leader_id,
            term=self.term,
            committed_index=self.commit_index,
            voters_index=current.index,
            peers=tuple(peers),
            change=change,
        )

    def _status_of(self, voter: Voter, now: float, *, is_voter: bool) -> QuorumPeer:
        known = self.is_leader
        return QuorumPeer(
            node_id=voter.node_id,
            host=voter.host,
            port=voter.port,
            is_voter=is_voter,
            is_live=known and self._is_live(voter.node_id, now),
            lag_entries=self._lag_of(voter.node_id) if known else -1,
        )

"""Voters are added and removed one at a time: what a leader does for it.

An added node learns first: it is sent the journal (or a snapshot) and counts for nothing, neither in a majority nor for our
right to lead. It is proposed as a voter when a whole round of catching up took it less than an election timeout (Ongaro's
thesis, 4.2.1), it was connected and not blank: the pause that its joining can cause is one round.

The administrator's command repeats the request until the change is done (`VoterProgress`). A change that is not requested any
more lapses as long as it is not in the journal, and a new leader begins it again. pysyncobj's own way of changing members is
closed.
"""

from dataclasses import dataclass

from barnabas.log.vocabulary.errors import InvalidRequestError, NotControllerError
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.quorum import QuorumPeer

from ...quorum.formation import Formation
from ...quorum.voters import (
    BOOTSTRAP_INDEX,
    MAX_VOTERS,
    MEMBERSHIP,
    QuorumStatus,
    VoterProgress,
    encode_voters,
)
from .elections import Elections
from .electorate import Electorate
from .engine import PysyncobjEngine
from .hand_over import HandOver
from .leading import Leader
from .links import Links
from .ports import Journal, Ports, info

LEARNER_LAPSES_AFTER_S = 15.0  # since the last request for the change: then the command has been given up


@dataclass(slots=True, kw_only=True)
class _Learner:
    """Invariant: not a voter. `round_end` is what it must have to end the round, 0: none has begun."""

    voter: NodeAddress
    asked_at: float
    round_end: int = 0
    round_began_at: float = 0.0


class VoterChanges:
    """Invariant: a leader is a voter of its own configuration; it never removes itself, it hands over first."""

    def __init__(
        self,
        electorate: Electorate,
        formation: Formation,
        engine: PysyncobjEngine,
        journal: Journal,
        elections: Elections,
        leader: Leader,
        links: Links,
        hand_over: HandOver,
        ports: Ports,
    ) -> None:
        self._electorate = electorate
        self._formation = formation
        self._engine = engine
        self._journal = journal
        self._elections = elections
        self._leader = leader
        self._links = links
        self._hand_over = hand_over
        self._timing = ports.timing
        self._wake = ports.wake
        self._report = ports.report
        self._learner: _Learner | None = None

    # Requests, to the leader

    def add_voter(self, voter: NodeAddress, now: float) -> VoterProgress:
        """Raises NotControllerError; InvalidRequestError where the change is refused."""
        self._check_leader()
        current = self._electorate.membership.current
        if voter.node_id in current.ids:
            return self._finished() if self._is_settled() else self._committing()
        self._check_alone(voter.node_id)
        if len(current.voters) >= MAX_VOTERS:
            raise InvalidRequestError(f"there are {MAX_VOTERS} voters already, the maximum: remove one first")
        learner = self._learner
        if learner is None or learner.voter != voter:
            learner = self._learner = _Learner(voter=voter, asked_at=now)
            self._links.learner = voter
            self._report(
                info(
                    f"learner begins node={self._electorate.node_id} learner={voter.node_id} at={voter.host}:{voter.port}"
                )
            )
            self._links.changed()
        learner.asked_at = now
        self._wake()
        return VoterProgress(done=False, state=self._learner_state(learner))

    def remove_voter(self, node_id: int, now: float) -> VoterProgress:
        """Raises NotControllerError; InvalidRequestError where the change is refused."""
        self._check_leader()
        current = self._electorate.membership.current
        if node_id not in current.ids:
            if self._learner is not None and self._learner.voter.node_id == node_id:
                self._drop_learner("its removal was requested")
            return self._finished() if self._is_settled() else self._committing()
        self._check_alone(node_id)
        if len(current.voters) == 1:
            raise InvalidRequestError(f"voter {node_id} is the only one: add another voter before you remove it")
        self._check_live_majority(node_id, now)
        if node_id == self._electorate.node_id:
            if not self._hand_over.begin(now):
                return VoterProgress(done=False, state="no other voter can take over the leadership yet")
            return VoterProgress(done=False, state=f"voter {node_id} leads and hands over first")
        if not self.may_change_voters():
            return VoterProgress(done=False, state="an earlier entry of this leader must be committed first")
        self._append_voters(current.without(node_id))
        return self._committing()

    def _check_leader(self) -> None:
        if not self._engine.is_leader:
            raise NotControllerError(f"node {self._electorate.node_id} does not lead the quorum")

    def _check_alone(self, node_id: int) -> None:
        """One change at a time. Raises InvalidRequestError for a second learner; an uncommitted change is waited for."""
        if self._learner is not None and self._learner.voter.node_id != node_id:
            raise InvalidRequestError(
                f"node {self._learner.voter.node_id} is being added to the voters: wait until it is done, or for"
                f" {LEARNER_LAPSES_AFTER_S:g} s if that command was given up"
            )

    def _check_live_majority(self, node_id: int, now: float) -> None:
        rest = sorted(self._electorate.membership.current.ids - {node_id})
        dead = [peer for peer in rest if not self._elections.is_live(peer, now)]
        needed = len(rest) // 2 + 1
        if len(rest) - len(dead) < needed:
            raise InvalidRequestError(
                f"without voter {node_id} the voters are {rest}, of which {needed} must be up, but {dead} cannot be"
                " reached: start these again, or remove a dead one first"
            )

    # Rules

    def may_change_voters(self) -> bool:
        """At most one uncommitted change, and only after an entry of this term is committed: see `quorum.voters`."""
        return (
            self._engine.is_leader
            and self._is_settled()
            and self._journal.term_at(self._engine.commit_index) == self._engine.term
        )

    def _is_settled(self) -> bool:
        return self._electorate.membership.current.index <= self._engine.commit_index

    def is_caught_up(self, learner: _Learner, now: float) -> bool:
        """Whether a round has just ended that took less than an election timeout; opens the next one otherwise."""
        peer_id = learner.voter.node_id
        if peer_id not in self._formation.peers or not self._formation.counts(peer_id):
            learner.round_end = 0
            return False
        if self._engine.match_of(peer_id) < learner.round_end:
            return False
        was_quick = now - learner.round_began_at < self._timing.election_min_s
        if learner.round_end and was_quick:
            return True
        learner.round_end, learner.round_began_at = self._journal.last_index, now
        return False

    # In every step

    def advance(self, now: float) -> None:
        if not self._engine.is_leader:
            if self._learner is not None:
                self._drop_learner("this node no longer leads")
        elif self._has_proposal() and self.may_change_voters():
            self._propose_next(now)

    @property
    def has_learner(self) -> bool:
        return self._learner is not None

    def _has_proposal(self) -> bool:
        return self._learner is not None or self._electorate.membership.current.index == BOOTSTRAP_INDEX

    def _propose_next(self, now: float) -> None:
        current = self._electorate.membership.current
        learner = self._learner
        if current.index == BOOTSTRAP_INDEX:
            self._append_voters(
                current.voters
            )  # from here on, the journal has the configuration, and changes of server.properties have no effect
        elif learner is not None and self.is_caught_up(learner, now):
            self._learner = self._links.learner = None
            self._append_voters(current.with_voter(learner.voter))
        elif learner is not None and now - learner.asked_at > LEARNER_LAPSES_AFTER_S:
            self._drop_learner("the change is no longer requested")

    def _append_voters(self, voters: tuple[NodeAddress, ...]) -> None:
        assert self._electorate.node_id in {voter.node_id for voter in voters}, "a leader never removes itself"
        index = self._journal.last_index + 1
        entry = (MEMBERSHIP + encode_voters(voters), index, self._engine.term)
        self._journal.add(*entry)
        self._electorate.membership.appended(entry)
        self._links.voters_changed()
        self._leader.must_send = True
        self._wake()

    def _drop_learner(self, why: str) -> None:
        assert self._learner is not None
        learner_id = self._learner.voter.node_id
        self._report(info(f"learner dropped node={self._electorate.node_id} learner={learner_id} reason={why}"))
        self._learner = self._links.learner = None
        self._links.changed()

    # Reports

    def _finished(self) -> VoterProgress:
        return VoterProgress(done=True, state=f"the voters are {sorted(self._electorate.membership.current.ids)}")

    def _committing(self) -> VoterProgress:
        return VoterProgress(done=False, state="the change waits for a majority of the new voters")

    def _learner_state(self, learner: _Learner) -> str:
        node_id = learner.voter.node_id
        if node_id not in self._formation.peers:
            return f"node {node_id} is not connected yet ({learner.voter.host}:{learner.voter.port})"
        return f"node {node_id} learns, {self._lag_of(node_id)} entries are missing"

    def _lag_of(self, peer_id: int) -> int:
        have = self._journal.durable_index if peer_id == self._electorate.node_id else self._engine.match_of(peer_id)
        return max(0, self._journal.last_index - have)

    def status(self, now: float) -> QuorumStatus:
        """Lags and liveness are known to a leader only."""
        current = self._electorate.membership.current
        peers = [self._status_of(voter, now, is_voter=True) for voter in current.voters]
        change = "" if self._is_settled() else self._committing().state
        if self._learner is not None:
            peers.append(self._status_of(self._learner.voter, now, is_voter=False))
            change = self._learner_state(self._learner)
        return QuorumStatus(
            leader_id=-1 if self._engine.leader_id is None else self._engine.leader_id,
            term=self._engine.term,
            committed_index=self._engine.commit_index,
            voters_index=current.index,
            peers=tuple(peers),
            change=change,
        )

    def _status_of(self, voter: NodeAddress, now: float, *, is_voter: bool) -> QuorumPeer:
        known = self._engine.is_leader
        return QuorumPeer(
            node_id=voter.node_id,
            host=voter.host,
            port=voter.port,
            is_voter=is_voter,
            is_live=known and self._elections.is_live(voter.node_id, now),
            lag_entries=self._lag_of(voter.node_id) if known else -1,
        )

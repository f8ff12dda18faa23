"""How a blank voter becomes one that counts, and what voters answer about it. The rules are in `quorum.formation`."""

from ...quorum.formation import Formation, VoterState
from ...quorum.voters import BOOTSTRAP_INDEX
from ..protocol.messages import Formed, FormQuery, FormState, Joined, Welcome
from .elections import Elections
from .electorate import Electorate
from .engine import PysyncobjEngine
from .ports import HardState, Journal, Ports, info, send_to_all, warning


class Forming:
    def __init__(
        self,
        electorate: Electorate,
        formation: Formation,
        engine: PysyncobjEngine,
        journal: Journal,
        hard_state: HardState,
        elections: Elections,
        ports: Ports,
    ) -> None:
        self._electorate = electorate
        self._formation = formation
        self._engine = engine
        self._journal = journal
        self._hard_state = hard_state
        self._elections = elections
        self._transport = ports.transport
        self._rng = ports.rng
        self._report = ports.report

    def voter_state(self) -> VoterState:
        if self._formation.blank:
            return VoterState.BLANK
        engine = self._engine
        untouched = engine.term == 0 and engine.voted_for is None and self._journal.last_index <= 1
        return VoterState.PRISTINE if untouched else VoterState.VOTER

    def form_if_possible(self, now: float) -> None:
        """A blank voter asks this in every step."""
        is_first = self._electorate.membership.current.index == BOOTSTRAP_INDEX  # later there is what to forget
        may_form = self._electorate.is_voter and is_first
        if may_form and self._formation.is_complete:
            self._become_voter("single voter")
            return
        nonce = self._rng.getrandbits(48)
        if may_form and self._formation.open_round(now, nonce):
            send_to_all(self._transport, self._electorate.other_ids, FormQuery(nonce=nonce))
        complaint = self._formation.complaint(now)
        if complaint is not None:
            self._report(warning(complaint))

    def _become_voter(self, how: str) -> None:
        self._hard_state.clear_blank()
        self._formation.cleared()
        self._report(info(f"voter takes part node={self._electorate.node_id} how={how}"))
        for peer_id in sorted(self._formation.peers):
            self._transport.send(peer_id, Joined())
        if how == "learned":
            self._elections.restart_timer()
        else:
            self._elections.campaign_at_once_if_first()

    def correct(self, peer_id: int, told: VoterState) -> None:
        """This voter was formed while a peer had its hello already. As leader, such a peer would count nothing of this voter."""
        if told is VoterState.BLANK and not self._formation.blank:
            self._transport.send(peer_id, Joined())

    # Messages

    def on_form_query(self, peer_id: int, message: FormQuery) -> None:
        state = self.voter_state()
        self._formation.answer(peer_id, message.nonce, state)
        self._transport.send(peer_id, FormState(nonce=message.nonce, state=state))

    def on_form_state(self, peer_id: int, message: FormState) -> None:
        if self._formation.answered(peer_id, message.nonce, message.state):
            send_to_all(self._transport, self._electorate.other_ids, Formed(nonce=message.nonce))
            self._become_voter("formation")

    def on_formed(self, peer_id: int, message: Formed) -> None:
        if self._formation.told_formed(peer_id, message.nonce):
            self._become_voter("formation")

    def on_joined(self, peer_id: int, _message: Joined) -> None:
        self._formation.peer_joined(peer_id)

    def on_welcome(self, peer_id: int, message: Welcome) -> None:
        """According to the leader, the entries on this disk include everything that this voter may have lost."""
        if not self._formation.blank:
            self._transport.send(peer_id, Joined())
        elif message.term == self._engine.term and message.index <= self._journal.durable_index:
            self._become_voter("learned")

"""Which messages are credible. No message of a peer may end this process or stay on its disk permanently, so a term is raised in
plausible steps only, and a term has one leader.
"""

from ...quorum.config import MAX_TERM_STEP, REFUSAL_LOG_INTERVAL_S
from ...quorum.formation import Formation
from ..protocol.messages import AppendEntries, InstallSnapshot, Message
from .elections import NEVER, Elections
from .engine import PysyncobjEngine
from .ports import Ports, RaftEvent, Severity

_FROM_THE_LEADER = (AppendEntries, InstallSnapshot)


class Credibility:
    def __init__(
        self, node_id: int, engine: PysyncobjEngine, formation: Formation, elections: Elections, ports: Ports
    ) -> None:
        self._node_id = node_id
        self._engine = engine
        self._formation = formation
        self._elections = elections
        self._clock = ports.clock
        self._timing = ports.timing
        self._report = ports.report
        self._term_raised_at = NEVER
        self._refusal_told_at = NEVER
        self.refused_messages = 0  # since the start

    def believes(self, peer_id: int, message: Message) -> bool:
        """To raise the own term is always safe in Raft; messages that raise it by too much are dropped."""
        term, own_term = message.term, self._engine.term
        if term > own_term + MAX_TERM_STEP:
            self._refused(peer_id, f"{type(message).__name__} of term {term}, ours is {own_term}")
            self._raise_term(message)
            return False
        if term == own_term and isinstance(message, _FROM_THE_LEADER) and self._is_led_by_another(peer_id):
            self._refused(peer_id, f"two leaders in term {term}: {self._elections.leader_of_term} and {peer_id}")
            return False
        return True

    def _raise_term(self, message: Message) -> None:
        now = self._clock()
        may_learn = not self._formation.blank or isinstance(message, _FROM_THE_LEADER)
        if may_learn and now - self._term_raised_at >= self._timing.heartbeat_s:
            self._term_raised_at = now
            self._elections.step_down(self._engine.term + MAX_TERM_STEP)

    def _is_led_by_another(self, peer_id: int) -> bool:
        return self._elections.leader_of_term not in (None, peer_id)

    def _refused(self, peer_id: int, reason: str) -> None:
        self.refused_messages += 1
        now = self._clock()
        if now - self._refusal_told_at >= REFUSAL_LOG_INTERVAL_S:
            self._refusal_told_at = now
            text = (
                f"message refused node={self._node_id} peer={peer_id} refused_so_far={self.refused_messages} reason={reason}. "
                "Another process forges messages of voters, or a voter runs twice: check who can reach the quorum ports"
            )
            self._report(RaftEvent(Severity.ERROR, text))

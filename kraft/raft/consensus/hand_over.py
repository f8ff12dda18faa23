"""Leadership is handed over: on demand, before a leader leaves, and by a leader that must not lead."""

from dataclasses import dataclass

from .elections import Elections
from .electorate import Electorate
from .engine import PysyncobjEngine
from .ports import Ports, info, warning

RESEND_S = 0.05  # the request to take over may be lost with a link


@dataclass(slots=True, kw_only=True)
class _Asked:
    target: int
    deadline: float
    asked_at: float = float("-inf")


class HandOver:
    """Invariant: open only while this node leads; appends wait meanwhile."""

    def __init__(self, electorate: Electorate, engine: PysyncobjEngine, elections: Elections, ports: Ports) -> None:
        self._electorate = electorate
        self._engine = engine
        self._elections = elections
        self._timing = ports.timing
        self._wake = ports.wake
        self._report = ports.report
        self._open: _Asked | None = None
        self._has_offered = False  # a leader that must not lead has asked another voter to take over

    def begin(self, now: float) -> bool:
        """Let the live voter with the longest log take over; appends wait meanwhile, for half an election timeout at most."""
        if self._open is None:
            live = [peer for peer in self._electorate.other_ids if self._elections.is_live(peer, now)]
            if not self._engine.is_leader or not live:
                return False
            target = max(live, key=lambda peer: (self._engine.match_of(peer), -peer))
            self._open = _Asked(target=target, deadline=now + self._timing.election_min_s / 2)
            self._report(info(f"leadership is handed over node={self._electorate.node_id} to={target}"))
            self._wake()
        return True

    def _give_way(self, now: float) -> None:
        """A leader that must not lead hands over. If no voter has taken over in time, it follows, and the others elect."""
        if not self._electorate.other_ids:
            self._has_offered = False
        elif self._open is None:
            if self._has_offered or not self.begin(now):
                self._elections.give_up("it must not lead")
            self._has_offered = True

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def advance(self, now: float) -> None:
        """In every step."""
        if not self._engine.is_leader:
            self._open, self._has_offered = None, False
            return
        if not self._elections.may_lead:
            self._give_way(now)
        else:
            self._has_offered = False
        asked = self._open
        if asked is None:
            return
        if now > asked.deadline or asked.target not in self._electorate.other_ids:
            self._report(warning(f"no voter took over node={self._electorate.node_id} asked={asked.target}"))
            self._open = None
            self._wake()
        elif now - asked.asked_at > RESEND_S and self._engine.ask_transfer(asked.target):
            asked.asked_at = now

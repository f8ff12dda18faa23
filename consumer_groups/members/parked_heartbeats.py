"""Heartbeats that wait for news, so that a member hears of a rebalance when it happens and not when it asks the next time.

A parked heartbeat has been heard: its member's session runs from its arrival, and nothing that happens to it later prolongs
that. It is answered once: when its member has something to do, when it is superseded, or when its time is up. Whether there is
something to do is looked at a moment after each change of the group, for all of its members together: so a storm of joins
wakes everybody once, and the decision that a request waits for does not grow by what others must be told.
"""

from dataclasses import dataclass

from barnabas.log.vocabulary.errors import RebalanceInProgressError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest

from ..model.classic_messages import Answer, Ticket
from ..model.deadlines import Deadlines
from ..model.decision import Decision

WAKE_DELAY_MS = 1  # what is decided meanwhile is told at the same time
MAX_ANSWERS_PER_WAKE = 500  # each may write a record, and a decision must fit into one append of the quorum


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedHeartbeat:
    request: ConsumerGroupHeartbeatRequest
    ticket: Ticket
    interval_ms: int  # between heartbeats, as its group's configuration says


class ParkedHeartbeats:
    """At most one per member."""

    def __init__(self) -> None:
        self.ends = Deadlines()  # by member: exactly those that are parked
        self.wakes = Deadlines()  # by group
        self._parked: dict[str, dict[str, ParkedHeartbeat]] = {}  # group -> member

    def park(self, member_id: str, parked: ParkedHeartbeat, until_ms: int) -> None:
        group_id = parked.request.group_id
        self._parked.setdefault(group_id, {})[member_id] = parked
        self.ends.set((group_id, member_id), until_ms)

    def take(self, group_id: str, member_id: str) -> ParkedHeartbeat | None:
        members = self._parked.get(group_id)
        parked = None if members is None else members.pop(member_id, None)
        if parked is not None:
            self.ends.cancel((group_id, member_id))
        if not members:
            self._parked.pop(group_id, None)
        return parked

    def of_group(self, group_id: str) -> list[tuple[str, ParkedHeartbeat]]:
        return list(self._parked.get(group_id, {}).items())

    def supersede(self, group_id: str, member_id: str, decision: Decision) -> None:
        """The member has said something newer: it listens for the answer to that."""
        parked = self.take(group_id, member_id)
        if parked is not None:
            error = RebalanceInProgressError("the same member has sent another heartbeat: this one is an old one")
            decision.answers.append(Answer(ticket=parked.ticket, value=error))

    def changed(self, group_id: str, now_ms: int) -> None:
        """Look soon for members who must be told. A look that is due already stands."""
        if group_id in self._parked and (group_id, "") not in self.wakes:
            self.wakes.set((group_id, ""), now_ms + WAKE_DELAY_MS)

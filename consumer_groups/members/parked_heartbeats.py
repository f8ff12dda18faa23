"""Heartbeats that wait for a change, so that a member learns of a rebalance when it happens, not with its next heartbeat.

A parked heartbeat has renewed its member's session at its arrival, and nothing that happens to it later extends the session.
It is answered once: when its member has something to do, when it is superseded, or when its wait ends. Shortly after each
change of a group, all its members are checked together: so many joins at once wake every member once, and the decision that a
request waits for does not also contain the answers to other members.
"""

from dataclasses import dataclass

from barnabas.log.vocabulary.errors import RebalanceInProgressError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest

from ..model.classic_messages import Answer, Ticket
from ..model.deadlines import Deadlines
from ..model.decision import Decision

WAKE_DELAY_MS = 1  # changes that are decided meanwhile are answered at the same time
MAX_ANSWERS_PER_WAKE = 500  # each may write a record, and a decision must fit into one append of the quorum


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedHeartbeat:
    request: ConsumerGroupHeartbeatRequest
    ticket: Ticket
    interval_ms: int  # between heartbeats, from the group's configuration


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
        """The member has sent a newer request and waits for the answer to that one."""
        parked = self.take(group_id, member_id)
        if parked is not None:
            error = RebalanceInProgressError("the same member has sent a newer heartbeat: this one is obsolete")
            decision.answers.append(Answer(ticket=parked.ticket, value=error))

    def changed(self, group_id: str, now_ms: int) -> None:
        """Schedule a check for members that need an answer. A check that is already due stays as it is."""
        if group_id in self._parked and (group_id, "") not in self.wakes:
            self.wakes.set((group_id, ""), now_ms + WAKE_DELAY_MS)

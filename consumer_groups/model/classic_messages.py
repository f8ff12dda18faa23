"""Answers of a coordinator to requests that it has parked, and to members that leave.

A join or a sync is *parked* until the group has reached that step, so its answer is not the result of its own decision: the
shell gives each request a ticket, and a later decision answers it (`Answer`).
"""

from dataclasses import dataclass

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatResponse, JoinGroupResponse, SyncGroupResponse

Ticket = int  # issued by the shell, unique during the lifetime of a coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOutcome:
    member_id: str
    instance_id: str | None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a parked request, sent once the records of the decision that made it are committed."""

    ticket: Ticket
    value: JoinGroupResponse | SyncGroupResponse | ConsumerGroupHeartbeatResponse | BarnabasError

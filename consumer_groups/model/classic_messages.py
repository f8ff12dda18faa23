"""What a coordinator tells requests that it has parked, and each member that was asked to leave.

A join or a sync is *parked* until the group comes that far, so its answer is not the result of its own decision: the shell
gives each a ticket, and a later decision answers it (`Answer`).
"""

from dataclasses import dataclass

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatResponse, JoinGroupResponse, SyncGroupResponse

Ticket = int  # given by the shell, never twice in the life of a coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOutcome:
    member_id: str
    instance_id: str | None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a parked request hears, once the records of the decision that made it are committed."""

    ticket: Ticket
    value: JoinGroupResponse | SyncGroupResponse | ConsumerGroupHeartbeatResponse | BarnabasError

"""The classic group protocol's requests and answers, as values: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

A join or a sync is *parked* until the group comes that far, so its answer is not the result of its own decision: the shell
gives each a ticket, and a later decision answers it (`Answer`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode

if TYPE_CHECKING:
    from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatResponse

Ticket = int  # given by the shell, never twice in the life of a coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: str
    member_id: str = ""  # "": the coordinator makes one up
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # assignor -> subscription, the member's favourite first
    require_known_member_id: bool = True  # KIP-394: answer with an id first, so that a lost answer leaves no ghost
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """`error` MEMBER_ID_REQUIRED: join again with this member id. `members` is told to the leader alone."""

    member_id: str
    error: ErrorCode = ErrorCode.NONE
    generation: int = -1
    protocol_type: str = ""
    protocol_name: str = ""
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False  # KIP-814: a static leader is back, and what it assigned before still stands


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None  # None: an older client does not say
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()  # by member id; from the leader alone


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    protocol_type: str
    protocol_name: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """A static member may be named by its instance id alone (`member_id` "")."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOutcome:
    member_id: str
    instance_id: str | None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a parked request hears, once the records of the decision that made it are committed."""

    ticket: Ticket
    value: "JoinAnswer | SyncAnswer | ConsumerGroupHeartbeatResponse | BarnabasError"

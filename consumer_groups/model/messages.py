"""Decisions of a group coordinator, and its descriptions of groups.

Requests and most answers are the messages of `log.vocabulary.group_messages`; the broker's handlers translate only the
descriptions here, which the two protocols encode differently.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from barnabas.kraft.group_state.group_slots import SlotStateRecord
from barnabas.log.vocabulary.group_messages import RebalanceEvent, TopicPartitions

from .classic_messages import Answer
from .states import GroupPhase, MemberState

R_co = TypeVar("R_co", covariant=True)


class MemberEpoch(IntEnum):
    """Member epochs with a special meaning (KIP-848)."""

    LEAVE_STATIC = -2  # a static member leaves and will return within its session timeout
    LEAVE = -1
    JOIN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorResult(Generic[R_co]):
    """A decision: records to append, in one atomic batch, and the answer.

    The answer is sent only when these records *and those of all earlier results* are committed, even if it has no records
    of its own: it was read from a state that may contain uncommitted records.
    """

    records: tuple[SlotStateRecord, ...]
    response: R_co
    answers: tuple[Answer, ...] = ()  # to requests that earlier decisions parked; they wait for the commit, too
    # An answer without records that would do harm if another broker coordinates the slot by now: the controller is asked first.
    must_confirm: bool = False
    # Pending offsets that the records commit or drop when they are applied; there is no record of each.
    ended_offsets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPlace:
    """The position of a commit among those of one client; see `commit_order`."""

    committer: str
    sequence: int  # increases with each request that is sent
    coordinator_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    phase: GroupPhase
    protocol: str
    protocol_type: str
    member_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    state: MemberState
    subscribed_topics: tuple[str, ...]
    subscribed_pattern: str | None
    assigned: tuple[TopicPartitions, ...]
    pending_revocation: tuple[TopicPartitions, ...]
    target: tuple[TopicPartitions, ...]
    rack: str | None = None
    classic_metadata: bytes = b""  # classic members: for the protocol that the group has chosen
    classic_assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group that does not exist is described as DEAD, without members."""

    group_id: str
    phase: GroupPhase
    group_epoch: int = 0
    assignment_epoch: int = 0
    protocol: str = ""
    protocol_type: str = ""
    assignor: str = ""
    members: tuple[DescribedMember, ...] = ()
    rebalances: tuple[RebalanceEvent, ...] = ()

"""Decisions of a group coordinator, and what it tells of its groups.

Requests and most answers are the messages of `log.vocabulary.group_messages`; the broker's handlers translate only the
descriptions here, which both protocols tell in their own words.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from barnabas.kraft.group_state.group_slots import SlotStateRecord
from barnabas.log.vocabulary.group_messages import RebalanceEvent, TopicPartitions

from .classic_messages import Answer
from .states import GroupPhase, MemberState

R = TypeVar("R")


class MemberEpoch(IntEnum):
    """Member epochs with a meaning of their own (KIP-848)."""

    LEAVE_STATIC = -2  # a static member goes, and will be back within its session timeout
    LEAVE = -1
    JOIN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorResult(Generic[R]):
    """A decision: records to append, in one atomic batch, and the answer.

    The answer leaves only when these records *and those of all results before it* are committed, also when it has no
    records of its own: it was read from a state that may hold records that are still on their way.
    """

    records: tuple[SlotStateRecord, ...]
    response: R
    answers: tuple[Answer, ...] = ()  # to requests that earlier decisions have parked; they too wait for the commit


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPlace:
    """Where a commit stands among those of one client; see `commit_order`."""

    committer: str
    sequence: int  # grows with each request that is sent
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

"""Responses about consumer groups, as frozen values: members, assignments, committed offsets, rebalances."""

from typing import Final

from barnabas.log.vocabulary.group_messages import (
    CommittedOffset,
    PartitionOutcome,
    RebalanceEvent,
    TopicPartitions,
    UnownedPartition,
)
from barnabas.log.vocabulary.message import Items, Message
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.share.messages import SharePartitionView


class FindCoordinatorResponse(NodeAddress, frozen=True, kw_only=True):
    coordinator_epoch: int = -1  # -1: the answering broker does not order commits


class OffsetCommitResponse(Message, frozen=True, kw_only=True):
    partitions: Items[PartitionOutcome]


class OffsetFetchResponse(Message, frozen=True, kw_only=True):
    """`unstable`: of these partitions an open transaction may change the offset: ask again."""

    partitions: Items[CommittedOffset]
    unstable: Items[TopicPartitions] = ()


class ListedGroup(Message, frozen=True, kw_only=True):
    group_id: str
    state: str
    protocol: str
    member_count: int


class ListGroupsResponse(Message, frozen=True, kw_only=True):
    groups: Items[ListedGroup]


class GroupMember(Message, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    subscribed_topics: Items[str]
    assigned: Items[TopicPartitions]
    target: Items[TopicPartitions]
    # Explained only; -1: not known, or nothing of the kind.
    silent_ms: int = -1  # since its last heartbeat
    session_left_ms: int = -1
    slow_ms: int = -1  # since it received an assignment that it does not follow yet
    is_away: bool = False  # a static member that will be back


LAG_STEP_MS: Final = 30_000  # between two looks of a coordinator at the lag of its groups


class LagPoint(Message, frozen=True, kw_only=True):
    """The lag of a group over all its partitions. -1: unknown, because a leader did not answer."""

    at_ms: int  # by the wall clock of the coordinator
    unread: int  # records
    lag_ms: int  # of the partition where it is longest


class DescribeGroupResponse(Message, frozen=True, kw_only=True):
    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    coordinator: int
    members: Items[GroupMember]
    rebalances: Items[RebalanceEvent] = ()
    unowned: Items[UnownedPartition] = ()  # explained only
    lags: Items[LagPoint] = ()  # the oldest first
    lag_topics: Items[str] = ()  # whose partitions these points are about
    protocol: str = ""  # as in ListedGroup; empty: an older broker
    shares: Items[SharePartitionView] = ()  # of a share group, if they were asked for


class UnreadPartitionResponse(Message, frozen=True, kw_only=True):
    """`first_unread_ms` is when the oldest unread record was appended, `last_append_ms` when the last record was, both -1 when
    there is none or it is not known, and both by the leader's clock, which `now_ms` is too."""

    topic: str
    partition: int
    error: int = 0
    message: str = ""
    log_start_offset: int = -1
    log_end_offset: int = -1  # the high watermark: what consumers can read
    first_unread_ms: int = -1
    last_append_ms: int = -1
    now_ms: int = -1
    is_estimate: bool = False


class UnreadResponse(Message, frozen=True, kw_only=True):
    partitions: Items[UnreadPartitionResponse]

"""Responses about consumer groups, as frozen values: who is in them, what they own, committed and did."""

from barnabas.log.vocabulary.group_messages import CommittedOffset, PartitionOutcome, TopicPartitions
from barnabas.log.vocabulary.message import Items, Message
from barnabas.log.vocabulary.node_address import NodeAddress


class FindCoordinatorResponse(NodeAddress, frozen=True, kw_only=True):
    coordinator_epoch: int = -1  # -1: told by a broker that does not order commits


class OffsetCommitResponse(Message, frozen=True, kw_only=True):
    partitions: Items[PartitionOutcome]


class OffsetFetchResponse(Message, frozen=True, kw_only=True):
    partitions: Items[CommittedOffset]


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
    slow_ms: int = -1  # since it was told to read something else than it does
    is_away: bool = False  # a static member that will be back


class RebalanceReason(Message, frozen=True, kw_only=True):
    """`cause` is a stable code; `member_id` "": no single member is the cause."""

    at_ms: int
    cause: str
    member_id: str = ""
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    detail: str = ""
    group_epoch: int = 0


class OwnerChange(Message, frozen=True, kw_only=True):
    """`from_member`, `to_member` "": nobody. `pause_ms` None: nobody took it."""

    topic: str
    partition: int
    from_member: str
    to_member: str
    at_ms: int
    pause_ms: int | None = None


class RebalanceEvent(Message, frozen=True, kw_only=True):
    """`cause` and `member_id` are those of the first of `reasons`; `moves` are the first of `moved_count`.

    Reasons and moves are told on demand."""

    at_ms: int
    cause: str
    member_id: str
    group_epoch: int
    rebalance_id: int = 0
    reasons: Items[RebalanceReason] = ()
    moves: Items[OwnerChange] = ()
    moved_count: int = 0
    longest_pause_ms: int = 0
    stable_after_ms: int | None = None  # None: not stable yet
    is_superseded: bool = False  # cut before it was stable; the next record goes on


class UnownedPartition(Message, frozen=True, kw_only=True):
    """Read by nobody. `reason` is a stable code, `text` says it in words; -1: since or until nobody knows when."""

    topic: str
    partition: int
    reason: str
    text: str
    member_id: str = ""
    since_ms: int = -1  # so long ago
    ends_in_ms: int = -1


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

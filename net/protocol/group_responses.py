"""Responses about consumer groups, as frozen values: who is in them, what they own, committed and did."""

from dataclasses import dataclass

from .requests import OwnedPartitions


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    node_id: int
    host: str
    port: int
    coordinator_epoch: int = -1  # -1: told by a broker that does not order commits


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse:
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: tuple[OwnedPartitions, ...] | None = None  # None: unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    """`error` MEMBER_ID_REQUIRED: join again with this member id. `members` is told to the leader alone."""

    member_id: str
    error: int = 0
    generation: int = -1
    protocol_name: str = ""
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False  # KIP-814


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    protocol_name: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitPartitionResponse:
    topic: str
    partition: int
    error: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    partitions: tuple[OffsetCommitPartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """`offset` -1: nothing committed."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    topic_id: str = ""  # of the topic that has this name at the coordinator; "": not known


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    partitions: tuple[CommittedOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    state: str
    protocol: str
    member_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    subscribed_topics: tuple[str, ...]
    assigned: tuple[OwnedPartitions, ...]
    target: tuple[OwnedPartitions, ...]
    # Explained only; -1: not known, or nothing of the kind.
    silent_ms: int = -1  # since its last heartbeat
    session_left_ms: int = -1
    slow_ms: int = -1  # since it was told to read something else than it does
    is_away: bool = False  # a static member that will be back


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceReason:
    """`cause` is a stable code; `member_id` "": no single member is the cause."""

    at_ms: int
    cause: str
    member_id: str = ""
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    detail: str = ""
    group_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerChange:
    """`from_member`, `to_member` "": nobody. `pause_ms` None: nobody took it."""

    topic: str
    partition: int
    from_member: str
    to_member: str
    at_ms: int
    pause_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceEvent:
    """`cause` and `member_id` are those of the first of `reasons`; `moves` are the first of `moved_count`.

    Reasons and moves are told on demand."""

    at_ms: int
    cause: str
    member_id: str
    group_epoch: int
    rebalance_id: int = 0
    reasons: tuple[RebalanceReason, ...] = ()
    moves: tuple[OwnerChange, ...] = ()
    moved_count: int = 0
    longest_pause_ms: int = 0
    stable_after_ms: int | None = None  # None: not stable yet
    is_superseded: bool = False  # cut before it was stable; the next record goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class UnownedPartition:
    """Read by nobody. `reason` is a stable code, `text` says it in words; -1: since or until nobody knows when."""

    topic: str
    partition: int
    reason: str
    text: str
    member_id: str = ""
    since_ms: int = -1  # so long ago
    ends_in_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupResponse:
    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    coordinator: int
    members: tuple[GroupMember, ...]
    rebalances: tuple[RebalanceEvent, ...] = ()
    unowned: tuple[UnownedPartition, ...] = ()  # explained only


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadPartitionResponse:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadResponse:
    partitions: tuple[UnreadPartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneOffset:
    """-1: nothing committed."""

    topic: str
    partition: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoOffsetResetResponse:
    """The reset that was taken back, and what its undoing has changed."""

    reset_id: int
    at_ms: int
    by: str
    offsets: tuple[UndoneOffset, ...]

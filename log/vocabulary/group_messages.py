"""What members and tools ask of a group's coordinator and what it answers: each message once, in the form in which it travels.

consumer_groups decides on these values, net/protocol frames them, and the SDK, which knows nothing of the broker, sends and
reads them: therefore they are down here. Errors that concern a whole request are raised as `BarnabasError`; those of one
partition or member are codes in the answer.
"""

from .message import Items, Message


class TopicPartitions(Message, frozen=True, kw_only=True):
    """Some partitions of one topic, sorted."""

    topic: str
    partitions: Items[int]


# --- offsets ---------------------------------------------------------------------------------------------------------

NO_OFFSET = -1


class PartitionOffset(Message, frozen=True, kw_only=True):
    """A position of a group in a partition. `offset` NO_OFFSET: nothing is committed."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class OffsetToCommit(PartitionOffset, frozen=True, kw_only=True):
    topic_id: str = ""  # of the topic that the offset is of; "": not checked


class CommittedOffset(PartitionOffset, frozen=True, kw_only=True):
    commit_timestamp_ms: int = -1
    topic_id: str = ""  # of the topic that has this name at the coordinator; "": not known


class PartitionOutcome(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: int = 0
    message: str = ""


class UndoneOffset(Message, frozen=True, kw_only=True):
    """One partition of a reset that was taken back. NO_OFFSET: nothing committed."""

    topic: str
    partition: int
    before: int
    after: int


class UndoOffsetResetResponse(Message, frozen=True, kw_only=True):
    """The reset that was taken back (or would be): when it was made and by whom, and what becomes of the offsets."""

    reset_id: int
    at_ms: int
    by: str
    offsets: Items[UndoneOffset]


# --- members whose coordinator assigns (KIP-848) ---------------------------------------------------------------------


class ConsumerGroupHeartbeatRequest(Message, frozen=True, kw_only=True):
    """`member_epoch` 0 joins, -1 leaves, -2 leaves as a static member who will be back. None leaves a field as it is. The
    members' side of the contract:

    - one heartbeat of a member is under way at a time; an answer that comes after its request was given up is ignored, and
      the next heartbeat says everything;
    - `owned` is what the member may be reading at this moment; it is sent when it has changed and after a lost answer;
    - what it subscribes to is sent when joining, after a lost answer, and when it has changed;
    - FENCED_MEMBER_EPOCH and UNKNOWN_MEMBER_ID mean: stop reading, commit nothing, join again with epoch 0.
    """

    group_id: str
    member_id: str  # "" when joining: the coordinator makes one up
    member_epoch: int
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    subscribed_topics: Items[str] | None = None
    subscribed_pattern: str | None = None  # "" is no pattern
    rebalance_timeout_ms: int = -1  # -1: the default when joining, unchanged later
    session_timeout_ms: int = -1
    assignor: str | None = None
    owned: Items[TopicPartitions] | None = None
    reason: str = ""  # of leaving: "poll_interval_exceeded", or a sentence
    max_wait_ms: int = 0  # while the coordinator has nothing to tell, the answer may wait so long


class ConsumerGroupHeartbeatResponse(Message, frozen=True, kw_only=True):
    """`assignment` is everything that the member shall read from now on; None: as before."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Items[TopicPartitions] | None = None


# --- members of classic groups, whose leader assigns ------------------------------------------------------------------


class GroupProtocol(Message, frozen=True, kw_only=True):
    """An assignor that a classic member knows, and its subscription in the form of that protocol."""

    name: str
    metadata: bytes


class JoinGroupRequest(Message, frozen=True, kw_only=True):
    """Classic groups: become a member, or join again in a rebalance. Answered when the others have joined too (KIP-62)."""

    group_id: str
    member_id: str  # "": the coordinator makes one up and asks to join again with it (KIP-394)
    instance_id: str | None = None
    client_id: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Items[GroupProtocol]  # the member's favourite first
    reason: str = ""  # KIP-800


class JoinedMember(Message, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinGroupResponse(Message, frozen=True, kw_only=True):
    """`error` MEMBER_ID_REQUIRED: join again with this member id. `members` is told to the leader alone."""

    member_id: str
    error: int = 0
    generation: int = -1
    protocol_name: str = ""
    leader_id: str = ""
    members: Items[JoinedMember] = ()
    skip_assignment: bool = False  # KIP-814: a static leader is back, and what it assigned before still stands


class MemberAssignment(Message, frozen=True, kw_only=True):
    member_id: str
    assignment: bytes


class SyncGroupRequest(Message, frozen=True, kw_only=True):
    """Classic groups: the leader hands in the assignment, everybody gets theirs."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None  # None: an older client does not say
    protocol_name: str | None = None
    assignments: Items[MemberAssignment] = ()  # from the leader alone


class SyncGroupResponse(Message, frozen=True, kw_only=True):
    protocol_name: str
    assignment: bytes


class HeartbeatRequest(Message, frozen=True, kw_only=True):
    """Classic groups. Refused with REBALANCE_IN_PROGRESS: join again."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


class LeaveGroupRequest(Message, frozen=True, kw_only=True):
    """Classic groups. A static member may be named by its instance id alone (`member_id` "")."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    reason: str = ""


# --- what is told of rebalances --------------------------------------------------------------------------------------

NOBODY = ""  # in place of a member id


class RebalanceReason(Message, frozen=True, kw_only=True):
    """`cause` is a stable code. `member_id` NOBODY: no single member is the cause. `group_epoch` (a classic group's generation):
    where it led to."""

    at_ms: int
    cause: str
    member_id: str = NOBODY
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    detail: str = ""
    group_epoch: int = 0


class OwnerChange(Message, frozen=True, kw_only=True):
    """A partition has another reader. Replaying all of them over the readers of before gives those of after.

    `pause_ms`: from when the old reader let it go (or was last heard of, where it was lost) until the new one was given it;
    where nobody read it before, since it was to be read. None where nobody took it: its topic went, or all members.
    """

    topic: str
    partition: int
    from_member: str
    to_member: str
    at_ms: int
    pause_ms: int | None = None


class RebalanceEvent(Message, frozen=True, kw_only=True):
    """From the first reason until the group was stable again; reasons that come meanwhile belong to it. `cause` and `member_id`
    are those of the first of `reasons`; `moves` are the first of `moved_count`. Reasons and moves are told on demand."""

    at_ms: int
    cause: str
    member_id: str
    group_epoch: int
    rebalance_id: int = 0  # counts from 1 in the life of a coordinator
    reasons: Items[RebalanceReason] = ()
    moves: Items[OwnerChange] = ()
    moved_count: int = 0
    longest_pause_ms: int = 0
    stable_after_ms: int | None = None  # None: not stable yet
    is_superseded: bool = (
        False  # cut before it was stable, because it had as many reasons as one may have; the next goes on
    )

    @property
    def is_under_way(self) -> bool:
        return self.stable_after_ms is None and not self.is_superseded


class UnownedPartition(Message, frozen=True, kw_only=True):
    """Read by nobody. `reason` is a stable code, `text` says it in words; `member_id` is who is waited for. -1: since or until
    nobody knows when."""

    topic: str
    partition: int
    reason: str
    text: str
    member_id: str = NOBODY
    since_ms: int = -1  # so long ago
    ends_in_ms: int = -1

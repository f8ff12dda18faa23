"""What members and tools ask of a group's coordinator and what it answers: each message once, in the form in which it travels.

consumer_groups decides on these values, net/wire/protocol frames them, and the SDK, which knows nothing of the broker, sends and
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
    """A position of a group in a partition. `offset` NO_OFFSET: there is no committed offset."""

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
    """One partition of a reset that was undone. NO_OFFSET: no committed offset."""

    topic: str
    partition: int
    before: int
    after: int


class UndoOffsetResetResponse(Message, frozen=True, kw_only=True):
    """The reset that was undone (or would be): when and by whom it was made, and the resulting offsets."""

    reset_id: int
    at_ms: int
    by: str
    offsets: Items[UndoneOffset]


# --- members whose coordinator assigns (KIP-848) ---------------------------------------------------------------------


class ConsumerGroupHeartbeatRequest(Message, frozen=True, kw_only=True):
    """`member_epoch` 0 joins, -1 leaves, -2 leaves as a static member that will return. None leaves a field unchanged. A member
    follows these rules:

    - only one heartbeat of a member is in flight at a time; a response to a request that was given up is ignored, and the
      next heartbeat repeats everything;
    - `owned` lists the partitions that the member may be reading now; it is sent when it has changed and after a lost answer;
    - the subscription is sent when joining, after a lost answer, and when it has changed;
    - FENCED_MEMBER_EPOCH and UNKNOWN_MEMBER_ID mean: stop reading, commit nothing, join again with epoch 0.
    """

    group_id: str
    member_id: str  # "" when joining: the coordinator chooses one
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
    max_wait_ms: int = 0  # the maximum wait for the response while the coordinator has no news
    wants_offsets: bool = False  # of the partitions that are new to the member, where the coordinator knows them


class ConsumerGroupHeartbeatResponse(Message, frozen=True, kw_only=True):
    """`assignment` lists all partitions that the member is to read from now on; None: unchanged. `offsets` are the committed ones
    of partitions that are new in it, without metadata, NO_OFFSET without a commit; the member asks for those that are missing."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Items[TopicPartitions] | None = None
    offsets: Items[CommittedOffset] = ()


# --- members of classic groups, whose leader assigns ------------------------------------------------------------------


class GroupProtocol(Message, frozen=True, kw_only=True):
    """An assignor that a classic member knows, and its subscription in the form of that protocol."""

    name: str
    metadata: bytes


class JoinGroupRequest(Message, frozen=True, kw_only=True):
    """Classic groups: become a member, or join again in a rebalance. The response follows when the other members have joined
    (KIP-62)."""

    group_id: str
    member_id: str  # "": the coordinator chooses one, and the member joins again with it (KIP-394)
    instance_id: str | None = None
    client_id: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Items[GroupProtocol]  # in the member's order of preference
    reason: str = ""  # KIP-800


class JoinedMember(Message, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinGroupResponse(Message, frozen=True, kw_only=True):
    """`error` MEMBER_ID_REQUIRED: join again with this member id. Only the leader gets `members`."""

    member_id: str
    error: int = 0
    generation: int = -1
    protocol_name: str = ""
    leader_id: str = ""
    members: Items[JoinedMember] = ()
    skip_assignment: bool = False  # KIP-814: a static leader has returned, and its former assignment is still valid


class MemberAssignment(Message, frozen=True, kw_only=True):
    member_id: str
    assignment: bytes


class SyncGroupRequest(Message, frozen=True, kw_only=True):
    """Classic groups: the leader sends the assignment of all members; each member gets its own."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None  # None: an older client does not send it
    protocol_name: str | None = None
    assignments: Items[MemberAssignment] = ()  # from the leader only


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


# --- reports about rebalances ----------------------------------------------------------------------------------------

NOBODY = ""  # stands for "no member" in place of a member id


class RebalanceReason(Message, frozen=True, kw_only=True):
    """`cause` is a stable code. `member_id` NOBODY: no single member is the cause. `group_epoch` (a classic group's generation):
    the epoch that the rebalance led to."""

    at_ms: int
    cause: str
    member_id: str = NOBODY
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    detail: str = ""
    group_epoch: int = 0


class OwnerChange(Message, frozen=True, kw_only=True):
    """A partition has another reader. All changes, applied to the readers before, give the readers after.

    `pause_ms`: from the time when the former owner released the partition (or was last heard of, if it was lost) until the new
    owner got it; if it had no owner, from the time when it should have had one. None if no member got it: the topic or all
    members are gone.
    """

    topic: str
    partition: int
    from_member: str
    to_member: str
    at_ms: int
    pause_ms: int | None = None


class RebalanceEvent(Message, frozen=True, kw_only=True):
    """From the first reason until the group was stable again; reasons that occur meanwhile belong to it. `cause` and `member_id`
    are those of the first of `reasons`; `moves` are the first of `moved_count`. Reasons and moves are returned on request."""

    at_ms: int
    cause: str
    member_id: str
    group_epoch: int
    rebalance_id: int = 0  # counts from 1 in the lifetime of a coordinator
    reasons: Items[RebalanceReason] = ()
    moves: Items[OwnerChange] = ()
    moved_count: int = 0
    longest_pause_ms: int = 0
    stable_after_ms: int | None = None  # None: not stable yet
    is_superseded: bool = (
        False  # cut off before the group was stable, at the maximum number of reasons; the next event continues it
    )

    @property
    def is_under_way(self) -> bool:
        return self.stable_after_ms is None and not self.is_superseded


class UnownedPartition(Message, frozen=True, kw_only=True):
    """A partition that no member reads. `reason` is a stable code, `text` explains it; `member_id` is the member that the group
    waits for. -1: the time of the beginning or the end is not known."""

    topic: str
    partition: int
    reason: str
    text: str
    member_id: str = NOBODY
    since_ms: int = -1  # age of the state
    ends_in_ms: int = -1

"""What the leader of a partition tells and asks the coordinator of a share group, and the ranges of records that both keep."""

from enum import IntEnum
from typing import Final

from ..group_messages import TopicPartitions
from ..message import Items, Message

SHARE_PROTOCOL: Final = "share"  # of a group, where consumer groups have theirs


class RecordState(IntEnum):
    """Of a record in a share group; the numbers are Kafka's. ACQUIRED is known to the leader alone and never stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4  # rejected, delivered too often, or nothing that can be delivered


class Acknowledgement(IntEnum):
    """As on the wire. A GAP is an offset without a record: a control record, or one that compaction removed."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareRange(Message, frozen=True, kw_only=True):
    """Records with the same state, from the first to the last offset, both inclusive."""

    first_offset: int
    last_offset: int
    state: int
    delivery_count: int


class ShareStateToLoad(Message, frozen=True, kw_only=True):
    """The leader takes over a partition. `initial_offset` is where the group begins if it has no state of this topic id."""

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    initial_offset: int


class LoadedShareState(Message, frozen=True, kw_only=True):
    """`load_id` goes with every write of this leader; the ids of earlier loads are void from now on.

    `written_epoch`: of the leader whose log the offsets are of, or -1. What that log had and this leader's has not (an unclean
    election) was lost, and other records may be at these offsets now.
    """

    error: int = 0
    message: str = ""
    load_id: int = -1
    start_offset: int = -1
    ranges: Items[ShareRange] = ()
    written_epoch: int = -1


class LoadShareStatesRequest(Message, frozen=True, kw_only=True):
    group_id: str
    states: Items[ShareStateToLoad]


class LoadShareStatesResponse(Message, frozen=True, kw_only=True):
    states: Items[LoadedShareState]  # in the order of the request


class ShareStateToWrite(Message, frozen=True, kw_only=True):
    """The whole state of a partition, as its leader has it now. `sequence` grows with each attempt since the load."""

    topic: str
    partition: int
    load_id: int
    sequence: int
    start_offset: int
    ranges: Items[ShareRange]


class ShareStateOutcome(Message, frozen=True, kw_only=True):
    error: int = 0
    message: str = ""


class WriteShareStatesRequest(Message, frozen=True, kw_only=True):
    group_id: str
    states: Items[ShareStateToWrite]


class WriteShareStatesResponse(Message, frozen=True, kw_only=True):
    outcomes: Items[ShareStateOutcome]  # in the order of the request


# --- operators --------------------------------------------------------------------------------------------------------


class DeliveredRecords(Message, frozen=True, kw_only=True):
    deliveries: int
    count: int  # of records


class SharePartitionView(Message, frozen=True, kw_only=True):
    """What a share group has done in one partition. -1: the leader has not told."""

    topic: str
    partition: int
    # Every record before it is acknowledged or archived; -1: the leader has not loaded the state.
    start_offset: int = -1
    log_end_offset: int = -1
    lag: int = -1  # records from `start_offset` on that are neither acknowledged nor archived
    acquired: int = -1  # of these, records that members hold now
    deliveries: Items[DeliveredRecords] = ()  # of these, records that were given out at least once, by how often


def known(figure: int) -> int | None:
    """Of a view: None if the leader has not told."""
    return None if figure < 0 else figure


class ShareViewsRequest(Message, frozen=True, kw_only=True):
    """The coordinator of a group asks the leaders of its partitions: only they know the locks."""

    group_id: str
    partitions: Items[TopicPartitions]


class ShareViewsResponse(Message, frozen=True, kw_only=True):
    partitions: Items[SharePartitionView]  # those that the broker leads


# --- members ----------------------------------------------------------------------------------------------------------


class ShareGroupHeartbeatRequest(Message, frozen=True, kw_only=True):
    """Join (epoch 0), stay, leave (-1). The member chooses its id."""

    group_id: str
    member_id: str
    member_epoch: int
    subscribed_topics: Items[str] | None = None  # None: as before
    rack: str | None = None
    client_id: str = ""


class AcknowledgedBatch(Message, frozen=True, kw_only=True):
    """`kinds` is one `Acknowledgement` for all offsets, or one for each. Both offsets are inclusive."""

    first_offset: int
    last_offset: int
    kinds: Items[int]


class AcquiredRecords(Message, frozen=True, kw_only=True):
    """Records that a member has locked. Both offsets are inclusive; offsets without a record are acknowledged as gaps."""

    first_offset: int
    last_offset: int
    delivery_count: int


class ShareFetchPartition(Message, frozen=True, kw_only=True):
    topic_id: str
    partition: int
    acknowledged: Items[AcknowledgedBatch] = ()


class ShareFetchRequest(Message, frozen=True, kw_only=True):
    """`session_epoch` 0 begins a session, -1 ends it and releases what the member holds; others continue it. In a session, only
    partitions that are new to it, or that have acknowledgements, are named."""

    group_id: str
    member_id: str
    session_epoch: int
    partitions: Items[ShareFetchPartition] = ()
    forgotten: Items[ShareFetchPartition] = ()
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    max_records: int = 500
    is_strict: bool = False  # at most `max_records`, also within a batch


class SharePartitionAnswer(Message, frozen=True, kw_only=True):
    """`error` is that of the fetch, `acknowledge_error` that of the acknowledgements. `records` are whole batches, of which the
    member has only what `acquired` says."""

    topic_id: str
    partition: int
    error: int = 0
    message: str = ""
    acknowledge_error: int = 0
    acknowledge_message: str = ""
    leader_id: int = -1
    leader_epoch: int = -1
    records: bytes = b""
    acquired: Items[AcquiredRecords] = ()


class ShareFetchResponse(Message, frozen=True, kw_only=True):
    """`lock_duration_ms` holds from the answer on, for all that it brings."""

    partitions: Items[SharePartitionAnswer]
    lock_duration_ms: int


class ShareAcknowledgeRequest(Message, frozen=True, kw_only=True):
    """As a fetch without records: session epoch -1 ends the session, too."""

    group_id: str
    member_id: str
    session_epoch: int
    partitions: Items[ShareFetchPartition]

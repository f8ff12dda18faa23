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

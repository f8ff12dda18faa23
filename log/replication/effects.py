"""What the replication machines want done, as values. Nothing here decides or performs anything.

`Partition` appends what was fetched (`AppendFetched`), makes a `ChangeLog` of what waits for the disk (`Truncate`,
`StartOver`) and hands the rest up; the broker turns `ProposeIsr` into AlterPartition requests, `StartFetching` into fetcher
work, and the two `...Advanced` into checks of the purgatory. `PartitionAssignment` and `IsrAnswer` are what comes down: metadata
and the controller's word.
"""

from dataclasses import dataclass, field

from msgspec import Struct

from ..format.record_batch import Buffer
from ..vocabulary.errors import ErrorCode
from ..vocabulary.topic_partition import TopicPartition
from .log_change import LogChange

NO_LEADER = -1
UNKNOWN_BROKER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAssignment:
    """What the metadata says about one partition of ours. The marks of offline replicas are not here: whoever is marked
    plays no role, so nothing is assigned to it.

    `broker_epochs` holds the *active* brokers only (neither fenced nor shutting down): who is not in it cannot join the
    ISR, and the high watermark waits for nobody outside of the ISR who is not in it (KIP-903, KAFKA-15353).
    """

    topic_partition: TopicPartition
    topic_id: str
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    broker_epochs: dict[int, int] = field(default_factory=dict)
    eligible: tuple[int, ...] = ()  # eligible leader replicas (KIP-966)
    is_new: bool = True  # False: this broker may have had the replica before, so an empty one must not take its place


class HighWatermarkAdvanced(Struct, frozen=True, kw_only=True):
    """Wake the acks=all producers and the consumers of the partition."""

    topic_partition: TopicPartition
    high_watermark: int


class LogEndAdvanced(Struct, frozen=True, kw_only=True):
    """Wake the followers that are parked on the partition."""

    topic_partition: TopicPartition
    log_end_offset: int


class FlushLog(Struct, frozen=True, kw_only=True):
    """Bring the log to the disk, as soon as may be, and tell `Partition.flushed`. Asked once more, it is one flush."""

    topic_partition: TopicPartition


class LogFlushed(Struct, frozen=True, kw_only=True):
    """Wake the acks=1 producers of a leader that acknowledges only what is on the disk."""

    topic_partition: TopicPartition


class ResumeFetching(Struct, frozen=True, kw_only=True):
    """A follower that had to flush before it says how far it has come may ask for more."""

    topic_partition: TopicPartition


class Resign(Struct, frozen=True, kw_only=True):
    """Ask the controller to count on our replica no more: some of its log is damaged. When it has agreed, and with a leader
    epoch above this one, tell `Partition.resigned`; asked again as long as the damage is there."""

    topic_partition: TopicPartition
    topic_id: str
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLog:
    """Perform the change in a thread that may wait for the disk, and then tell `Partition.log_changed`."""

    topic_partition: TopicPartition
    change: LogChange


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    """KIP-903: the incarnation that the leader saw fetching; the controller refuses another one."""

    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Ask the controller for this ISR. Whatever comes of it is told by `isr_answered`, silence by `isr_unanswered`."""

    topic_partition: TopicPartition
    topic_id: str
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    proposal_id: int  # of this leadership: an answer counts only for the proposal that it answers


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrAnswer:
    """What the controller said; with error NONE the fields behind it are the committed state."""

    error: int = ErrorCode.NONE
    leader: int = NO_LEADER
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()  # eligible leader replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFetching:
    topic_partition: TopicPartition
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFetching:
    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipGained:
    topic_partition: TopicPartition
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipLost:
    """Answer whoever waits on the partition: NOT_LEADER_OR_FOLLOWER."""

    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed:
    """The partition's log takes no more part here. `was_in_use`: it failed while it served, so that others wait for this
    replica until it is known to be gone; otherwise it never opened, or its files could not be removed."""

    topic_partition: TopicPartition
    message: str
    was_in_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOver:
    """Drop the whole log and go on at `offset`: the leader no longer has what we lack."""

    offset: int


class AppendFetched(Struct, frozen=True, kw_only=True):
    """`high_watermark` is the leader's; ours is that, but not behind our own log end."""

    records: Buffer
    high_watermark: int
    leader_log_start_offset: int


Effect = (
    HighWatermarkAdvanced
    | LogEndAdvanced
    | ProposeIsr
    | StartFetching
    | StopFetching
    | LeadershipGained
    | LeadershipLost
    | StorageFailed
    | FlushLog
    | LogFlushed
    | ResumeFetching
    | Resign
    | ChangeLog
)
LogEffect = Truncate | StartOver | AppendFetched

"""The effects that the replication machines request, as values. Nothing here decides or performs anything.

`Following` appends fetched records (`AppendFetched`), makes a `ChangeLog` of effects that wait for the disk (`Truncate`,
`StartOver`) and returns the rest; the broker turns `ProposeIsr` into AlterPartition requests, `StartFetching` into work of
fetchers, and the two `...Advanced` into checks of the purgatory. `PartitionAssignment` and `IsrAnswer` are inputs: metadata and
the controller's response.
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
    """What the metadata says about one partition of this broker. Offline replicas are not marked here: an offline replica has no
    role, so nothing is assigned to it.

    `broker_epochs` has the *active* brokers only (neither fenced nor shutting down). A broker that is not in it cannot join the
    ISR, and unless it is in the ISR, the high watermark does not wait for it (KIP-903, KAFKA-15353).
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
    is_new: bool = True  # False: this broker may have had the replica before, so an empty replica must not replace it


class HighWatermarkAdvanced(Struct, frozen=True, kw_only=True):
    """Wake the acks=all producers and the consumers of the partition."""

    topic_partition: TopicPartition
    high_watermark: int


class LogEndAdvanced(Struct, frozen=True, kw_only=True):
    """Wake the followers that are parked on the partition."""

    topic_partition: TopicPartition
    log_end_offset: int


class FlushLog(Struct, frozen=True, kw_only=True):
    """Flush the log as soon as possible, and call `Partition.flushed`. Repeated requests are one flush."""

    topic_partition: TopicPartition


class LogFlushed(Struct, frozen=True, kw_only=True):
    """Wake the acks=1 producers of a leader that acknowledges only flushed records."""

    topic_partition: TopicPartition


class ResumeFetching(Struct, frozen=True, kw_only=True):
    """A follower that had to flush before it acknowledged its offset may fetch again."""

    topic_partition: TopicPartition


class Resign(Struct, frozen=True, kw_only=True):
    """Ask the controller not to rely on this replica any more: some of its log is damaged. When it has agreed with a leader epoch
    above this one, call `LogRepair.resigned`; the request is repeated as long as the damage is there."""

    topic_partition: TopicPartition
    topic_id: str
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLog:
    """Perform the change in a thread that may wait for the disk, and then call `Partition.log_changed`."""

    topic_partition: TopicPartition
    change: LogChange


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    """KIP-903: the incarnation whose fetches the leader has seen; the controller refuses any other."""

    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Ask the controller for this ISR. The response is passed to `isr_answered`, a missing response to `isr_unanswered`."""

    topic_partition: TopicPartition
    topic_id: str
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    proposal_id: int  # unique within this leadership: an answer counts only for its own proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrAnswer:
    """The controller's response; with error NONE, the following fields are the committed state."""

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
    """Answer all requests that wait on the partition with NOT_LEADER_OR_FOLLOWER."""

    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed:
    """The partition's log is out of use. `was_in_use`: it failed while it served, so others wait for this replica until they know
    that it has failed; otherwise it never opened, or its files could not be removed."""

    topic_partition: TopicPartition
    message: str
    was_in_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOver:
    """Drop the whole log and continue at `offset`: the leader no longer has the missing records."""

    offset: int


class AppendFetched(Struct, frozen=True, kw_only=True):
    """`high_watermark` is the leader's; the follower's is the same, but at most its own log end."""

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

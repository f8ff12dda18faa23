"""Requests as frozen values: what handlers see, whatever protocol and version they came in.

Versions end in the codecs. Topic names are used throughout; where a request must not meet a topic that was deleted and made
again under the same name (replication), the topic id travels too. `apis` pairs them with their answers and gives each its key.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from msgspec import Meta

from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.access.acls import AclFilter
from barnabas.log.vocabulary.access.quotas import QuotaFilter
from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AlterConfigRequest,
    AssignReplicasRequest,
    ElectLeaderRequest,
    ForwardedRequest,
    NewTopic,
    UnregisterBrokerRequest,
)
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetToCommit,
    SyncGroupRequest,
    TopicPartitions,
)
from barnabas.log.vocabulary.message import Items, Message
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.share.messages import (
    LoadShareStatesRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
    ShareViewsRequest,
    WriteShareStatesRequest,
)
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    PrepareTransactionRequest,
    TransactionalOffsetCommitRequest,
    TransactionMarker,
)
from barnabas.net.base.limits import MAX_DATA_ITEMS, MAX_MARKERS

from .broker_figures import DescribeBrokerRequest
from .event_messages import EventsRequest
from .lag import GroupLagsRequest
from .transaction_operations import (
    AbortHangingRequest,
    AbortTransactionRequest,
    DescribeTransactionRequest,
    ListTransactionsRequest,
    OpenTransactionsRequest,
)
from .user_messages import AuthenticateRequest, DescribeUsersRequest

if TYPE_CHECKING:
    Records = Buffer
else:
    # What msgspec decodes: an envelope has the size of the records, and MsgpackCodec puts the records in its place.
    Records = Annotated[int, Meta(ge=0)]

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3
CONSUMER_REPLICA_ID = -1
READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class ProducePartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    records: Records  # one or more whole batches; writable, because the leader patches them in place


class ProduceRequest(Message, frozen=True, kw_only=True):
    acks: int  # 0 no reply, 1 leader, -1 all in-sync replicas
    timeout_ms: int
    partitions: Items[ProducePartition]
    transactional_id: str | None = None
    kafka_version: ClassVar[int] = -1


class KafkaProduceRequest(Message, frozen=True, kw_only=True):
    """The same as it comes from Kafka's clients: versions have rules of their own. Never on our wire."""

    acks: int
    timeout_ms: int
    partitions: Items[ProducePartition]
    transactional_id: str | None = None
    kafka_version: int


class FetchPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1  # -1: not checked
    last_fetched_epoch: int = -1  # of the last record before fetch_offset; -1: divergence is not checked
    log_start_offset: int = -1  # followers only
    topic_id: str = ""  # that the offset is of; "": not checked


# Fetch sessions (KIP-227)
FINAL_EPOCH: Final = -1  # ends the session, or asks for none
INITIAL_EPOCH: Final = 0  # begins one
LAST_EPOCH: Final = 2**31 - 1
# The broker has another session, or none: a request has been lost, or others needed the place. The reader begins another one.
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


def epoch_after(epoch: int) -> int:
    return 1 if epoch == LAST_EPOCH else epoch + 1


class ForgottenTopic(TopicPartitions, frozen=True, kw_only=True):
    """Partitions that leave a fetch session, in any order. With a topic id, only those of this topic."""

    topic_id: str = ""


def forgotten_topics(items: Iterable[FetchPartition]) -> tuple[ForgottenTopic, ...]:
    """What leaves a session, as a request says it."""
    found: dict[tuple[str, str], list[int]] = {}
    for item in items:
        found.setdefault((item.topic, item.topic_id), []).append(item.partition)
    return tuple(
        ForgottenTopic(topic=topic, topic_id=topic_id, partitions=tuple(numbers))
        for (topic, topic_id), numbers in found.items()
    )


class FetchRequest(Message, frozen=True, kw_only=True):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: Items[FetchPartition]
    replica_id: int = CONSUMER_REPLICA_ID
    broker_epoch: int = -1  # of the fetching follower (KIP-903)
    isolation_level: int = READ_UNCOMMITTED
    rack: str = ""
    # In a fetch session (KIP-227), `partitions` has only those that are new or have another offset. Epoch 0 begins a session; -1
    # ends it, or asks for none.
    session_id: int = 0
    session_epoch: int = FINAL_EPOCH
    forgotten: Annotated[tuple[ForgottenTopic, ...], Meta(max_length=MAX_DATA_ITEMS)] = ()
    may_be_sent_away: bool = False  # the consumer goes where `preferred_read_replica` says (KIP-392)


class ListOffsetsPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    timestamp_ms: int  # or one of the negative constants above
    current_leader_epoch: int = -1
    topic_id: str = ""  # of the topic that is meant; "": not checked


class ListOffsetsRequest(Message, frozen=True, kw_only=True):
    partitions: Items[ListOffsetsPartition]
    isolation_level: int = READ_UNCOMMITTED
    replica_id: int = CONSUMER_REPLICA_ID


class MetadataRequest(Message, frozen=True, kw_only=True):
    """`topics` None: all. `known_offset`: with a wait, answer as soon as the metadata is newer (0: answer at once).
    `topic_ids`: more topics, by their ids in hexadecimal (KIP-516)."""

    topics: Items[str] | None = None
    allow_auto_topic_creation: bool = False
    known_offset: int = 0
    max_wait_ms: int = 0
    topic_ids: Items[str] = ()


class KafkaMetadataRequest(MetadataRequest, frozen=True, kw_only=True):
    """As it comes from Kafka's clients, with all that an encoded answer depends on, so that it can be kept by its request.
    Never on our wire."""

    kafka_version: int
    tells_topic_operations: bool = False
    tells_cluster_operations: bool = False


class EpochPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


class InitProducerIdRequest(Message, frozen=True, kw_only=True):
    """An id for an idempotent producer (KIP-98)."""

    transactional_id: str | None = None


class OffsetForLeaderEpochRequest(Message, frozen=True, kw_only=True):
    partitions: Items[EpochPartition]
    replica_id: int = CONSUMER_REPLICA_ID


class DeleteRecordsRequest(Message, frozen=True, kw_only=True):
    """Move the log start offset of one partition to `before_offset` (-1: the high watermark)."""

    topic: str
    partition: int
    before_offset: int


# --- topics and configuration ----------------------------------------------------------------------------------------


class CreateTopicRequest(NewTopic, frozen=True, kw_only=True):
    timeout_ms: int = 30_000
    # Chosen by the client, so that its repetition finds what the first copy has made: the first half of the topic's id is of
    # it. "": chosen by the broker.
    topic_id: str = ""


class DeleteTopicRequest(Message, frozen=True, kw_only=True):
    name: str
    timeout_ms: int = 30_000


class DescribeConfigsRequest(Message, frozen=True, kw_only=True):
    resource_type: int
    resource: str


class DescribeAclsRequest(Message, frozen=True, kw_only=True):
    """The permissions that the filter finds, as the asked broker knows them."""

    wanted: AclFilter


class DescribeQuotasRequest(Message, frozen=True, kw_only=True):
    """The quotas of the entities that the filter finds, as the asked broker knows them."""

    wanted: QuotaFilter = QuotaFilter()


class DescribeMovesRequest(Message, frozen=True, kw_only=True):
    """All partitions that are being moved; how far they are is known of those that the asked broker leads."""


# --- the cluster -----------------------------------------------------------------------------------------------------


class DescribeClusterRequest(Message, frozen=True, kw_only=True):
    """The brokers, as the asked one knows them."""


class DescribeQuorumRequest(Message, frozen=True, kw_only=True):
    """The voters, as the asked broker knows them."""


class AlterVotersRequest(Message, frozen=True, kw_only=True):
    """Add a broker to the voters of the quorum, or remove a voter; answered when it is done."""

    node_id: int
    add: bool
    timeout_ms: int = 30_000


class QuorumRoleRequest(Message, frozen=True, kw_only=True):
    """Broker to broker: open your quorum port and learn (`join`), or look whether you have been removed."""

    node_id: int
    join: bool


class ControllerCallRequest(Message, frozen=True, kw_only=True):
    """Broker to controller: one request of `kraft.metadata.requests`, opaque here."""

    body: bytes


class MetadataFeedRequest(Message, frozen=True, kw_only=True):
    """An observer asks a voter for committed commands behind `after_offset` (long poll).

    `applied` has the same offset, and the history that it belongs to. Brokers of a version before this check leave it out;
    `after_offset` alone then says where the observer stands. So both are sent.
    """

    node_id: int
    after_offset: int
    max_bytes: int
    max_wait_ms: int
    applied: MetadataPosition | None = None


# --- consumer groups -------------------------------------------------------------------------------------------------


class FindCoordinatorRequest(Message, frozen=True, kw_only=True):
    group_id: str


class OffsetCommitRequest(Message, frozen=True, kw_only=True):
    """`member_id` "" with epoch -1: a commit from outside of the group, taken while it has no members.

    `member_epoch` is the generation where the group is classic, and `instance_id` fences its static members. A request that
    arrives after a newer one of its `committer`, the client, fails: the client has abandoned the connection that carried it.
    """

    group_id: str
    member_id: str
    member_epoch: int
    partitions: Items[OffsetToCommit]
    instance_id: str | None = None
    committer: str = ""  # "": may be taken in any order
    sequence: int = -1  # of this request among those of its committer
    coordinator_epoch: int = -1  # from FindCoordinator: another coordinator does not know the commits of this one


class OffsetFetchRequest(Message, frozen=True, kw_only=True):
    """`partitions` None: all that the group has committed."""

    group_id: str
    partitions: Items[TopicPartitions] | None = None
    require_stable: bool = False  # leave offsets out that an open transaction may change (KIP-447)


class ListGroupsRequest(Message, frozen=True, kw_only=True):
    """Lists the groups that the asked broker coordinates."""


class DescribeGroupRequest(Message, frozen=True, kw_only=True):
    """`explain`: also what moved in each rebalance, and what the group waits for now. `history`: also the lag of an hour.
    `shares`: of a share group also its partitions, which their leaders are asked about."""

    group_id: str
    explain: bool = False
    history: bool = False
    shares: bool = False


class DeleteGroupRequest(Message, frozen=True, kw_only=True):
    group_id: str


class DeleteOffsetsRequest(Message, frozen=True, kw_only=True):
    """`group delete-offsets`: forget committed offsets. Refused for topics that a member subscribes to."""

    group_id: str
    partitions: Items[TopicPartitions]


class ResetOffsetsRequest(Message, frozen=True, kw_only=True):
    """`group seek`: set committed offsets, also of a group that is running."""

    group_id: str
    partitions: Items[OffsetToCommit]


class UnreadPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int  # of the next record to read; -1: nothing was read yet
    current_leader_epoch: int = -1


class UnreadRequest(Message, frozen=True, kw_only=True):
    """What a reader at these offsets has yet to read, in records and in time: asked of the leaders."""

    partitions: Items[UnreadPartition]


class UndoOffsetResetRequest(Message, frozen=True, kw_only=True):
    """`group seek --undo`: back to what was committed before the last reset, which may have been an undo itself.

    `topics`: those that the undo may move; if the reset moved another one, the undo is refused as a whole. None: any topic, which
    needs the permission to read all of them.
    """

    group_id: str
    validate_only: bool = False
    topics: tuple[str, ...] | None = None


class BrokerShutdownRequest(Message, frozen=True, kw_only=True):
    """Ask this broker to stop in a controlled way (`broker drain` and the scripts)."""

    node_id: int


class DescribeStorageRequest(Message, frozen=True, kw_only=True):
    """The data folders of the broker that is asked; `topic`: also the sizes of its partitions there."""

    node_id: int
    topic: str = ""


class BringBackFolderRequest(Message, frozen=True, kw_only=True):
    """Recover an offline data folder of this broker, after a disk repair or replacement."""

    node_id: int
    path: str


class WriteMarkersRequest(Message, frozen=True, kw_only=True):
    """From coordinators of transactions: outcomes for partitions that the broker leads, and groups that it coordinates."""

    markers: Annotated[tuple[TransactionMarker, ...], Meta(max_length=MAX_MARKERS)]


Request = (
    ProduceRequest
    | FetchRequest
    | ListOffsetsRequest
    | MetadataRequest
    | InitProducerIdRequest
    | OffsetForLeaderEpochRequest
    | DeleteRecordsRequest
    | CreateTopicRequest
    | DeleteTopicRequest
    | AddPartitionsRequest
    | AlterConfigRequest
    | DescribeConfigsRequest
    | ElectLeaderRequest
    | AssignReplicasRequest
    | DescribeClusterRequest
    | DescribeQuorumRequest
    | UnregisterBrokerRequest
    | AlterVotersRequest
    | QuorumRoleRequest
    | ControllerCallRequest
    | MetadataFeedRequest
    | FindCoordinatorRequest
    | ConsumerGroupHeartbeatRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetFetchRequest
    | ListGroupsRequest
    | DescribeGroupRequest
    | DeleteGroupRequest
    | ResetOffsetsRequest
    | DeleteOffsetsRequest
    | UnreadRequest
    | UndoOffsetResetRequest
    | BrokerShutdownRequest
    | DescribeStorageRequest
    | DescribeBrokerRequest
    | BringBackFolderRequest
    | DescribeAclsRequest
    | DescribeQuotasRequest
    | DescribeMovesRequest
    | InitTransactionsRequest
    | AddToTransactionRequest
    | PrepareTransactionRequest
    | EndTransactionRequest
    | TransactionalOffsetCommitRequest
    | WriteMarkersRequest
    | ListTransactionsRequest
    | EventsRequest
    | DescribeTransactionRequest
    | AbortTransactionRequest
    | OpenTransactionsRequest
    | AbortHangingRequest
    | AuthenticateRequest
    | DescribeUsersRequest
    | ShareGroupHeartbeatRequest
    | ShareFetchRequest
    | ShareAcknowledgeRequest
    | LoadShareStatesRequest
    | WriteShareStatesRequest
    | ShareViewsRequest
    | GroupLagsRequest
    | ForwardedRequest
)

"""Responses as frozen values. An `error` is an ErrorCode; `message` describes what happened and what to do.

A request that fails as a whole is answered by `ErrorResponse`, whatever its API.
"""

from typing import TYPE_CHECKING, Protocol

from msgspec import field

from barnabas.log.vocabulary.access.acls import Acl
from barnabas.log.vocabulary.access.quotas import EntityQuotas
from barnabas.log.vocabulary.cluster_changes import CreateTopicResponse, ForwardedResponse
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatResponse,
    JoinGroupResponse,
    PartitionOutcome,
    SyncGroupResponse,
    UndoOffsetResetResponse,
)
from barnabas.log.vocabulary.message import Items, Message, Texts
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.quorum import CommittedCommand, QuorumPeer, Stranger
from barnabas.log.vocabulary.share.messages import (
    LoadShareStatesResponse,
    ShareFetchResponse,
    ShareViewsResponse,
    WriteShareStatesResponse,
)
from barnabas.log.vocabulary.transaction_messages import NOT_STARTED, GroupOutcome, ProducerIdentity

from .broker_figures import DescribeBrokerResponse
from .event_messages import EventsResponse
from .group_responses import (
    DescribeGroupResponse,
    FindCoordinatorResponse,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    UnreadResponse,
)
from .lag import GroupLagsResponse
from .requests import Records
from .transaction_operations import DescribeTransactionResponse, ListTransactionsResponse, OpenTransactionsResponse
from .user_messages import AuthenticateResponse, DescribeUsersResponse


class FileRegion(Protocol):
    """Bytes that still lie in a segment file: sent by sendfile where they are large, read and sent where they are small."""

    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def fileno(self) -> int | None:
        """None where there is no real file (simulation): then `read` must be used."""

    def read(self) -> bytes: ...


if TYPE_CHECKING:
    FetchedRecords = Records | FileRegion
else:
    FetchedRecords = Records


class ErrorResponse(Message, frozen=True, kw_only=True):
    error: int
    message: str


class ProducePartitionResponse(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: int = 0
    message: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    leader_id: int = -1  # a hint with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
    leader_epoch: int = -1


class ProduceResponse(Message, frozen=True, kw_only=True):
    partitions: Items[ProducePartitionResponse]


class FetchPartitionResponse(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: int = 0
    message: str = ""
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: int = -1  # with it: truncate to the end of this epoch (KIP-595)
    diverging_end_offset: int = -1
    leader_id: int = -1
    leader_epoch: int = -1
    preferred_read_replica: int = -1
    records: FetchedRecords = b""
    aborted: Items[tuple[int, int]] = ()  # (producer id, first offset) of transactions that read_committed leaves out


class FetchResponse(Message, frozen=True, kw_only=True):
    partitions: Items[FetchPartitionResponse]  # in a session, only those with news
    session_id: int = 0  # 0: there is no session
    error: int = 0  # of the session; then there are no partitions


class ListOffsetsPartitionResponse(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: int = 0
    message: str = ""
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


class ListOffsetsResponse(Message, frozen=True, kw_only=True):
    partitions: Items[ListOffsetsPartitionResponse]


class BrokerMetadata(NodeAddress, frozen=True, kw_only=True):
    rack: str | None = None


class PartitionMetadata(Message, frozen=True, kw_only=True):
    error: int
    leader: int
    leader_epoch: int
    replicas: Items[int]
    isr: Items[int]
    offline: Items[int] = ()
    eligible: Items[int] = ()  # KIP-966: outside of the ISR, with everything that is committed
    unclean_elections: int = 0


class TopicMetadata(Message, frozen=True, kw_only=True):
    error: int
    name: str
    topic_id: str = ""
    internal: bool = False
    partitions: Items[PartitionMetadata] = ()
    message: str = ""


class MetadataResponse(Message, frozen=True, kw_only=True):
    cluster_id: str
    controller_id: int
    offset: int
    brokers: Items[BrokerMetadata]
    topics: Items[TopicMetadata]


class EpochEndOffset(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: int = 0
    leader_epoch: int = -1
    end_offset: int = -1


class InitProducerIdResponse(Message, frozen=True, kw_only=True):
    producer_id: int = -1
    producer_epoch: int = -1
    error: int = 0  # for Kafka's response; our protocol sends an ErrorResponse


class OffsetForLeaderEpochResponse(Message, frozen=True, kw_only=True):
    partitions: Items[EpochEndOffset]


class DeleteRecordsResponse(Message, frozen=True, kw_only=True):
    log_start_offset: int


# --- topics and configuration ----------------------------------------------------------------------------------------


class EmptyResponse(Message, frozen=True, kw_only=True):
    """The change is committed; the response has no fields."""


class ConfigEntry(Message, frozen=True, kw_only=True):
    key: str
    value: str | None
    source: str  # "topic" | "broker" | "default"
    default: str | None
    documentation: str
    read_only: bool = False
    sensitive: bool = False


class DescribeConfigsResponse(Message, frozen=True, kw_only=True):
    entries: Items[ConfigEntry]


# --- the cluster -----------------------------------------------------------------------------------------------------


class TroubledFolder(Message, frozen=True, kw_only=True):
    """A data folder with a problem: the client's view of the registered trouble, which also names the directory's id."""

    path: str
    state: str  # "offline" | "full" | "hanging"
    cause: str
    since_ms: int


class IgnoredSetting(Message, frozen=True, kw_only=True):
    """A setting with one value for the cluster, for which a broker's own file has another value."""

    key: str
    of_file: str
    of_cluster: str


class ClusterBroker(Message, frozen=True, kw_only=True):
    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    broker_epoch: int
    admin_host: str = ""
    admin_port: int = -1
    troubled_folders: Items[TroubledFolder] = ()
    decommissioning: bool = False
    replica_count: int = 0
    slot_count: int = 0  # of consumer groups
    ignored_settings: Items[IgnoredSetting] = ()
    machine: str | None = None


class DescribeClusterResponse(Message, frozen=True, kw_only=True):
    cluster_id: str
    controller_id: int
    offset: int
    brokers: Items[ClusterBroker]
    settings: Texts = field(default_factory=dict)  # those with one value for the cluster
    quarantined: Items[str] = ()  # committed metadata records that the asked broker could not apply


class StorageFolder(Message, frozen=True, kw_only=True):
    """One entry of `log.dirs`. Sizes are -1 where the folder cannot be asked."""

    path: str
    directory_id: str
    state: str  # "online" | "full" | "hanging" | "offline"
    cause: str
    since_ms: int  # of the state, wall clock; -1: since the start
    partitions: int
    offline_partitions: Items[str]
    size_bytes: int
    free_bytes: int
    total_bytes: int
    strays: Items[str] = ()  # folders of replicas that the cluster does not assign to this broker


class PartitionSize(Message, frozen=True, kw_only=True):
    partition: int
    size_bytes: int


class DescribeStorageResponse(Message, frozen=True, kw_only=True):
    node_id: int
    folders: Items[StorageFolder]
    sizes: Items[PartitionSize] = ()  # of the topic that was asked for, on disks that answer


class DescribeQuorumResponse(Message, frozen=True, kw_only=True):
    leader_id: int
    term: int
    committed_index: int
    voters: Items[int]
    observers: Items[int] = ()
    peers: Items[QuorumPeer] = ()  # empty where the leader could not be asked
    change: str = ""  # of the voters, under way
    unconfirmed_ms: int = -1  # how old the metadata is that no leader of the quorum vouches for now; -1: one does
    unreachable_voters: Items[int] = ()  # where none does: voters that do not answer the broker that was asked
    refused_brokers: Items[str] = ()  # whose metadata contradicts that of the quorum, in words
    strangers: Items[
        Stranger
    ] = ()  # brokers with the data folder of another cluster that asked the leader for their quorum


class AlterVotersResponse(Message, frozen=True, kw_only=True):
    state: str


class QuorumRoleResponse(Message, frozen=True, kw_only=True):
    """The address of the quorum port; port -1 where it has none."""

    host: str
    port: int


class ControllerCallResponse(Message, frozen=True, kw_only=True):
    body: bytes
    wall_ms: int = -1  # the controller's clock when it answered; -1: it is of an older version


class MetadataFeedResponse(Message, frozen=True, kw_only=True):
    """Either commands behind the offset asked for, or (when those are gone) a snapshot and its offset."""

    leader_id: int
    term: int
    entries: Items[CommittedCommand] = ()
    snapshot_offset: int = -1
    snapshot_chunks: Items[bytes] = ()
    contradiction: str = ""  # why the observer gets nothing: what it holds is of another history


class DescribeAclsResponse(Message, frozen=True, kw_only=True):
    acls: Items[Acl]


class DescribeQuotasResponse(Message, frozen=True, kw_only=True):
    quotas: Items[EntityQuotas]


class CatchingUp(Message, frozen=True, kw_only=True):
    """A replica that is being added. -1: only the leader knows."""

    node_id: int
    records_left: int = -1
    bytes_left: int = -1


class PartitionMove(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    leader: int
    replicas: Items[int]
    adding: Items[int]
    removing: Items[int]
    catching_up: Items[CatchingUp] = ()


class DescribeMovesResponse(Message, frozen=True, kw_only=True):
    moves: Items[PartitionMove]
    throttle_bytes_per_s: int = 0  # 0: none


class AddToTransactionResponse(Message, frozen=True, kw_only=True):
    partitions: Items[PartitionOutcome]
    started_ms: int = NOT_STARTED  # when the open transaction began: markers of others do not end it


class MarkerOutcomes(Message, frozen=True, kw_only=True):
    partitions: Items[PartitionOutcome]
    groups: Items[GroupOutcome]


class WriteMarkersResponse(Message, frozen=True, kw_only=True):
    outcomes: Items[MarkerOutcomes]  # of the markers, in their order


Response = (
    ErrorResponse
    | ProduceResponse
    | FetchResponse
    | ListOffsetsResponse
    | MetadataResponse
    | InitProducerIdResponse
    | OffsetForLeaderEpochResponse
    | DeleteRecordsResponse
    | CreateTopicResponse
    | EmptyResponse
    | DescribeConfigsResponse
    | DescribeClusterResponse
    | DescribeQuorumResponse
    | DescribeStorageResponse
    | DescribeBrokerResponse
    | AlterVotersResponse
    | QuorumRoleResponse
    | ControllerCallResponse
    | MetadataFeedResponse
    | FindCoordinatorResponse
    | ConsumerGroupHeartbeatResponse
    | JoinGroupResponse
    | SyncGroupResponse
    | OffsetCommitResponse
    | OffsetFetchResponse
    | ListGroupsResponse
    | DescribeGroupResponse
    | DescribeAclsResponse
    | DescribeQuotasResponse
    | DescribeMovesResponse
    | ForwardedResponse
    | UnreadResponse
    | UndoOffsetResetResponse
    | ProducerIdentity
    | AddToTransactionResponse
    | WriteMarkersResponse
    | ListTransactionsResponse
    | EventsResponse
    | DescribeTransactionResponse
    | OpenTransactionsResponse
    | AuthenticateResponse
    | DescribeUsersResponse
    | ShareFetchResponse
    | LoadShareStatesResponse
    | WriteShareStatesResponse
    | ShareViewsResponse
    | GroupLagsResponse
)

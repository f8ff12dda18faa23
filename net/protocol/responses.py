"""Responses as frozen values. An `error` is an ErrorCode; `message` says in words what happened and what to do about it.

A request that fails as a whole is answered by `ErrorResponse`, whatever its API.
"""

from dataclasses import dataclass, field
from typing import Protocol

from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.quick_init import quick_init

from . import requests
from .group_responses import (
    ConsumerGroupHeartbeatResponse,
    DescribeGroupResponse,
    FindCoordinatorResponse,
    JoinGroupResponse,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
    UndoOffsetResetResponse,
    UnreadResponse,
)


class FileRegion(Protocol):
    """Bytes that still lie in a segment file: sent by sendfile where they are large, read and sent where they are small."""

    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def fileno(self) -> int | None:
        """None where there is no real file (simulation): then `read` must be used."""

    def read(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorResponse:
    error: int
    message: str


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducePartitionResponse:
    topic: str
    partition: int
    error: int = 0
    message: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    leader_id: int = -1  # a hint with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    partitions: tuple[ProducePartitionResponse, ...]


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartitionResponse:
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
    records: Buffer | FileRegion = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    partitions: tuple[FetchPartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    topic: str
    partition: int
    error: int = 0
    message: str = ""
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMetadata:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    error: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()  # KIP-966: outside of the ISR, with everything that is committed
    unclean_elections: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    error: int
    name: str
    topic_id: str = ""
    internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    cluster_id: str
    controller_id: int
    offset: int
    brokers: tuple[BrokerMetadata, ...]
    topics: tuple[TopicMetadata, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    topic: str
    partition: int
    error: int = 0
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    producer_id: int = -1
    producer_epoch: int = -1
    error: int = 0  # of Kafka's answer; ours says it as an ErrorResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    partitions: tuple[EpochEndOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    log_start_offset: int


# --- topics and configuration ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicResponse:
    name: str
    topic_id: str
    partition_count: int
    replication_factor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyResponse:
    """It is done and committed; there is nothing more to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    key: str
    value: str | None
    source: str  # "topic" | "broker" | "default"
    default: str | None
    documentation: str
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    entries: tuple[ConfigEntry, ...]


# --- the cluster -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubledFolder:
    """A data folder that is not well."""

    path: str
    state: str  # "offline" | "full" | "hanging"
    cause: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredSetting:
    """A setting with one value for the cluster, of which a broker's own file says something else."""

    key: str
    of_file: str
    of_cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBroker:
    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    broker_epoch: int
    admin_host: str = ""
    admin_port: int = -1
    troubled_folders: tuple[TroubledFolder, ...] = ()
    decommissioning: bool = False
    replica_count: int = 0
    slot_count: int = 0  # of consumer groups
    ignored_settings: tuple[IgnoredSetting, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterResponse:
    cluster_id: str
    controller_id: int
    offset: int
    brokers: tuple[ClusterBroker, ...]
    settings: dict[str, str] = field(default_factory=dict)  # those with one value for the cluster
    quarantined: tuple[str, ...] = ()  # committed metadata records that the asked broker could not apply


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFolder:
    """One entry of `log.dirs`. Sizes are -1 where the folder cannot be asked."""

    path: str
    directory_id: str
    state: str  # "online" | "full" | "hanging" | "offline"
    cause: str
    since_ms: int
    partitions: int
    offline_partitions: tuple[str, ...]
    size_bytes: int
    free_bytes: int
    total_bytes: int
    strays: tuple[str, ...] = ()  # folders of replicas that the cluster assigns to nobody here


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeStorageResponse:
    node_id: int
    folders: tuple[StorageFolder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumPeer:
    """A voter, or a node that learns to become one. `lag_entries`: what it lacks on disk, -1: not known."""

    node_id: int
    host: str
    port: int
    is_voter: bool
    is_live: bool
    lag_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponse:
    leader_id: int
    term: int
    committed_index: int
    voters: tuple[int, ...]
    observers: tuple[int, ...] = ()
    peers: tuple[QuorumPeer, ...] = ()  # empty where the leader could not be asked
    change: str = ""  # of the voters, under way
    unconfirmed_ms: int = -1  # how old the metadata is that no leader of the quorum vouches for now; -1: one does
    unreachable_voters: tuple[int, ...] = ()  # where none does: voters that do not answer the broker that was asked
    refused_brokers: tuple[str, ...] = ()  # whose metadata contradicts that of the quorum, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterVotersResponse:
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumRoleResponse:
    """The address of the quorum port; port -1 where it has none."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerCallResponse:
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    index: int
    term: int
    command: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFeedResponse:
    """Either commands behind the offset asked for, or (when those are gone) a snapshot and its offset."""

    leader_id: int
    term: int
    entries: tuple[FeedEntry, ...] = ()
    snapshot_offset: int = -1
    snapshot_chunks: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchingUp:
    """A replica that is being added. -1: only the leader knows."""

    node_id: int
    records_left: int = -1
    bytes_left: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMove:
    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    catching_up: tuple[CatchingUp, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeMovesResponse:
    moves: tuple[PartitionMove, ...]
    throttle_bytes_per_s: int = 0  # 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class FillBrokerResponse:
    move_count: int


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
    | DescribeMovesResponse
    | FillBrokerResponse
    | UnreadResponse
    | UndoOffsetResetResponse
)

RESPONSE_OF: dict[type, type] = {
    requests.ProduceRequest: ProduceResponse,
    requests.FetchRequest: FetchResponse,
    requests.ListOffsetsRequest: ListOffsetsResponse,
    requests.MetadataRequest: MetadataResponse,
    requests.InitProducerIdRequest: InitProducerIdResponse,
    requests.OffsetForLeaderEpochRequest: OffsetForLeaderEpochResponse,
    requests.DeleteRecordsRequest: DeleteRecordsResponse,
    requests.CreateTopicRequest: CreateTopicResponse,
    requests.DeleteTopicRequest: EmptyResponse,
    requests.AddPartitionsRequest: EmptyResponse,
    requests.AlterConfigRequest: EmptyResponse,
    requests.DescribeConfigsRequest: DescribeConfigsResponse,
    requests.ElectLeaderRequest: EmptyResponse,
    requests.AssignReplicasRequest: EmptyResponse,
    requests.DescribeClusterRequest: DescribeClusterResponse,
    requests.DescribeQuorumRequest: DescribeQuorumResponse,
    requests.UnregisterBrokerRequest: EmptyResponse,
    requests.AlterVotersRequest: AlterVotersResponse,
    requests.QuorumRoleRequest: QuorumRoleResponse,
    requests.ControllerCallRequest: ControllerCallResponse,
    requests.MetadataFeedRequest: MetadataFeedResponse,
    requests.FindCoordinatorRequest: FindCoordinatorResponse,
    requests.ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse,
    requests.JoinGroupRequest: JoinGroupResponse,
    requests.SyncGroupRequest: SyncGroupResponse,
    requests.HeartbeatRequest: EmptyResponse,
    requests.LeaveGroupRequest: EmptyResponse,
    requests.OffsetCommitRequest: OffsetCommitResponse,
    requests.OffsetFetchRequest: OffsetFetchResponse,
    requests.ListGroupsRequest: ListGroupsResponse,
    requests.DescribeGroupRequest: DescribeGroupResponse,
    requests.DeleteGroupRequest: EmptyResponse,
    requests.ResetOffsetsRequest: EmptyResponse,
    requests.UnreadRequest: UnreadResponse,
    requests.UndoOffsetResetRequest: UndoOffsetResetResponse,
    requests.BrokerShutdownRequest: EmptyResponse,
    requests.DescribeStorageRequest: DescribeStorageResponse,
    requests.BringBackFolderRequest: DescribeStorageResponse,
    requests.DescribeMovesRequest: DescribeMovesResponse,
    requests.DecommissionBrokerRequest: EmptyResponse,
    requests.FillBrokerRequest: FillBrokerResponse,
}

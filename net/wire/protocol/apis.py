"""The APIs of our protocol: which request and which answer each key stands for.

Messages do not know their keys: a room below may define a request or an answer that it decides on, and it is framed here alone.
"""

from barnabas.log.vocabulary.cluster_changes import (
    FORWARDED,
    AddPartitionsRequest,
    AlterConfigRequest,
    AssignReplicasRequest,
    CreateTopicResponse,
    ElectLeaderRequest,
    UnregisterBrokerRequest,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
    UndoOffsetResetResponse,
)
from barnabas.log.vocabulary.share.messages import (
    LoadShareStatesRequest,
    LoadShareStatesResponse,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareViewsRequest,
    ShareViewsResponse,
    WriteShareStatesRequest,
    WriteShareStatesResponse,
)
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    PrepareTransactionRequest,
    ProducerIdentity,
    TransactionalOffsetCommitRequest,
)
from barnabas.net.base.limits import MAX_DATA_ITEMS, MAX_GROUP_ITEMS, MAX_MESSAGE_ITEMS, MAX_WIDE_ITEMS

from . import event_messages, group_responses, requests, responses, transaction_operations, user_messages
from .api_keys import ApiKey
from .broker_figures import DescribeBrokerRequest, DescribeBrokerResponse
from .kafka.apis import KafkaApi
from .kafka.schema import snake_case
from .lag import GroupLagsRequest, GroupLagsResponse
from .requests import Request
from .responses import Response

APIS: dict[int, tuple[type[Request], type[Response]]] = {
    ApiKey.PRODUCE: (requests.ProduceRequest, responses.ProduceResponse),
    ApiKey.FETCH: (requests.FetchRequest, responses.FetchResponse),
    ApiKey.LIST_OFFSETS: (requests.ListOffsetsRequest, responses.ListOffsetsResponse),
    ApiKey.METADATA: (requests.MetadataRequest, responses.MetadataResponse),
    ApiKey.INIT_PRODUCER_ID: (requests.InitProducerIdRequest, responses.InitProducerIdResponse),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (requests.OffsetForLeaderEpochRequest, responses.OffsetForLeaderEpochResponse),
    ApiKey.DELETE_RECORDS: (requests.DeleteRecordsRequest, responses.DeleteRecordsResponse),
    ApiKey.CREATE_TOPIC: (requests.CreateTopicRequest, CreateTopicResponse),
    ApiKey.DELETE_TOPIC: (requests.DeleteTopicRequest, responses.EmptyResponse),
    ApiKey.ADD_PARTITIONS: (AddPartitionsRequest, responses.EmptyResponse),
    ApiKey.ALTER_CONFIG: (AlterConfigRequest, responses.EmptyResponse),
    ApiKey.DESCRIBE_CONFIGS: (requests.DescribeConfigsRequest, responses.DescribeConfigsResponse),
    ApiKey.ELECT_LEADER: (ElectLeaderRequest, responses.EmptyResponse),
    ApiKey.ASSIGN_REPLICAS: (AssignReplicasRequest, responses.EmptyResponse),
    ApiKey.DESCRIBE_CLUSTER: (requests.DescribeClusterRequest, responses.DescribeClusterResponse),
    ApiKey.DESCRIBE_QUORUM: (requests.DescribeQuorumRequest, responses.DescribeQuorumResponse),
    ApiKey.UNREGISTER_BROKER: (UnregisterBrokerRequest, responses.EmptyResponse),
    ApiKey.ALTER_VOTERS: (requests.AlterVotersRequest, responses.AlterVotersResponse),
    ApiKey.QUORUM_ROLE: (requests.QuorumRoleRequest, responses.QuorumRoleResponse),
    ApiKey.CONTROLLER_CALL: (requests.ControllerCallRequest, responses.ControllerCallResponse),
    ApiKey.METADATA_FEED: (requests.MetadataFeedRequest, responses.MetadataFeedResponse),
    ApiKey.FIND_COORDINATOR: (requests.FindCoordinatorRequest, group_responses.FindCoordinatorResponse),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
    ),
    ApiKey.JOIN_GROUP: (JoinGroupRequest, JoinGroupResponse),
    ApiKey.SYNC_GROUP: (SyncGroupRequest, SyncGroupResponse),
    ApiKey.HEARTBEAT: (HeartbeatRequest, responses.EmptyResponse),
    ApiKey.LEAVE_GROUP: (LeaveGroupRequest, responses.EmptyResponse),
    ApiKey.OFFSET_COMMIT: (requests.OffsetCommitRequest, group_responses.OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: (requests.OffsetFetchRequest, group_responses.OffsetFetchResponse),
    ApiKey.LIST_GROUPS: (requests.ListGroupsRequest, group_responses.ListGroupsResponse),
    ApiKey.DESCRIBE_GROUPS: (requests.DescribeGroupRequest, group_responses.DescribeGroupResponse),
    ApiKey.DELETE_GROUP: (requests.DeleteGroupRequest, responses.EmptyResponse),
    ApiKey.RESET_OFFSETS: (requests.ResetOffsetsRequest, responses.EmptyResponse),
    ApiKey.DELETE_OFFSETS: (requests.DeleteOffsetsRequest, responses.EmptyResponse),
    ApiKey.GROUP_LAGS: (GroupLagsRequest, GroupLagsResponse),
    ApiKey.UNREAD: (requests.UnreadRequest, group_responses.UnreadResponse),
    ApiKey.UNDO_OFFSET_RESET: (requests.UndoOffsetResetRequest, UndoOffsetResetResponse),
    ApiKey.BROKER_SHUTDOWN: (requests.BrokerShutdownRequest, responses.EmptyResponse),
    ApiKey.DESCRIBE_BROKER: (DescribeBrokerRequest, DescribeBrokerResponse),
    ApiKey.DESCRIBE_STORAGE: (requests.DescribeStorageRequest, responses.DescribeStorageResponse),
    ApiKey.BRING_BACK_FOLDER: (requests.BringBackFolderRequest, responses.DescribeStorageResponse),
    ApiKey.INIT_TRANSACTIONS: (InitTransactionsRequest, ProducerIdentity),
    ApiKey.ADD_TO_TRANSACTION: (AddToTransactionRequest, responses.AddToTransactionResponse),
    ApiKey.PREPARE_TRANSACTION: (PrepareTransactionRequest, responses.EmptyResponse),
    ApiKey.END_TRANSACTION: (EndTransactionRequest, ProducerIdentity),
    ApiKey.TRANSACTIONAL_OFFSET_COMMIT: (TransactionalOffsetCommitRequest, group_responses.OffsetCommitResponse),
    ApiKey.WRITE_MARKERS: (requests.WriteMarkersRequest, responses.WriteMarkersResponse),
    ApiKey.LIST_TRANSACTIONS: (
        transaction_operations.ListTransactionsRequest,
        transaction_operations.ListTransactionsResponse,
    ),
    ApiKey.DESCRIBE_TRANSACTION: (
        transaction_operations.DescribeTransactionRequest,
        transaction_operations.DescribeTransactionResponse,
    ),
    ApiKey.ABORT_TRANSACTION: (transaction_operations.AbortTransactionRequest, responses.EmptyResponse),
    ApiKey.OPEN_TRANSACTIONS: (
        transaction_operations.OpenTransactionsRequest,
        transaction_operations.OpenTransactionsResponse,
    ),
    ApiKey.ABORT_HANGING: (transaction_operations.AbortHangingRequest, responses.EmptyResponse),
    ApiKey.AUTHENTICATE: (user_messages.AuthenticateRequest, user_messages.AuthenticateResponse),
    ApiKey.DESCRIBE_USERS: (user_messages.DescribeUsersRequest, user_messages.DescribeUsersResponse),
    ApiKey.DESCRIBE_ACLS: (requests.DescribeAclsRequest, responses.DescribeAclsResponse),
    ApiKey.DESCRIBE_QUOTAS: (requests.DescribeQuotasRequest, responses.DescribeQuotasResponse),
    ApiKey.DESCRIBE_MOVES: (requests.DescribeMovesRequest, responses.DescribeMovesResponse),
    ApiKey.EVENTS: (event_messages.EventsRequest, event_messages.EventsResponse),
    ApiKey.SHARE_GROUP_HEARTBEAT: (ShareGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    ApiKey.SHARE_FETCH: (ShareFetchRequest, ShareFetchResponse),
    ApiKey.SHARE_ACKNOWLEDGE: (ShareAcknowledgeRequest, ShareFetchResponse),
    ApiKey.LOAD_SHARE_STATES: (LoadShareStatesRequest, LoadShareStatesResponse),
    ApiKey.WRITE_SHARE_STATES: (WriteShareStatesRequest, WriteShareStatesResponse),
    ApiKey.SHARE_VIEWS: (ShareViewsRequest, ShareViewsResponse),
    **{row.api_key: (row.request, row.response or responses.EmptyResponse) for row in FORWARDED},
}

REQUEST_OF: dict[int, type[Request]] = {int(key): request for key, (request, _) in APIS.items()}
RESPONSE_OF: dict[type, type[Response]] = dict(APIS.values())
KEY_OF: dict[type, int] = {
    **{request: key for key, (request, _) in APIS.items()},
    requests.KafkaProduceRequest: ApiKey.PRODUCE,
    requests.KafkaMetadataRequest: KafkaApi.METADATA,  # it has a handler of its own
}

_NAME_OF: dict[int, str] = {
    **{int(key): key.name for keys in (ApiKey, KafkaApi) for key in keys},
    **{row.api_key: snake_case(row.request.__name__.removesuffix("Request")).upper() for row in FORWARDED},
}

_MAX_ITEMS: dict[int, int] = {
    ApiKey.FETCH: MAX_MESSAGE_ITEMS,  # Followers name all partitions that they fetch from one leader, each time.
    ApiKey.OFFSET_FOR_LEADER_EPOCH: MAX_MESSAGE_ITEMS,
    **dict.fromkeys(
        (
            ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.OFFSET_FETCH, ApiKey.UNREAD, ApiKey.ADD_TO_TRANSACTION,
            ApiKey.TRANSACTIONAL_OFFSET_COMMIT, ApiKey.WRITE_MARKERS,
        ),
        MAX_GROUP_ITEMS,
    ),
    **dict.fromkeys(
        (
            # Of several items for each topic, partition or range of records.
            ApiKey.METADATA, ApiKey.CREATE_TOPIC, ApiKey.ADD_PARTITIONS, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE,
            ApiKey.WRITE_SHARE_STATES,
        ),
        MAX_WIDE_ITEMS,
    ),
}  # fmt: skip


def max_items(api: int) -> int:
    """How many items all lists of one request may have: MAX_DATA_ITEMS, unless those who send it need more."""
    return _MAX_ITEMS.get(api, MAX_DATA_ITEMS)


def key_of(request: type) -> int:
    """The key of a request's class."""
    return KEY_OF[request]


def api_name(api: int) -> str:
    return _NAME_OF.get(api, f"API {api}")

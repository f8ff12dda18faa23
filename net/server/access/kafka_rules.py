"""What each API of Kafka's protocol needs without a request of Barnabas: many items in one request, each with its own error.

The bodies of requests and responses are objects that only this request has, so parts are taken from them in place. Some
responses come encoded from their handlers (`bytes`): where something must be added to one or taken from it, it is decoded again,
which costs only clients without full permissions.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from barnabas.log.vocabulary.access.acls import CLUSTER_NAME, Operation, ResourceKind
from barnabas.log.vocabulary.errors import AuthorizationError, ErrorCode, FetchSessionIdNotFoundError
from barnabas.net.base.limits import check_count
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import OPERATIONS_NOT_ASKED, KafkaApi, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.message_classes import class_of
from barnabas.net.wire.protocol.requests import FINAL_EPOCH, KafkaMetadataRequest

from .access import Access
from .kafka_groups import KAFKA_GROUP_RULES
from .kafka_items import May, items, itself, name_of, needs, of_cluster, of_partitions, opened
from .kafka_transactions import KAFKA_TRANSACTION_RULES
from .own_rules import DENIED, TOPIC, refuse_topic, refused_topics
from .rules import CONFIGURED, Partly, Rule, cluster, free, may_configure, shown

_BY_ID_SINCE: Final = 6  # DeleteTopics
NOT_TOLD: Final = -1  # CreateTopics: how many partitions and replicas a topic has


def _fetch(request: Any, access: Access) -> Partly | None:
    """By topic id; the other versions have the rule of our own fetch, which this one follows."""
    body, names = request.body, access.image.topic_names
    if body.replica_id >= 0:
        access.require_broker(body.replica_id)
        return None
    if access.is_super:
        return None

    def may(topic_id: bytes) -> bool:
        name = names.get(topic_id.hex())
        return name is None or access.may_topic(Operation.READ, name)

    failed = [_unreadable(topic, "partition") for topic in body.topics if not may(topic.topic_id)]
    if failed:
        for topic in failed:
            refuse_topic(access, Operation.READ, names.get(topic.topic_id.hex(), ""))
        if body.session_epoch > 0:
            raise FetchSessionIdNotFoundError("a topic may not be read: name all partitions again")
        body.topics = [topic for topic in body.topics if may(topic.topic_id)]
        body.session_epoch, body.forgotten_topics_data, body.max_wait_ms = FINAL_EPOCH, [], 0

    def finish(response: KafkaResponse[Any] | None) -> KafkaResponse[Any]:
        made = opened(response, "FetchResponse", request.version)
        made.responses = [
            topic if may(topic.topic_id) else _unreadable(topic, "partition_index") for topic in made.responses
        ]
        made.responses = [*made.responses, *failed]
        return KafkaResponse(body=made)

    return Partly(request if body.topics or not failed else None, finish)


def _unreadable(topic: Any, number: str) -> Any:
    answer = bodies.FetchResponse
    return answer.FetchableTopicResponse(
        topic_id=topic.topic_id,
        partitions=[
            answer.PartitionData(
                partition_index=getattr(item, number), error_code=DENIED, high_watermark=-1, aborted_transactions=[]
            )
            for item in topic.partitions
        ],
    )


def _altered_users(request: KafkaRequest[Any], access: Access) -> Partly | None:
    """The answer has no error of its own: Java's Admin looks for that of each user, however often the request names it."""
    body = request.body
    names = dict.fromkeys(item.name for item in (*body.deletions, *body.upsertions))
    if not names or access.may_cluster(Operation.ALTER):
        access.require_cluster(Operation.ALTER)
        return None
    error = access.refusal(Operation.ALTER, ResourceKind.CLUSTER, CLUSTER_NAME)
    answer = bodies.AlterUserScramCredentialsResponse
    results = [
        answer.AlterUserScramCredentialsResult(user=name, error_code=error.code, error_message=error.message)
        for name in names
    ]
    return Partly(None, lambda _: KafkaResponse(body=answer(results=results)))


def _metadata(request: KafkaMetadataRequest, access: Access) -> Partly | None:
    """As our own metadata, for encoded responses: all topics become those that the client may describe, so that the handler
    keeps one encoded response for all clients that see the same."""
    if access.is_super:
        return None
    check_count(request.topic_ids)
    asked, failed = request, []
    if request.topics is None:
        visible = [*access.image.topics, "__consumer_offsets"]
        names = [name for name in visible if access.may_topic(Operation.DESCRIBE, name)]
        if len(names) < len(visible):
            asked = replace(request, topics=tuple(names), allow_auto_topic_creation=False)
    else:
        failed = refused_topics(request, access)
        asked = _without(request, {topic.name for topic in failed}, access)
    lost = set(request.topic_ids) - set(asked.topic_ids)
    if not (failed or lost or request.tells_topic_operations or request.tells_cluster_operations):
        return None if asked is request else Partly(asked, lambda response: response)

    def finish(response: KafkaResponse[Any]) -> KafkaResponse[Any]:
        body = opened(response, "MetadataResponse", request.kafka_version)
        _tell_operations(body, request, access)
        answer = bodies.MetadataResponse.MetadataResponseTopic
        refused = [answer(error_code=DENIED, name=topic.name, partitions=[]) for topic in failed]
        unknown = int(ErrorCode.UNKNOWN_TOPIC_ID)
        refused += [
            answer(error_code=unknown, name=None, topic_id=bytes.fromhex(topic_id), partitions=[]) for topic_id in lost
        ]
        body.topics = [*body.topics, *refused]
        return KafkaResponse(body=body)

    return Partly(asked, finish)


def _without(request: KafkaMetadataRequest, names: set[str], access: Access) -> KafkaMetadataRequest:
    known = access.image.topic_names
    ids = tuple(
        topic_id
        for topic_id in request.topic_ids
        if topic_id not in known or access.may_topic(Operation.DESCRIBE, known[topic_id])
    )
    if not names and len(ids) == len(request.topic_ids):
        return request
    return replace(request, topics=tuple(name for name in request.topics or () if name not in names), topic_ids=ids)


def _tell_operations(body: Any, request: KafkaMetadataRequest, access: Access) -> None:
    if request.tells_cluster_operations:
        body.cluster_authorized_operations = _cluster_operations(access)
    for topic in body.topics if request.tells_topic_operations else ():
        if topic.error_code == ErrorCode.NONE:
            topic.topic_authorized_operations = access.operations(TOPIC, topic.name)


def _cluster_operations(access: Access) -> int:
    return access.operations(ResourceKind.CLUSTER, CLUSTER_NAME) if access.may_cluster(Operation.DESCRIBE) else 0


def _described_cluster(response: KafkaResponse[Any], access: Access) -> KafkaResponse[Any]:
    if response.body.cluster_authorized_operations != OPERATIONS_NOT_ASKED:
        response.body.cluster_authorized_operations = _cluster_operations(access)
    return response


def _may_create(access: Access, item: Any) -> AuthorizationError | None:
    return None if access.may_create(item.name) else access.refusal(Operation.CREATE, TOPIC, item.name)


_CREATED: Final = items(
    "CreateTopics",
    "topics",
    "topics",
    _may_create,
    lambda item, error: bodies.CreateTopicsResponse.CreatableTopicResult(
        name=item.name, error_code=error.code, error_message=error.message, configs=[]
    ),
)


def _create_topics(request: Any, access: Access) -> Partly | None:
    """The configuration of a new topic, with what the cluster gives it, is told only to clients that may describe it."""
    if access.is_super:
        return None
    found = _CREATED(request, access)

    def finish(response: KafkaResponse[Any] | None) -> KafkaResponse[Any]:
        for topic in () if response is None else response.body.topics:
            if topic.error_code == ErrorCode.NONE and not access.may_topic(Operation.DESCRIBE_CONFIGS, topic.name):
                topic.num_partitions, topic.replication_factor, topic.configs = NOT_TOLD, NOT_TOLD, []
                topic.topic_config_error_code = DENIED
        made = response if found is None else found.finish(response)
        assert made is not None, "a request that was passed on has a response"
        return made

    return Partly(request if found is None else found.request, finish)


def _delete_topics(request: Any, access: Access) -> Partly | None:
    if access.is_super:
        return None
    return (_DELETED_BY_NAME if request.version < _BY_ID_SINCE else _DELETED)(request, access)


def _may_delete(access: Access, item: Any) -> AuthorizationError | None:
    """A topic that is named by its id, and may not even be described, is unknown."""
    name = item.name or access.image.topic_names.get(item.topic_id.hex())
    if name is None or access.may_topic(Operation.DELETE, name):
        return None
    return access.refusal(Operation.DELETE, TOPIC, name)


def _refused_deletion(item: Any, error: AuthorizationError) -> Any:
    code, message = int(error.code), error.message
    if item.name is None:
        code, message = int(ErrorCode.UNKNOWN_TOPIC_ID), "there is no topic with this id"
    return bodies.DeleteTopicsResponse.DeletableTopicResult(
        name=item.name, topic_id=item.topic_id, error_code=code, error_message=message
    )


_DELETED: Final = items("DeleteTopics", "topics", "responses", _may_delete, _refused_deletion)
_DELETED_BY_NAME: Final = items(
    "DeleteTopics",
    "topic_names",
    "responses",
    needs(Operation.DELETE, TOPIC, itself),
    lambda item, error: bodies.DeleteTopicsResponse.DeletableTopicResult(
        name=item, error_code=error.code, error_message=error.message
    ),
)


def _configs(operation: Operation) -> May:
    def may(access: Access, item: Any) -> AuthorizationError | None:
        if may_configure(access, operation, item.resource_type, item.resource_name):
            return None
        kind = CONFIGURED.get(item.resource_type, ResourceKind.CLUSTER)
        return access.refusal(operation, kind, item.resource_name)

    return may


def _altered(api: str) -> Rule:
    return items(
        api,
        "resources",
        "responses",
        _configs(Operation.ALTER_CONFIGS),
        lambda item, error: class_of(f"{api}Response").AlterConfigsResourceResponse(
            resource_type=item.resource_type,
            resource_name=item.resource_name,
            error_code=error.code,
            error_message=error.message,
        ),
    )


def _listed_resources(response: KafkaResponse[Any], access: Access) -> KafkaResponse[Any]:
    found = response.body.config_resources
    response.body.config_resources = [
        item
        for item in found
        if may_configure(access, Operation.DESCRIBE_CONFIGS, item.resource_type, item.resource_name)
    ]
    return response


_ALTER: Final = cluster(Operation.ALTER)
_DESCRIBE: Final = cluster(Operation.DESCRIBE)

KAFKA_RULES: Final[dict[int, Rule]] = {
    **KAFKA_GROUP_RULES,
    **KAFKA_TRANSACTION_RULES,
    KafkaApi.API_VERSIONS: free,
    KafkaApi.SASL_HANDSHAKE: free,
    KafkaApi.SASL_AUTHENTICATE: free,
    KafkaApi.FETCH: _fetch,
    KafkaApi.METADATA: _metadata,
    KafkaApi.DESCRIBE_CLUSTER: shown(_described_cluster),  # every AdminClient asks it for addresses first
    KafkaApi.DESCRIBE_QUORUM: _DESCRIBE,
    KafkaApi.DESCRIBE_LOG_DIRS: _DESCRIBE,
    KafkaApi.CREATE_TOPICS: _create_topics,
    KafkaApi.DELETE_TOPICS: _delete_topics,
    KafkaApi.CREATE_PARTITIONS: items(
        "CreatePartitions",
        "topics",
        "results",
        needs(Operation.ALTER, TOPIC, name_of),
        lambda item, error: bodies.CreatePartitionsResponse.CreatePartitionsTopicResult(
            name=item.name, error_code=error.code, error_message=error.message
        ),
    ),
    KafkaApi.DELETE_RECORDS: of_partitions(
        "DeleteRecords",
        Operation.DELETE,
        bodies.DeleteRecordsResponse.DeleteRecordsTopicResult,
        lambda number, error: bodies.DeleteRecordsResponse.DeleteRecordsPartitionResult(
            partition_index=number, low_watermark=-1, error_code=error.code
        ),
    ),
    KafkaApi.ELECT_LEADERS: _ALTER,
    KafkaApi.ALTER_PARTITION_REASSIGNMENTS: _ALTER,
    KafkaApi.LIST_PARTITION_REASSIGNMENTS: _DESCRIBE,
    KafkaApi.DESCRIBE_PRODUCERS: of_partitions(
        "DescribeProducers",
        Operation.READ,
        bodies.DescribeProducersResponse.TopicResponse,
        lambda number, error: bodies.DescribeProducersResponse.PartitionResponse(
            partition_index=number, error_code=error.code, error_message=error.message, active_producers=[]
        ),
        numbers=lambda item: item.partition_indexes,
    ),
    KafkaApi.DESCRIBE_CONFIGS: items(
        "DescribeConfigs",
        "resources",
        "results",
        _configs(Operation.DESCRIBE_CONFIGS),
        lambda item, error: bodies.DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=item.resource_type,
            resource_name=item.resource_name,
            error_code=error.code,
            error_message=error.message,
            configs=[],
        ),
    ),
    KafkaApi.ALTER_CONFIGS: _altered("AlterConfigs"),
    KafkaApi.INCREMENTAL_ALTER_CONFIGS: _altered("IncrementalAlterConfigs"),
    KafkaApi.LIST_CONFIG_RESOURCES: shown(_listed_resources),
    KafkaApi.DESCRIBE_ACLS: _DESCRIBE,
    KafkaApi.CREATE_ACLS: items(
        "CreateAcls",
        "creations",
        "results",
        of_cluster(Operation.ALTER),
        lambda item, error: bodies.CreateAclsResponse.AclCreationResult(
            error_code=error.code, error_message=error.message
        ),
    ),
    KafkaApi.DELETE_ACLS: items(
        "DeleteAcls",
        "filters",
        "filter_results",
        of_cluster(Operation.ALTER),
        lambda item, error: bodies.DeleteAclsResponse.DeleteAclsFilterResult(
            error_code=error.code, error_message=error.message, matching_acls=[]
        ),
    ),
    KafkaApi.DESCRIBE_CLIENT_QUOTAS: cluster(Operation.DESCRIBE_CONFIGS),
    KafkaApi.ALTER_CLIENT_QUOTAS: items(
        "AlterClientQuotas",
        "entries",
        "entries",
        of_cluster(Operation.ALTER_CONFIGS),
        lambda item, error: bodies.AlterClientQuotasResponse.EntryData(
            error_code=error.code,
            error_message=error.message,
            entity=[
                bodies.AlterClientQuotasResponse.EntityData(entity_type=one.entity_type, entity_name=one.entity_name)
                for one in item.entity
            ],
        ),
    ),
    KafkaApi.DESCRIBE_USER_SCRAM_CREDENTIALS: _DESCRIBE,
    KafkaApi.ALTER_USER_SCRAM_CREDENTIALS: _altered_users,
}

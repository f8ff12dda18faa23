"""What each API of our own protocol needs; the first rows serve Kafka's clients, too, because both meet in the same handlers.

Operations are Kafka's. Where Kafka has no such request: what changes the cluster needs ALTER CLUSTER, what describes it DESCRIBE
CLUSTER; a reset of offsets needs what a commit needs.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from barnabas.kraft.metadata.feature_levels import TWO_PHASE_LEVEL, brokers_below
from barnabas.log.format.record_batch import ATTRIBUTES_POSITION, TRANSACTIONAL_MASK, Buffer
from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.cluster_changes import FORWARDED, AlterQuotasRequest
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    FetchSessionIdNotFoundError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    PartitionOutcome,
    UndoOffsetResetResponse,
)
from barnabas.log.vocabulary.topic_partition import no_such_topic_id
from barnabas.log.vocabulary.transaction_messages import AddToTransactionRequest
from barnabas.net.base.limits import check_count
from barnabas.net.wire.protocol import group_responses as g
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.apis import key_of

from .access import Access, permitted, require_read
from .identity import controller_call, write_markers
from .rules import Partly, Rule, both, broker, cluster, free, may_configure, named, shown, while_permitted

DENIED: Final = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_LITERAL_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_QUANTIFIERS: Final = ("?", "*", "{")  # behind a character of a pattern: it may be missing

TOPIC: Final = ResourceKind.TOPIC
GROUP: Final = ResourceKind.GROUP
TRANSACTION: Final = ResourceKind.TRANSACTIONAL_ID


def refuse_topic(access: Access, operation: Operation, topic: str) -> str:
    """The message for one topic of a request that names several."""
    return access.refusal(operation, TOPIC, topic).message


def parts(
    operation: Operation, refused: Callable[[Any, str], Any], answer: Callable[[tuple[Any, ...]], Any], **changes: Any
) -> Rule:
    """Partitions of topics: the handler gets the permitted ones, and the others are answered with an error each. `changes` of
    the request, if there are others."""

    def rule(request: Any, access: Access) -> Partly | None:
        if access.is_super:
            return None
        check_count(request.partitions)
        denied = [item for item in request.partitions if not access.may(operation, TOPIC, item.topic)]
        if not denied:
            return None
        names = dict.fromkeys(item.topic for item in denied)
        told = {name: refuse_topic(access, operation, name) for name in names}
        left = tuple(item for item in request.partitions if item.topic not in told)
        failed = tuple(refused(item, told[item.topic]) for item in denied)
        return Partly(
            replace(request, partitions=left, **changes) if left else None,
            lambda response: (
                answer(failed) if response is None else replace(response, partitions=(*response.partitions, *failed))
            ),
        )

    return rule


def _error_of(make: Callable[..., Any]) -> Callable[[Any, str], Any]:
    return lambda item, message: make(topic=item.topic, partition=item.partition, error=DENIED, message=message)


_write = parts(
    Operation.WRITE, _error_of(r.ProducePartitionResponse), lambda failed: r.ProduceResponse(partitions=failed)
)
_read = parts(
    Operation.READ,
    _error_of(r.FetchPartitionResponse),
    lambda failed: r.FetchResponse(partitions=failed),
    session_epoch=q.FINAL_EPOCH,  # a session never has partitions that its reader may not read
    forgotten=(),
    max_wait_ms=0,
)
_offsets = parts(
    Operation.DESCRIBE,
    _error_of(r.ListOffsetsPartitionResponse),
    lambda failed: r.ListOffsetsResponse(partitions=failed),
)
_epochs = parts(
    Operation.DESCRIBE,
    lambda item, message: r.EpochEndOffset(topic=item.topic, partition=item.partition, error=DENIED),
    lambda failed: r.OffsetForLeaderEpochResponse(partitions=failed),
)
_unread = parts(
    Operation.DESCRIBE, _error_of(g.UnreadPartitionResponse), lambda failed: g.UnreadResponse(partitions=failed)
)
_commit = parts(Operation.READ, _error_of(PartitionOutcome), lambda failed: g.OffsetCommitResponse(partitions=failed))


def produce(request: Any, access: Access) -> Partly | None:
    check_count(request.partitions)
    if request.transactional_id is not None:
        access.require(Operation.WRITE, TRANSACTION, request.transactional_id)
    elif not access.is_super and any(_is_transactional(item.records) for item in request.partitions):
        # As Kafka: without an id, they could be added to the open transaction of any other producer.
        told = access.refusal(Operation.WRITE, TRANSACTION, "").message
        raise TransactionalIdAuthorizationError(f"records of a transaction came without its transactional id; {told}")
    found = _write(request, access)
    if found is not None and request.acks == 0:
        raise TopicAuthorizationError("a topic of this request may not be written")
    return found


def _is_transactional(records: Buffer) -> bool:
    """By the first batch: a partition of a request with other ones behind it is refused (`produce_rules`)."""
    return len(records) > ATTRIBUTES_POSITION and bool(records[ATTRIBUTES_POSITION] & TRANSACTIONAL_MASK)


def fetch(request: q.FetchRequest, access: Access) -> Partly | None:
    """What it answers is looked at: in a session, earlier requests have named most partitions, and a permission may end while a
    fetch waits."""
    if request.replica_id >= 0:
        access.require_broker(request.replica_id)
        return None
    found = _read(request, access)
    if found is not None and request.session_epoch > 0:
        raise FetchSessionIdNotFoundError("a topic may not be read: name all partitions again")
    is_of_session = request.session_epoch != q.FINAL_EPOCH or request.session_id
    if found is not None or access.is_super or not (is_of_session or request.max_wait_ms):
        return found
    return Partly(request, lambda response: _readable(response, access))


def _readable(response: r.FetchResponse, access: Access) -> r.FetchResponse:
    if all(access.may_topic(Operation.READ, item.topic) for item in response.partitions):
        return response
    partitions = tuple(
        item
        if access.may_topic(Operation.READ, item.topic)
        else r.FetchPartitionResponse(
            topic=item.topic,
            partition=item.partition,
            error=DENIED,
            message=refuse_topic(access, Operation.READ, item.topic),
        )
        for item in response.partitions
    )
    return replace(response, partitions=partitions)


def as_replica(rule: Rule) -> Rule:
    """Followers ask as themselves."""

    def checked(request: Any, access: Access) -> Partly | None:
        if request.replica_id >= 0:
            access.require_broker(request.replica_id)
            return None
        return rule(request, access)

    return checked


# --- metadata --------------------------------------------------------------------------------------------------------


def metadata(request: q.MetadataRequest, access: Access) -> Partly | None:
    """All topics: those that the client may describe. Topics by name: the others have an error that does not tell whether they
    exist; by id, they are unknown."""
    if access.is_super:
        return None
    check_count(request.topic_ids)
    if request.topics is None:
        return Partly(request, lambda response: _described(response, access))
    failed = tuple(refused_topics(request, access))
    ids = {topic_id for topic_id in request.topic_ids if not _may_describe_id(topic_id, access)}
    if not failed and not ids and request.max_wait_ms <= 0:
        return None
    names = {topic.name for topic in failed}
    failed += tuple(_unknown(topic_id) for topic_id in ids)
    left = replace(
        request,
        topics=tuple(name for name in request.topics if name not in names),
        topic_ids=tuple(topic_id for topic_id in request.topic_ids if topic_id not in ids),
    )
    return Partly(left, lambda response: _with_refused(response, failed, request, access))


def _unknown(topic_id: str) -> r.TopicMetadata:
    return r.TopicMetadata(
        error=ErrorCode.UNKNOWN_TOPIC_ID, name="", topic_id=topic_id, message=no_such_topic_id(topic_id)
    )


def _with_refused(
    response: r.MetadataResponse, failed: tuple[r.TopicMetadata, ...], request: q.MetadataRequest, access: Access
) -> r.MetadataResponse:
    """`failed`: refused at the beginning. A request that has waited since may describe less now."""

    def told(topic: r.TopicMetadata) -> r.TopicMetadata:
        if access.may_topic(Operation.DESCRIBE, topic.name):
            return topic
        message = refuse_topic(access, Operation.DESCRIBE, topic.name)
        if topic.name not in (request.topics or ()):
            return _unknown(topic.topic_id)
        return r.TopicMetadata(error=DENIED, name=topic.name, message=message)

    topics = tuple(map(told, response.topics)) if request.max_wait_ms > 0 else response.topics
    return replace(response, topics=(*topics, *failed))


def refused_topics(request: q.MetadataRequest, access: Access) -> list[r.TopicMetadata]:
    """The named topics that the client may not describe, or that it may not create while they do not exist."""
    failed = []
    check_count(request.topics or ())
    creates = request.allow_auto_topic_creation and access.creates_topics
    for name in dict.fromkeys(request.topics or ()):
        operation = Operation.DESCRIBE
        if access.may_topic(operation, name):
            if not creates or name in access.image.topics or access.may_create(name):
                continue
            operation = Operation.CREATE
        failed.append(r.TopicMetadata(error=DENIED, name=name, message=refuse_topic(access, operation, name)))
    return failed


def _may_describe_id(topic_id: str, access: Access) -> bool:
    name = access.image.topic_names.get(topic_id)
    return name is None or access.may_topic(Operation.DESCRIBE, name)


def _described(response: r.MetadataResponse, access: Access) -> r.MetadataResponse:
    topics = tuple(topic for topic in response.topics if access.may_topic(Operation.DESCRIBE, topic.name))
    return replace(response, topics=topics)


# --- groups ----------------------------------------------------------------------------------------------------------


def subscribe(access: Access, names: tuple[str, ...] | list[str], pattern: str | None) -> None:
    """A member of a group must be able to describe the topics that it wants. A pattern is matched against all topics, so all
    that it can match count: those that begin with its literal part. Raises TopicAuthorizationError."""
    check_count(names)
    for name in names:
        access.require(Operation.DESCRIBE, TOPIC, name)
    if pattern and not access.may_all(Operation.DESCRIBE, TOPIC, literal_prefix(pattern)):
        raise access.refusal(Operation.DESCRIBE, TOPIC, f"{literal_prefix(pattern)}*")


def literal_prefix(pattern: str) -> str:
    """With what every name begins that a pattern of RE2 matches as a whole: at least this, maybe more."""
    pattern = pattern.removeprefix("^")
    if "|" in pattern:
        return ""
    length = 0
    while length < len(pattern) and pattern[length] in _LITERAL_CHARACTERS:
        length += 1
    if pattern[length : length + 1] in _QUANTIFIERS:
        length -= 1
    return pattern[: max(length, 0)]


def _member(request: ConsumerGroupHeartbeatRequest, access: Access) -> None:
    access.require(Operation.READ, GROUP, request.group_id)
    subscribe(access, request.subscribed_topics or (), request.subscribed_pattern)


def _heartbeat(request: ConsumerGroupHeartbeatRequest, access: Access) -> Partly | None:
    """The offsets of an assignment need what a fetch of them needs: a short heartbeat names no topics, and those of the
    subscription may have been permitted once only."""
    _member(request, access)
    if access.is_super:
        return None

    def finish(response: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        if request.max_wait_ms > 0:
            _member(request, access)
        shown = tuple(item for item in response.offsets if access.may_topic(Operation.DESCRIBE, item.topic))
        return replace(response, offsets=shown)

    return Partly(request, finish)


def _fetch_offsets(request: q.OffsetFetchRequest, access: Access) -> Partly | None:
    access.require(Operation.DESCRIBE, GROUP, request.group_id)
    if request.partitions is not None:
        check_count(request.partitions)
        for item in request.partitions:
            access.require(Operation.DESCRIBE, TOPIC, item.topic)
        return None
    return shown(_offsets_shown)(request, access)


def _offsets_shown(response: g.OffsetFetchResponse, access: Access) -> g.OffsetFetchResponse:
    def may(topic: str) -> bool:
        return access.may_topic(Operation.DESCRIBE, topic)

    return replace(
        response,
        partitions=tuple(item for item in response.partitions if may(item.topic)),
        unstable=tuple(item for item in response.unstable if may(item.topic)),
    )


def _reset_offsets(request: q.ResetOffsetsRequest, access: Access) -> None:
    access.require(Operation.READ, GROUP, request.group_id)
    check_count(request.partitions)
    for item in request.partitions:
        access.require(Operation.READ, TOPIC, item.topic)


def _undo_reset(request: q.UndoOffsetResetRequest, access: Access) -> Partly | None:
    """As a commit: a client reads the topics that it moves. Only the coordinator knows those of the last reset; therefore a
    preview is looked at when it is answered, and an undo moves no topics but those that it names."""
    access.require(Operation.READ, GROUP, request.group_id)
    if access.is_super:
        return None
    if request.validate_only:
        return Partly(request, lambda response: _previewed(response, access))
    if request.topics is None:
        if not access.may_all(Operation.READ, TOPIC, ""):
            raise access.refusal(Operation.READ, TOPIC, "*")
        return None
    check_count(request.topics)
    for name in request.topics:
        access.require(Operation.READ, TOPIC, name)
    return None


def _previewed(response: UndoOffsetResetResponse, access: Access) -> UndoOffsetResetResponse:
    require_read(access, {item.topic for item in response.offsets})
    return response


def _delete_offsets(request: q.DeleteOffsetsRequest, access: Access) -> None:
    """As Kafka's OffsetDelete."""
    access.require(Operation.DELETE, GROUP, request.group_id)
    check_count(request.partitions)
    for item in request.partitions:
        access.require(Operation.READ, TOPIC, item.topic)


def _listed_groups(response: g.ListGroupsResponse, access: Access) -> g.ListGroupsResponse:
    if access.may_cluster(Operation.DESCRIBE):
        return response
    names = set(permitted((item.group_id for item in response.groups), access, Operation.DESCRIBE, GROUP))
    return replace(response, groups=tuple(item for item in response.groups if item.group_id in names))


def visible_group(response: g.DescribeGroupResponse, access: Access) -> g.DescribeGroupResponse:
    """Without the topics that the client may not describe."""

    def visible(items: Any) -> Any:
        return tuple(item for item in items if access.may_topic(Operation.DESCRIBE, item.topic))

    members = tuple(
        replace(
            member,
            subscribed_topics=tuple(permitted(member.subscribed_topics, access, Operation.DESCRIBE, TOPIC)),
            assigned=visible(member.assigned),
            target=visible(member.target),
        )
        for member in response.members
    )
    rebalances = tuple(replace(event, moves=visible(event.moves)) for event in response.rebalances)
    seen = replace(
        response,
        members=members,
        rebalances=rebalances,
        unowned=visible(response.unowned),
        shares=visible(response.shares),
    )
    # A sum over topics tells of each of them.
    if all(access.may_topic(Operation.DESCRIBE, topic) for topic in response.lag_topics):
        return seen
    return replace(seen, lags=(), lag_topics=())


def group(operation: Operation) -> Rule:
    return named(operation, GROUP, lambda request: request.group_id)


def _find_coordinator(request: q.FindCoordinatorRequest, access: Access) -> None:
    """A group and a transactional id of the same name have the same coordinator: one of the two permissions suffices."""
    if not access.may(Operation.DESCRIBE, TRANSACTION, request.group_id):
        access.require(Operation.DESCRIBE, GROUP, request.group_id)


# --- topics, configurations ------------------------------------------------------------------------------------------


def _create_topic(request: q.CreateTopicRequest, access: Access) -> None:
    if not access.may_create(request.name):
        raise access.refusal(Operation.CREATE, TOPIC, request.name)


def _configs(operation: Operation) -> Rule:
    def rule(request: Any, access: Access) -> None:
        if not may_configure(access, operation, request.resource_type, request.resource):
            kind = {2: TOPIC, 32: GROUP}.get(request.resource_type, ResourceKind.CLUSTER)
            raise access.refusal(operation, kind, request.resource)

    return rule


# --- transactions ----------------------------------------------------------------------------------------------------


def init_producer(request: Any, access: Access) -> None:
    """An idempotent producer (KIP-679): who may write some topic."""
    if not (access.may_any(Operation.WRITE, TOPIC) or access.may_cluster(Operation.IDEMPOTENT_WRITE)):
        raise access.refusal(Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER, "kafka-cluster")


def transaction(operation: Operation) -> Rule:
    return named(operation, TRANSACTION, lambda request: request.transactional_id)


def _prepare_transaction(request: Any, access: Access) -> None:
    """No timeout ends a prepared transaction, and readers of committed records wait for its decision: WRITE does not suffice.

    While a broker of an older version is registered, the permission cannot be given yet, and that broker does not ask for it.
    """
    access.require(Operation.WRITE, TRANSACTION, request.transactional_id)
    if not brokers_below(TWO_PHASE_LEVEL, access.image.brokers.values()):
        access.require(Operation.TWO_PHASE_COMMIT, TRANSACTION, request.transactional_id)


def _add_to_transaction(request: AddToTransactionRequest, access: Access) -> Partly | None:
    """With one partition refused, none becomes part of the transaction, as with Kafka. Leaders ask whether partitions are in it:
    they are brokers."""
    access.require(Operation.WRITE, TRANSACTION, request.transactional_id)
    check_count(request.groups)
    check_count(request.topics)
    for name in request.groups:
        access.require(Operation.READ, GROUP, name)
    denied = {item.topic for item in request.topics if not access.may_topic(Operation.WRITE, item.topic)}
    if not denied:
        return None
    told = {name: refuse_topic(access, Operation.WRITE, name) for name in denied}
    outcomes = tuple(
        PartitionOutcome(
            topic=item.topic,
            partition=number,
            error=DENIED if item.topic in denied else int(ErrorCode.OPERATION_NOT_ATTEMPTED),
            message=told.get(item.topic, "another topic of the request may not be written"),
        )
        for item in request.topics
        for number in item.partitions
    )
    return Partly(None, lambda response: r.AddToTransactionResponse(partitions=outcomes))


def _transactional_commit(request: Any, access: Access) -> Partly | None:
    access.require(Operation.WRITE, TRANSACTION, request.transactional_id)
    access.require(Operation.READ, GROUP, request.group_id)
    return _commit(request, access)


def _listed_transactions(response: Any, access: Access) -> Any:
    names = {item.transactional_id for item in response.transactions}
    seen = set(permitted(names, access, Operation.DESCRIBE, TRANSACTION))
    shown_ones = tuple(one for one in response.transactions if one.transactional_id in seen)
    return replace(response, transactions=shown_ones, is_filtered=len(seen) < len(names))


def _described_transaction(response: Any, access: Access) -> Any:
    topics = tuple(item for item in response.topics if access.may_topic(Operation.DESCRIBE, item.topic))
    return replace(response, topics=topics)


_ALTER: Final = cluster(Operation.ALTER)
_DESCRIBE: Final = cluster(Operation.DESCRIBE)


def _topic(operation: Operation, name: Callable[[Any], str]) -> Rule:
    return named(operation, TOPIC, name)


def _as_observer(request: q.MetadataFeedRequest, access: Access) -> None:
    access.require_broker(request.node_id)


OWN_RULES: Final[dict[int, Rule]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: as_replica(_offsets),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: as_replica(_epochs),
    ApiKey.UNREAD: _unread,
    ApiKey.METADATA: metadata,
    ApiKey.DELETE_RECORDS: _topic(Operation.DELETE, lambda request: request.topic),
    ApiKey.CREATE_TOPIC: _create_topic,
    ApiKey.DELETE_TOPIC: _topic(Operation.DELETE, lambda request: request.name),
    ApiKey.ADD_PARTITIONS: _topic(Operation.ALTER, lambda request: request.name),
    ApiKey.ASSIGN_REPLICAS: _ALTER,
    ApiKey.ELECT_LEADER: _ALTER,
    ApiKey.DESCRIBE_CONFIGS: _configs(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIG: _configs(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_CLUSTER: _DESCRIBE,
    ApiKey.DESCRIBE_QUORUM: _DESCRIBE,
    ApiKey.EVENTS: while_permitted(_DESCRIBE),
    ApiKey.DESCRIBE_STORAGE: _DESCRIBE,
    ApiKey.DESCRIBE_BROKER: _DESCRIBE,
    ApiKey.GROUP_LAGS: broker,
    ApiKey.DESCRIBE_MOVES: _DESCRIBE,
    ApiKey.DESCRIBE_ACLS: _DESCRIBE,
    ApiKey.DESCRIBE_USERS: _DESCRIBE,
    ApiKey.AUTHENTICATE: free,
    ApiKey.ALTER_VOTERS: _ALTER,
    ApiKey.UNREGISTER_BROKER: _ALTER,
    ApiKey.BROKER_SHUTDOWN: _ALTER,
    ApiKey.BRING_BACK_FOLDER: _ALTER,
    **dict.fromkeys((row.api_key for row in FORWARDED), _ALTER),
    key_of(AlterQuotasRequest): cluster(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_QUOTAS: cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.QUORUM_ROLE: broker,
    ApiKey.CONTROLLER_CALL: controller_call,
    ApiKey.METADATA_FEED: _as_observer,
    ApiKey.WRITE_MARKERS: write_markers,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _heartbeat,
    ApiKey.JOIN_GROUP: group(Operation.READ),
    ApiKey.SYNC_GROUP: group(Operation.READ),
    ApiKey.HEARTBEAT: group(Operation.READ),
    ApiKey.LEAVE_GROUP: group(Operation.READ),
    ApiKey.OFFSET_COMMIT: both(group(Operation.READ), _commit),
    ApiKey.OFFSET_FETCH: _fetch_offsets,
    ApiKey.LIST_GROUPS: shown(_listed_groups),
    ApiKey.DESCRIBE_GROUPS: both(group(Operation.DESCRIBE), shown(visible_group)),
    ApiKey.DELETE_GROUP: group(Operation.DELETE),
    ApiKey.RESET_OFFSETS: _reset_offsets,
    ApiKey.DELETE_OFFSETS: _delete_offsets,
    ApiKey.UNDO_OFFSET_RESET: _undo_reset,
    ApiKey.INIT_PRODUCER_ID: init_producer,
    ApiKey.INIT_TRANSACTIONS: transaction(Operation.WRITE),
    ApiKey.ADD_TO_TRANSACTION: _add_to_transaction,
    ApiKey.PREPARE_TRANSACTION: _prepare_transaction,
    ApiKey.END_TRANSACTION: transaction(Operation.WRITE),
    ApiKey.TRANSACTIONAL_OFFSET_COMMIT: _transactional_commit,
    ApiKey.LIST_TRANSACTIONS: shown(_listed_transactions),
    ApiKey.DESCRIBE_TRANSACTION: both(transaction(Operation.DESCRIBE), shown(_described_transaction)),
    ApiKey.ABORT_TRANSACTION: transaction(Operation.WRITE),
    ApiKey.OPEN_TRANSACTIONS: _DESCRIBE,
    ApiKey.ABORT_HANGING: _ALTER,
}

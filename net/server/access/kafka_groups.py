"""What Kafka's APIs of groups and their offsets need."""

from __future__ import annotations

from typing import Any, Final

from barnabas.log.vocabulary.access.acls import Operation
from barnabas.log.vocabulary.errors import AuthorizationError, ErrorCode
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import OPERATIONS_NOT_ASKED, KafkaApi, KafkaResponse

from .access import Access
from .kafka_items import items, itself, needs, of_partitions, opened
from .own_rules import DENIED, GROUP, TRANSACTION, refuse_topic, subscribe
from .rules import Partly, Rule, named, shown

_GROUP_DENIED: Final = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
_BY_GROUPS_SINCE: Final = 8  # OffsetFetch
_TRANSACTION_KEY: Final = 1  # of FindCoordinator


def _fetch_offsets(request: Any, access: Access) -> Partly | None:
    if access.is_super:
        return None
    body, version = request.body, request.version
    if version < _BY_GROUPS_SINCE:
        access.require(Operation.DESCRIBE, GROUP, body.group_id)
        failed = {"": _take_topics(body, access)}
    else:
        body.groups, refused = _split_groups(body.groups, access)
        failed = {group.group_id: _take_topics(group, access) for group in body.groups}

    def finish(response: KafkaResponse[Any] | None) -> KafkaResponse[Any]:
        made = opened(response, "OffsetFetchResponse", version)
        if version < _BY_GROUPS_SINCE:
            _put_topics(made, failed[""], bodies.OffsetFetchResponse.OffsetFetchResponseTopic, access)
            return KafkaResponse(body=made)
        for group in made.groups:
            if group.error_code == ErrorCode.NONE:
                told = failed.get(group.group_id, [])
                _put_topics(group, told, bodies.OffsetFetchResponse.OffsetFetchResponseTopics, access)
        made.groups = [*made.groups, *refused]
        return KafkaResponse(body=made)

    return Partly(request if version < _BY_GROUPS_SINCE or body.groups else None, finish)


def _split_groups(groups: Any, access: Access) -> tuple[list[Any], list[Any]]:
    answer = bodies.OffsetFetchResponse.OffsetFetchResponseGroup
    left, refused = [], []
    for group in groups:
        if access.may(Operation.DESCRIBE, GROUP, group.group_id):
            left.append(group)
        else:
            access.refusal(Operation.DESCRIBE, GROUP, group.group_id)
            refused.append(answer(group_id=group.group_id, topics=[], error_code=_GROUP_DENIED))
    return left, refused


def _take_topics(group: Any, access: Access) -> list[Any]:
    """Take from the request the topics that may not be described, and return them."""
    if group.topics is None:
        return []
    denied = [topic for topic in group.topics if not access.may_topic(Operation.DESCRIBE, topic.name)]
    if denied:
        group.topics = [topic for topic in group.topics if access.may_topic(Operation.DESCRIBE, topic.name)]
    for topic in denied:
        refuse_topic(access, Operation.DESCRIBE, topic.name)
    return denied


def _put_topics(group: Any, denied: list[Any], make: Any, access: Access) -> None:
    visible = [topic for topic in group.topics if access.may_topic(Operation.DESCRIBE, topic.name)]
    answer = bodies.OffsetFetchResponse.OffsetFetchResponsePartitions
    if make is bodies.OffsetFetchResponse.OffsetFetchResponseTopic:
        answer = bodies.OffsetFetchResponse.OffsetFetchResponsePartition  # type: ignore[assignment]
    for topic in denied:
        partitions = [
            answer(partition_index=number, committed_offset=-1, metadata="", error_code=DENIED)
            for number in topic.partition_indexes
        ]
        visible.append(make(name=topic.name, partitions=partitions))
    group.topics = visible


def _listed_groups(response: KafkaResponse[Any], access: Access) -> KafkaResponse[Any]:
    if not access.may_cluster(Operation.DESCRIBE):
        groups = response.body.groups
        response.body.groups = [item for item in groups if access.may(Operation.DESCRIBE, GROUP, item.group_id)]
    return response


def _described_groups(response: KafkaResponse[Any], access: Access) -> KafkaResponse[Any]:
    for group in response.body.groups:
        _hide_members(group, access)
        if group.authorized_operations != OPERATIONS_NOT_ASKED:
            group.authorized_operations = access.operations(GROUP, group.group_id)
    return response


def _hide_members(group: Any, access: Access) -> None:
    """Of a group of the new protocol that reads a topic which the client may not describe: as with Kafka, the whole group."""
    topics = {name for member in group.members for name in getattr(member, "subscribed_topic_names", ())}
    topics |= {
        item.topic_name
        for member in group.members
        for assignment in (getattr(member, "assignment", None), getattr(member, "target_assignment", None))
        if assignment is not None
        for item in assignment.topic_partitions
    }
    hidden = next((name for name in sorted(topics) if not access.may_topic(Operation.DESCRIBE, name)), None)
    if hidden is not None:
        refuse_topic(access, Operation.DESCRIBE, hidden)
        group.members, group.error_code = [], DENIED
        group.error_message = "a member reads a topic that may not be described"


def _and_operations(rule: Rule) -> Rule:
    """Groups that are described tell what the client may do with them."""

    def checked(request: Any, access: Access) -> Partly | None:
        if access.is_super:
            return None
        found = rule(request, access)
        left = request if found is None else found.request

        def finish(response: KafkaResponse[Any] | None) -> KafkaResponse[Any]:
            told = response if response is None else _described_groups(response, access)
            if found is None:
                assert told is not None, "a request that was passed on has a response"
                return told
            made: KafkaResponse[Any] = found.finish(told)
            return made

        return Partly(left, finish)

    return checked


def _heartbeat(request: Any, access: Access) -> None:
    access.require(Operation.READ, GROUP, request.body.group_id)
    subscribe(access, list(request.body.subscribed_topic_names or ()), request.body.subscribed_topic_regex)


def _find_coordinator(request: Any, access: Access) -> Partly | None:
    body = request.body
    kind = TRANSACTION if body.key_type == _TRANSACTION_KEY else GROUP
    if not body.coordinator_keys:
        access.require(Operation.DESCRIBE, kind, body.key)
        return None
    return _COORDINATORS[kind](request, access)


def _refused_key(item: Any, error: AuthorizationError) -> Any:
    return bodies.FindCoordinatorResponse.Coordinator(
        key=item, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message
    )


_COORDINATORS: Final = {
    kind: items(
        "FindCoordinator", "coordinator_keys", "coordinators", needs(Operation.DESCRIBE, kind, itself), _refused_key
    )
    for kind in (GROUP, TRANSACTION)
}


def _delete_offsets(request: Any, access: Access) -> Partly | None:
    access.require(Operation.DELETE, GROUP, request.body.group_id)
    return _TOPICS_OF_OFFSETS(request, access)


_TOPICS_OF_OFFSETS: Final = of_partitions(
    "OffsetDelete",
    Operation.READ,
    bodies.OffsetDeleteResponse.OffsetDeleteResponseTopic,
    lambda number, error: bodies.OffsetDeleteResponse.OffsetDeleteResponsePartition(
        partition_index=number, error_code=error.code
    ),
)


def _group_id(request: Any) -> str:
    return str(request.body.group_id)


_MEMBER: Final = named(Operation.READ, GROUP, _group_id)

KAFKA_GROUP_RULES: Final[dict[int, Rule]] = {
    KafkaApi.FIND_COORDINATOR: _find_coordinator,
    KafkaApi.JOIN_GROUP: _MEMBER,
    KafkaApi.SYNC_GROUP: _MEMBER,
    KafkaApi.LEAVE_GROUP: _MEMBER,
    KafkaApi.CONSUMER_GROUP_HEARTBEAT: _heartbeat,
    KafkaApi.OFFSET_FETCH: _fetch_offsets,
    KafkaApi.OFFSET_DELETE: _delete_offsets,
    KafkaApi.LIST_GROUPS: shown(_listed_groups),
    KafkaApi.DESCRIBE_GROUPS: _and_operations(
        items(
            "DescribeGroups",
            "groups",
            "groups",
            needs(Operation.DESCRIBE, GROUP, itself),
            lambda item, error: bodies.DescribeGroupsResponse.DescribedGroup(
                group_id=item, error_code=error.code, authorized_operations=OPERATIONS_NOT_ASKED
            ),
        )
    ),
    KafkaApi.CONSUMER_GROUP_DESCRIBE: _and_operations(
        items(
            "ConsumerGroupDescribe",
            "group_ids",
            "groups",
            needs(Operation.DESCRIBE, GROUP, itself),
            lambda item, error: bodies.ConsumerGroupDescribeResponse.DescribedGroup(
                group_id=item, error_code=error.code, error_message=error.message
            ),
        )
    ),
    KafkaApi.DELETE_GROUPS: items(
        "DeleteGroups",
        "groups_names",
        "results",
        needs(Operation.DELETE, GROUP, itself),
        lambda item, error: bodies.DeleteGroupsResponse.DeletableGroupResult(group_id=item, error_code=error.code),
    ),
}

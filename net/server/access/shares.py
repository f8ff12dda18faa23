"""What the APIs of share groups need: READ of the group and of every topic, as for consumers; topics are named by id."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from barnabas.log.vocabulary.access.acls import Operation
from barnabas.log.vocabulary.share.messages import (
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    SharePartitionAnswer,
)
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaApi, KafkaResponse

from .access import Access
from .kafka_items import items, itself, needs, opened
from .own_rules import DENIED, GROUP, TOPIC, refuse_topic, subscribe
from .rules import Partly, Rule, broker


def _may_read(access: Access, topic_id: str) -> bool:
    """A topic that does not exist is refused by the handler."""
    name = access.image.topic_names.get(topic_id)
    return name is None or access.may_topic(Operation.READ, name)


def _refused(access: Access, topic_ids: set[str]) -> None:
    for topic_id in sorted(topic_ids):
        refuse_topic(access, Operation.READ, access.image.topic_names.get(topic_id, ""))


# --- the protocol of Barnabas -----------------------------------------------------------------------------------------


def _heartbeat(request: ShareGroupHeartbeatRequest, access: Access) -> None:
    access.require(Operation.READ, GROUP, request.group_id)
    subscribe(access, request.subscribed_topics or (), None)


def _read(request: ShareFetchRequest | ShareAcknowledgeRequest, access: Access) -> Partly | None:
    access.require(Operation.READ, GROUP, request.group_id)
    if access.is_super:
        return None
    denied = [item for item in request.partitions if not _may_read(access, item.topic_id)]
    _refused(access, {item.topic_id for item in denied})
    left = tuple(item for item in request.partitions if _may_read(access, item.topic_id))

    def finish(response: ShareFetchResponse) -> ShareFetchResponse:
        told = [item if _may_read(access, item.topic_id) else _denied(item) for item in response.partitions]
        return replace(response, partitions=(*told, *(_denied(item) for item in denied)))

    return Partly(replace(request, partitions=left), finish)


def _denied(item: ShareFetchPartition | SharePartitionAnswer) -> SharePartitionAnswer:
    return SharePartitionAnswer(
        topic_id=item.topic_id, partition=item.partition, error=DENIED, acknowledge_error=DENIED
    )


OWN_SHARE_RULES: Final[dict[int, Rule]] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: _heartbeat,
    ApiKey.SHARE_FETCH: _read,
    ApiKey.SHARE_ACKNOWLEDGE: _read,
    ApiKey.LOAD_SHARE_STATES: broker,
    ApiKey.WRITE_SHARE_STATES: broker,
    ApiKey.SHARE_VIEWS: broker,
}


# --- Kafka's protocol -------------------------------------------------------------------------------------------------


def _kafka_heartbeat(request: Any, access: Access) -> None:
    access.require(Operation.READ, GROUP, request.body.group_id)
    subscribe(access, list(request.body.subscribed_topic_names or ()), None)


def _kafka_fetch(request: Any, access: Access) -> Partly | None:
    answer = bodies.ShareFetchResponse

    def refused(topic_id: bytes, numbers: list[int]) -> Any:
        return answer.ShareFetchableTopicResponse(
            topic_id=topic_id,
            partitions=[
                answer.PartitionData(
                    partition_index=number,
                    error_code=DENIED,
                    acknowledge_error_code=DENIED,
                    current_leader=answer.LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
                )
                for number in numbers
            ],
        )

    return _kafka_topics(request, access, "ShareFetchResponse", refused)


def _kafka_acknowledge(request: Any, access: Access) -> Partly | None:
    answer = bodies.ShareAcknowledgeResponse

    def refused(topic_id: bytes, numbers: list[int]) -> Any:
        return answer.ShareAcknowledgeTopicResponse(
            topic_id=topic_id,
            partitions=[
                answer.PartitionData(
                    partition_index=number,
                    error_code=DENIED,
                    current_leader=answer.LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
                )
                for number in numbers
            ],
        )

    return _kafka_topics(request, access, "ShareAcknowledgeResponse", refused)


def _kafka_topics(request: Any, access: Access, name: str, refused: Any) -> Partly | None:
    access.require(Operation.READ, GROUP, request.body.group_id or "")
    if access.is_super:
        return None
    denied = [topic for topic in request.body.topics if not _may_read(access, topic.topic_id.hex())]
    _refused(access, {topic.topic_id.hex() for topic in denied})
    request.body.topics = [topic for topic in request.body.topics if _may_read(access, topic.topic_id.hex())]

    def finish(response: KafkaResponse[Any]) -> KafkaResponse[Any]:
        made = opened(response, name, request.version)
        told = [
            topic
            if _may_read(access, topic.topic_id.hex())
            else refused(topic.topic_id, [item.partition_index for item in topic.partitions])
            for topic in made.responses
        ]
        denials = [refused(topic.topic_id, [item.partition_index for item in topic.partitions]) for topic in denied]
        made.responses = [*told, *denials]
        return KafkaResponse(body=made)

    return Partly(request, finish)


_OFFSETS_OF_GROUPS: Final = items(
    "DescribeShareGroupOffsets",
    "groups",
    "groups",
    lambda access, group: (
        None
        if access.may(Operation.DESCRIBE, GROUP, group.group_id)
        else access.refusal(Operation.DESCRIBE, GROUP, group.group_id)
    ),
    lambda group, error: bodies.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup(
        group_id=group.group_id, topics=[], error_code=error.code, error_message=error.message
    ),
)


def _visible_offsets(request: Any, access: Access) -> Partly | None:
    """The groups that may be described, with their topics that may be described."""
    if access.is_super:
        return None
    found = _OFFSETS_OF_GROUPS(request, access)

    def finish(response: KafkaResponse[Any] | None) -> KafkaResponse[Any]:
        told = response if found is None else found.finish(response)
        assert told is not None, "a request that was passed on has a response"
        for group in told.body.groups:
            group.topics = [topic for topic in group.topics if access.may_topic(Operation.DESCRIBE, topic.topic_name)]
        return told

    return Partly(request if found is None else found.request, finish)


def _topics_of(api: str, refused: Any, operation: Operation) -> Rule:
    rule = items(api, "topics", "responses", needs(Operation.READ, TOPIC, lambda item: str(item.topic_name)), refused)

    def both_kinds(request: Any, access: Access) -> Partly | None:
        access.require(operation, GROUP, request.body.group_id)
        return rule(request, access)

    return both_kinds


def _refused_alteration(topic: Any, error: Any) -> Any:
    answer = bodies.AlterShareGroupOffsetsResponse
    return answer.AlterShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            answer.AlterShareGroupOffsetsResponsePartition(
                partition_index=item.partition_index, error_code=error.code, error_message=error.message
            )
            for item in topic.partitions
        ],
    )


def _refused_deletion(topic: Any, error: Any) -> Any:
    answer = bodies.DeleteShareGroupOffsetsResponse
    return answer.DeleteShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name, error_code=error.code, error_message=error.message
    )


def _hide_groups(request: Any, access: Access) -> Partly | None:
    """A group with a topic that may not be described is hidden as a whole, as a consumer group is."""
    if access.is_super:
        return None
    found = _DESCRIBED_GROUPS(request, access)

    def finish(response: KafkaResponse[Any] | None) -> KafkaResponse[Any]:
        told = response if found is None else found.finish(response)
        assert told is not None, "a request that was passed on has a response"
        for group in told.body.groups:
            topics = {name for member in group.members for name in member.subscribed_topic_names}
            if any(not access.may_topic(Operation.DESCRIBE, name) for name in topics):
                group.members, group.error_code = [], DENIED
                group.error_message = "a member reads a topic that may not be described"
        return told

    return Partly(request if found is None else found.request, finish)


_DESCRIBED_GROUPS: Final = items(
    "ShareGroupDescribe",
    "group_ids",
    "groups",
    needs(Operation.DESCRIBE, GROUP, itself),
    lambda item, error: bodies.ShareGroupDescribeResponse.DescribedGroup(
        group_id=item, error_code=error.code, error_message=error.message
    ),
)

KAFKA_SHARE_RULES: Final[dict[int, Rule]] = {
    KafkaApi.SHARE_GROUP_HEARTBEAT: _kafka_heartbeat,
    KafkaApi.SHARE_FETCH: _kafka_fetch,
    KafkaApi.SHARE_ACKNOWLEDGE: _kafka_acknowledge,
    KafkaApi.SHARE_GROUP_DESCRIBE: _hide_groups,
    KafkaApi.DESCRIBE_SHARE_GROUP_OFFSETS: _visible_offsets,
    KafkaApi.ALTER_SHARE_GROUP_OFFSETS: _topics_of("AlterShareGroupOffsets", _refused_alteration, Operation.READ),
    KafkaApi.DELETE_SHARE_GROUP_OFFSETS: _topics_of("DeleteShareGroupOffsets", _refused_deletion, Operation.DELETE),
}

SHARE_RULES: Final[dict[int, Rule]] = {**OWN_SHARE_RULES, **KAFKA_SHARE_RULES}

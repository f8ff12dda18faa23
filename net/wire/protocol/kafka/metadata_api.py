"""Metadata, between Kafka's message and our request. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.log.vocabulary.errors import InvalidRequestError

from ..requests import KafkaMetadataRequest, MetadataRequest
from ..responses import MetadataResponse, TopicMetadata
from . import bodies
from .apis import NO_TOPIC_ID, OPERATIONS_NOT_ASKED

_ALL_IS_EMPTY_BELOW = 1  # Version 0 has no null: an empty list asks for all topics.
_CREATES_ALWAYS_BELOW = 4  # Older versions have no field that forbids the creation of topics.
_MAX_FAILED = 100  # topics in the response to a request that fails as a whole
_IDS_SINCE = 12  # Versions 10 and 11 have the field and must not use it (KIP-516).


def metadata_request(body: bodies.MetadataRequest, version: int) -> KafkaMetadataRequest:
    """Raises INVALID_REQUEST."""
    asked = body.topics or ()
    # Clients that ask by id leave the name null (librdkafka) or empty (Java).
    by_id, by_name = [], []
    for topic in asked:
        if topic.topic_id == NO_TOPIC_ID:
            by_name.append(topic.name or "")
        else:
            by_id.append(topic.topic_id.hex())
    topics = None if body.topics is None else tuple(dict.fromkeys(by_name))  # however often each is named
    if version < _ALL_IS_EMPTY_BELOW and not topics:
        topics = None
    if by_id and version < _IDS_SINCE:
        raise InvalidRequestError(f"version {version} of Metadata asks for topics by their names only")
    return KafkaMetadataRequest(
        topics=topics,
        topic_ids=tuple(dict.fromkeys(by_id)),
        kafka_version=version,
        tells_topic_operations=body.include_topic_authorized_operations,
        tells_cluster_operations=body.include_cluster_authorized_operations,
        allow_auto_topic_creation=version < _CREATES_ALWAYS_BELOW or body.allow_auto_topic_creation,
    )


def metadata_response(response: MetadataResponse, version: int) -> bodies.MetadataResponse:
    broker = bodies.MetadataResponse.MetadataResponseBroker
    return bodies.MetadataResponse(
        brokers=[broker(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack) for one in response.brokers],
        cluster_id=response.cluster_id,
        controller_id=listed_controller(response.controller_id, [one.node_id for one in response.brokers]),
        topics=[_topic(topic, version) for topic in response.topics],
        cluster_authorized_operations=OPERATIONS_NOT_ASKED,
    )


def listed_controller(controller_id: int, brokers: Sequence[int]) -> int:
    """The broker to which clients send changes: it must be one of the brokers in the response. Every broker forwards changes, so
    another one replaces a controller that is fenced or not registered yet."""
    return controller_id if controller_id in brokers else min(brokers, default=-1)


def _topic(topic: TopicMetadata, version: int) -> bodies.MetadataResponse.MetadataResponseTopic:
    make_partition = bodies.MetadataResponse.MetadataResponsePartition
    return bodies.MetadataResponse.MetadataResponseTopic(
        error_code=topic.error,
        # A topic with an unknown id has no name; only newer clients send ids.
        name=topic.name if topic.name or version < _IDS_SINCE else None,
        topic_id=bytes.fromhex(topic.topic_id) if topic.topic_id else NO_TOPIC_ID,
        is_internal=topic.internal,
        topic_authorized_operations=OPERATIONS_NOT_ASKED,
        partitions=[
            make_partition(
                error_code=item.error,
                partition_index=number,
                leader_id=item.leader,
                leader_epoch=item.leader_epoch,
                replica_nodes=item.replicas,
                isr_nodes=item.isr,
                offline_replicas=item.offline,
            )
            for number, item in enumerate(topic.partitions)
        ],
    )


def metadata_failed(request: MetadataRequest, error: int, message: str) -> MetadataResponse:
    """Metadata responses have error codes only at topics. The error at the first topics is enough for the client."""
    names, ids = (request.topics or ())[:_MAX_FAILED], request.topic_ids[:_MAX_FAILED]
    by_name = (TopicMetadata(error=error, name=name, message=message) for name in names)
    by_id = (TopicMetadata(error=error, name="", topic_id=item, message=message) for item in ids)
    return MetadataResponse(cluster_id="", controller_id=-1, offset=-1, brokers=(), topics=(*by_name, *by_id))

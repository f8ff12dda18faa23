"""Metadata, between Kafka's message and our request. Pure."""

from typing import Any

from barnabas.log.errors import ErrorCode

from ..requests import MetadataRequest
from ..responses import MetadataResponse, TopicMetadata
from .apis import KafkaApi, KafkaRequest
from .compiler import types_of

NO_TOPIC_ID = bytes(16)
METADATA_BY_ID_SINCE = 12

_ALL_IS_EMPTY_BELOW = 1  # Version 0 has no null: an empty list asks for all topics.
_CREATES_ALWAYS_BELOW = 4  # Older versions cannot say that they want no topic created.
NO_CONTROLLER = -1
_NOT_ASKED = -(2**31)  # Authorised operations that nobody asked for.


def metadata_request(body: Any, version: int) -> MetadataRequest | KafkaRequest:
    """Who names topics by id is answered by a handler that knows what the ids are."""
    if any(topic.topic_id != NO_TOPIC_ID for topic in body.topics or ()):
        return KafkaRequest(api_key=KafkaApi.METADATA, version=version, body=body)
    topics = None if body.topics is None else tuple(topic.name or "" for topic in body.topics)
    if version < _ALL_IS_EMPTY_BELOW and not topics:
        topics = None
    return MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=version < _CREATES_ALWAYS_BELOW or body.allow_auto_topic_creation,
    )


def metadata_response(response: MetadataResponse, version: int) -> Any:
    types = types_of("MetadataResponse")
    broker = types["MetadataResponseBroker"]
    listed = [one.node_id for one in response.brokers]
    controller_id = response.controller_id
    if controller_id not in listed:  # Clients look its address up. Any broker will do: all of them ask the real one.
        controller_id = min(listed, default=NO_CONTROLLER)
    return types["MetadataResponse"](
        brokers=[broker(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack) for one in response.brokers],
        cluster_id=response.cluster_id,
        controller_id=controller_id,
        topics=[_topic(topic, types) for topic in response.topics],
        cluster_authorized_operations=_NOT_ASKED,
    )


def _topic(topic: TopicMetadata, types: dict[str, type]) -> Any:
    make_partition = types["MetadataResponsePartition"]
    return types["MetadataResponseTopic"](
        error_code=topic.error,
        name=None if topic.error == ErrorCode.UNKNOWN_TOPIC_ID else topic.name,
        topic_id=bytes.fromhex(topic.topic_id) if topic.topic_id else NO_TOPIC_ID,
        is_internal=topic.internal,
        topic_authorized_operations=_NOT_ASKED,
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
    topics = tuple(TopicMetadata(error=error, name=name, message=message) for name in request.topics or ())
    return MetadataResponse(cluster_id="", controller_id=-1, offset=-1, brokers=(), topics=topics)

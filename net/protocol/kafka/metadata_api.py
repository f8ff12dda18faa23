"""Metadata, between Kafka's message and our request. Pure."""

from typing import Any

from barnabas.log.errors import InvalidRequestError

from ..requests import MetadataRequest
from ..responses import MetadataResponse, TopicMetadata
from .compiler import types_of

NO_TOPIC_ID = bytes(16)
_ALL_IS_EMPTY_BELOW = 1  # Version 0 has no null: an empty list asks for all topics.
_CREATES_ALWAYS_BELOW = 4  # Older versions cannot say that they want no topic created.
_IDS_SINCE = 12  # Versions 10 and 11 have the field and must not use it (KIP-516).
_NOT_ASKED = -(2**31)  # Authorised operations that nobody asked for.


def metadata_request(body: Any, version: int) -> MetadataRequest:
    """Raises INVALID_REQUEST."""
    asked = body.topics or ()
    # Whoever asks by id leaves the name null (librdkafka) or empty (Java).
    by_id, by_name = [], []
    for topic in asked:
        if topic.topic_id == NO_TOPIC_ID:
            by_name.append(topic.name or "")
        else:
            by_id.append(topic.topic_id.hex())
    topics = None if body.topics is None else tuple(by_name)
    if version < _ALL_IS_EMPTY_BELOW and not topics:
        topics = None
    if by_id and version < _IDS_SINCE:
        raise InvalidRequestError(f"version {version} of Metadata asks for topics by their names only")
    return MetadataRequest(
        topics=topics,
        topic_ids=tuple(by_id),
        allow_auto_topic_creation=version < _CREATES_ALWAYS_BELOW or body.allow_auto_topic_creation,
    )


def metadata_response(response: MetadataResponse, version: int) -> Any:
    types = types_of("MetadataResponse")
    broker = types["MetadataResponseBroker"]
    return types["MetadataResponse"](
        brokers=[broker(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack) for one in response.brokers],
        cluster_id=response.cluster_id,
        controller_id=response.controller_id,
        topics=[_topic(topic, types, version) for topic in response.topics],
        cluster_authorized_operations=_NOT_ASKED,
    )


def _topic(topic: TopicMetadata, types: dict[str, type], version: int) -> Any:
    make_partition = types["MetadataResponsePartition"]
    return types["MetadataResponseTopic"](
        error_code=topic.error,
        # Who asked by an id that is unknown gets no name; only newer clients can ask so.
        name=topic.name if topic.name or version < _IDS_SINCE else None,
        topic_id=bytes.fromhex(topic.topic_id) if topic.topic_id else bytes(16),
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
    by_name = (TopicMetadata(error=error, name=name, message=message) for name in request.topics or ())
    by_id = (TopicMetadata(error=error, name="", topic_id=item, message=message) for item in request.topic_ids)
    return MetadataResponse(cluster_id="", controller_id=-1, offset=-1, brokers=(), topics=(*by_name, *by_id))

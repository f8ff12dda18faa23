"""Metadata, between Kafka's message and our request. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..requests import MetadataRequest
from ..responses import MetadataResponse, TopicMetadata
from .apis import KafkaApi
from .compiler import types_of

_ALL_IS_EMPTY_BELOW = 1  # Version 0 has no null: an empty list asks for all topics.
_CREATES_ALWAYS_BELOW = 4  # Older versions cannot say that they want no topic created.
_NOT_ASKED = -(2**31)  # Authorised operations that nobody asked for.


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaMetadataRequest(MetadataRequest):
    """With all that an encoded answer depends on, so that it can be kept by its request."""

    api_key: ClassVar[KafkaApi] = KafkaApi.METADATA  # type: ignore[assignment]  # it has a handler of its own
    kafka_version: int
    tells_topic_operations: bool = False
    tells_cluster_operations: bool = False


def metadata_request(body: Any, version: int) -> KafkaMetadataRequest:
    topics = None if body.topics is None else tuple(topic.name for topic in body.topics)
    if version < _ALL_IS_EMPTY_BELOW and not topics:
        topics = None
    return KafkaMetadataRequest(
        topics=topics,
        kafka_version=version,
        tells_topic_operations=body.include_topic_authorized_operations,
        tells_cluster_operations=body.include_cluster_authorized_operations,
        allow_auto_topic_creation=version < _CREATES_ALWAYS_BELOW or body.allow_auto_topic_creation,
    )


def metadata_response(response: MetadataResponse, version: int) -> Any:
    types = types_of("MetadataResponse")
    broker = types["MetadataResponseBroker"]
    return types["MetadataResponse"](
        brokers=[broker(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack) for one in response.brokers],
        cluster_id=response.cluster_id,
        controller_id=listed_controller(response.controller_id, [one.node_id for one in response.brokers]),
        topics=[_topic(topic, types) for topic in response.topics],
        cluster_authorized_operations=_NOT_ASKED,
    )


def listed_controller(controller_id: int, brokers: Sequence[int]) -> int:
    """Whom clients ask for changes: it must be one of the brokers that they are told of. Every broker takes them, so another
    one stands in for a controller that is fenced or not here yet."""
    return controller_id if controller_id in brokers else min(brokers, default=-1)


def _topic(topic: TopicMetadata, types: dict[str, type]) -> Any:
    make_partition = types["MetadataResponsePartition"]
    return types["MetadataResponseTopic"](
        error_code=topic.error,
        name=topic.name,
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
    topics = tuple(TopicMetadata(error=error, name=name, message=message) for name in request.topics or ())
    return MetadataResponse(cluster_id="", controller_id=-1, offset=-1, brokers=(), topics=topics)

"""DescribeConfigs (32) and AlterConfig (44).

Versions: 0. Behaviour: every key is listed with value, source, default and documentation, because user interfaces depend on it;
the controller checks and commits changes, which take effect immediately on every broker.
"""

from collections.abc import Mapping

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.records import BROKER_RESOURCE, TOPIC_RESOURCE
from barnabas.kraft.metadata.requests import AlterConfig, ConfigChange
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT
from barnabas.log.vocabulary.cluster_changes import AlterConfigRequest
from barnabas.log.vocabulary.errors import InvalidRequestError, UnknownTopicOrPartitionError
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC, no_such_topic
from barnabas.net.base.settings.config_descriptions import (
    ConfigSource,
    DescribedConfig,
    describe_broker,
    describe_topic,
)
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.requests import DescribeConfigsRequest
from barnabas.net.wire.protocol.responses import ConfigEntry, DescribeConfigsResponse, EmptyResponse

from ..common.changes import decided
from ..common.services import Services

_SOURCES = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.BROKER: "dynamic",
    ConfigSource.CLUSTER: "dynamic",
    ConfigSource.FILE: "broker",
    ConfigSource.DEFAULT: "default",
}


class ConfigHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def describe(self, request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
        if request.resource_type == TOPIC_RESOURCE:
            overrides = topic_overrides(self._services.metadata.image, request.resource)
            return _response(described_topic(self._services, overrides))
        if request.resource_type == BROKER_RESOURCE:
            check_is_me(self._services.node_id, request.resource)
            return _response(described_broker(self._services))
        raise InvalidRequestError(
            f"resource type {request.resource_type} has no configuration; "
            f"use {TOPIC_RESOURCE} (topic) or {BROKER_RESOURCE} (broker)"
        )

    async def alter(self, request: AlterConfigRequest, context: RequestContext) -> EmptyResponse:
        changes = tuple(ConfigChange(key=change.key, value=change.value) for change in request.changes)
        await decided(
            self._services,
            AlterConfig(
                resource_type=request.resource_type,
                resource=request.resource,
                changes=changes,
                validate_only=request.validate_only,
            ),
        )
        return EmptyResponse()


def topic_overrides(image: MetadataImage, topic: str) -> Mapping[str, str]:
    """The overrides of a topic. Raises UnknownTopicOrPartitionError."""
    if topic == CONSUMER_OFFSETS_TOPIC:
        return {"cleanup.policy": "compact"}
    if topic not in image.topics:
        raise UnknownTopicOrPartitionError(no_such_topic(topic))
    return image.topic_configs.get(topic, {})


def check_is_me(node_id: int, resource: str) -> None:
    """Only a broker itself knows its configuration file; "" means the broker that is asked. Raises InvalidRequestError."""
    if resource not in ("", str(node_id)):
        raise InvalidRequestError(f"this is broker {node_id}; ask broker {resource!r} for its own configuration")


def check_is_this_broker(node_id: int, resource: str) -> None:
    """Like `_check_node`, for resources that always belong to one broker. Raises InvalidRequestError."""
    if resource != str(node_id):
        raise InvalidRequestError(f"this is broker {node_id}; ask broker {resource!r} for its own loggers")


def described_topic(services: Services, overrides: Mapping[str, str]) -> tuple[DescribedConfig, ...]:
    configs = services.metadata.image.broker_configs
    own, cluster = configs.get(str(services.node_id), {}), configs.get(CLUSTER_DEFAULT, {})
    return describe_topic(overrides, services.config, cluster, own)


def described_broker(services: Services) -> tuple[DescribedConfig, ...]:
    configs = services.metadata.image.broker_configs
    own, cluster = configs.get(str(services.node_id), {}), configs.get(CLUSTER_DEFAULT, {})
    return describe_broker(services.config, own=own, cluster=cluster)


def _response(found: tuple[DescribedConfig, ...]) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        entries=tuple(
            ConfigEntry(
                key=item.key,
                value=item.value,
                source=_SOURCES[item.source],
                default=item.default,
                documentation=item.documentation,
                read_only=item.read_only,
                sensitive=item.sensitive,
            )
            for item in found
        )
    )

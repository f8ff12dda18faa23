"""DescribeConfigs (32) and AlterConfig (44).

Versions: 0. Behaviour: every key is listed with value, source, default and documentation, because user interfaces live on
it; changes are checked and committed by the controller, and take effect at once on every broker.
"""

from collections.abc import Container

from barnabas.kraft.records import BROKER_RESOURCE, TOPIC_RESOURCE
from barnabas.kraft.requests import AlterConfig, ConfigChange, Done
from barnabas.kraft.topic_settings import CLUSTER_DEFAULT
from barnabas.log.config import DEFINITIONS
from barnabas.log.errors import InvalidRequestError, UnknownTopicOrPartitionError
from barnabas.log.topic_partition import CONSUMER_OFFSETS_TOPIC
from barnabas.net.config import definitions
from barnabas.net.dispatcher import RequestContext
from barnabas.net.protocol.requests import AlterConfigRequest, DescribeConfigsRequest
from barnabas.net.protocol.responses import ConfigEntry, DescribeConfigsResponse, EmptyResponse
from barnabas.net.replication_throttle import THROTTLE_KEYS

from .services import Services

CHANGE_TIMEOUT_MS = 30_000


class ConfigHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def describe(self, request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
        if request.resource_type == TOPIC_RESOURCE:
            return DescribeConfigsResponse(entries=self._topic_entries(request.resource))
        if request.resource_type == BROKER_RESOURCE:
            self._check_is_me(request.resource)
            return DescribeConfigsResponse(entries=self._broker_entries())
        raise InvalidRequestError(
            f"resource type {request.resource_type} has no configuration; "
            f"use {TOPIC_RESOURCE} (topic) or {BROKER_RESOURCE} (broker)"
        )

    def _topic_entries(self, topic: str) -> tuple[ConfigEntry, ...]:
        image = self._services.metadata.image
        if topic not in image.topics and topic != CONSUMER_OFFSETS_TOPIC:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
        overrides = (
            {"cleanup.policy": "compact"} if topic == CONSUMER_OFFSETS_TOPIC else image.topic_configs.get(topic, {})
        )
        broker_values = self._services.config.topic_defaults()
        entries = []
        for definition in DEFINITIONS.values():
            key = definition.name
            source = "topic" if key in overrides else "broker" if key in broker_values else "default"
            value = overrides.get(key, broker_values.get(key, definition.default))
            entries.append(
                ConfigEntry(
                    key=key,
                    value=value,
                    source=source,
                    default=definition.default,
                    documentation=definition.documentation,
                )
            )
        return tuple(entries)

    def _check_is_me(self, resource: str) -> None:
        """What a broker's own file says, only that broker knows; "" means whichever is asked."""
        node_id = self._services.node_id
        if resource not in ("", str(node_id)):
            raise InvalidRequestError(f"this is broker {node_id}; ask broker {resource!r} for its own configuration")

    def _broker_entries(self) -> tuple[ConfigEntry, ...]:
        config = self._services.config
        configs = self._services.metadata.image.broker_configs
        dynamic = {**configs.get(CLUSTER_DEFAULT, {}), **configs.get(str(self._services.node_id), {})}
        return tuple(
            ConfigEntry(
                key=definition.key,
                value=dynamic.get(definition.key, config.text(definition.key)),
                source=_source(definition.key, dynamic, config.sources),
                default=definition.default,
                documentation=definition.documentation,
                read_only=definition.key not in THROTTLE_KEYS,
            )
            for definition in definitions()
        )

    async def alter(self, request: AlterConfigRequest, context: RequestContext) -> EmptyResponse:
        changes = tuple(ConfigChange(key=change.key, value=change.value) for change in request.changes)
        done = await self._services.controller.call(
            AlterConfig(
                resource_type=request.resource_type,
                resource=request.resource,
                changes=changes,
                validate_only=request.validate_only,
            ),
            timeout_ms=CHANGE_TIMEOUT_MS,
        )
        assert isinstance(done, Done)
        await self._services.metadata.wait_for_offset(done.offset, timeout_ms=CHANGE_TIMEOUT_MS)
        return EmptyResponse()


def _source(key: str, dynamic: Container[str], file: Container[str]) -> str:
    return "dynamic" if key in dynamic else "broker" if key in file else "default"

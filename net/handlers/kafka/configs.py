"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74), for Kafka's clients.

Versions: 0-4, 0-2, 0-1, 0-1. Behaviour: many resources in one request, each with its own error; every key is listed with its
source, synonyms, type and documentation. AlterConfigs resets keys that it does not name; the controller adds to and removes
from list values. Each broker changes only its own logger levels, which last until it stops. Differs from Kafka: a broker
accepts configuration changes for another broker; client metrics, share groups and streams groups have no configuration.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from barnabas.kraft.metadata.records import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from barnabas.kraft.metadata.requests import AlterConfig, ConfigChange, ConfigOperation
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, UnsupportedVersionError
from barnabas.log.vocabulary.topic_partition import check_topic_name
from barnabas.net.base.settings.broker_loggers import change_levels, levels
from barnabas.net.base.settings.config_descriptions import (
    ConfigSource,
    DescribedConfig,
    describe_all_brokers,
    describe_group,
)
from barnabas.net.server.dispatcher import RequestContext, error_response
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.compiler import encoder

from ..common.answer_room import ENTRY_BYTES, AnswerRoom
from ..common.changes import decided
from ..common.many import DONE, Outcome, check_named_once, each
from ..common.services import Services
from ..own.configs import (
    check_is_me,
    check_is_this_broker,
    described_broker,
    described_topic,
    topic_overrides,
)

MAX_RESOURCES = 20_000  # of one request, without duplicates: a few bytes of a request cause kilobytes of the answer
FEWER_RESOURCES = "describe fewer resources, or fewer keys, in one request"
DESCRIPTION_BYTES = 16 * 1024  # about, of one resource with the documentation of its keys
RESOURCES_ON_THE_LOOP = 16  # take about two milliseconds
_TYPES = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7, "PASSWORD": 9}
_DELETE = 1  # IncrementalAlterConfigs; equals setting None
_OPERATIONS = {0: ConfigOperation.SET, 2: ConfigOperation.APPEND, 3: ConfigOperation.SUBTRACT}
_IN_THE_QUORUM = (TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE)  # resources that the controller changes
_CLIENT_METRICS = 16
_BROKER_LOGGER = 8
_SOURCE_OF_LEVELS = 6  # DYNAMIC_BROKER_LOGGER_CONFIG
_WITHOUT_CONFIGS = {
    _CLIENT_METRICS: "client metrics are not collected here",
}

if TYPE_CHECKING:
    _Entry: TypeAlias = bodies.DescribeConfigsResponse.DescribeConfigsResourceResult
    _AlterRequest: TypeAlias = (
        KafkaRequest[bodies.AlterConfigsRequest] | KafkaRequest[bodies.IncrementalAlterConfigsRequest]
    )


class KafkaConfigHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    # --- what is set --------------------------------------------------------------------------------------------------

    async def describe(
        self, request: KafkaRequest[bodies.DescribeConfigsRequest], context: RequestContext
    ) -> KafkaResponse[bytes]:
        """User interfaces describe all topics at once: a thread encodes that, because a thousand topics take a tenth of a
        second. It reads only immutable data: an image, and the configuration of this broker."""
        count = len(request.body.resources)
        if count > MAX_RESOURCES:
            raise InvalidRequestError(
                f"{count} resources are too many for one request; describe at most {MAX_RESOURCES}"
            )
        with AnswerRoom(self._services.memory, FEWER_RESOURCES) as room:
            if count <= RESOURCES_ON_THE_LOOP:
                return KafkaResponse(body=_Description(self._services, request, room).encoded())
            room.reserve(count * DESCRIPTION_BYTES)
            writer = _Description(self._services, request, room)
            return KafkaResponse(body=await asyncio.get_running_loop().run_in_executor(None, writer.encoded))

    async def list_resources(
        self, request: KafkaRequest[bodies.ListConfigResourcesRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ListConfigResourcesResponse]:
        """Version 0 lists only client metrics, of which there are none."""
        image = self._services.metadata.image
        brokers = [str(node) for node in image.brokers]
        names = {TOPIC_RESOURCE: list(image.topics), BROKER_RESOURCE: brokers, _BROKER_LOGGER: brokers}
        names[GROUP_RESOURCE] = list(image.group_configs)
        wanted = set(request.body.resource_types or names) if request.version > 0 else set()
        unknown = wanted - {*names, *_WITHOUT_CONFIGS}
        if unknown:
            raise UnsupportedVersionError(f"resource type {min(unknown)} is unknown")
        resources = [
            bodies.ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in names
            if resource_type in wanted
            for name in sorted(names[resource_type])
        ]
        return KafkaResponse(body=bodies.ListConfigResourcesResponse(config_resources=resources))

    # --- changes ------------------------------------------------------------------------------------------------------

    async def alter(
        self, request: KafkaRequest[bodies.AlterConfigsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.AlterConfigsResponse]:
        answer = bodies.AlterConfigsResponse
        asked = [_replaced(resource) for resource in request.body.resources]
        responses = [
            answer.AlterConfigsResourceResponse(
                resource_type=item.resource_type,
                resource_name=item.name,
                error_code=outcome.error,
                error_message=outcome.message,
            )
            for item, outcome in zip(asked, await self._altered(asked, request), strict=True)
        ]
        return KafkaResponse(body=answer(responses=responses))

    async def alter_incrementally(
        self, request: KafkaRequest[bodies.IncrementalAlterConfigsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.IncrementalAlterConfigsResponse]:
        answer = bodies.IncrementalAlterConfigsResponse
        asked = [_incremental(resource) for resource in request.body.resources]
        responses = [
            answer.AlterConfigsResourceResponse(
                resource_type=item.resource_type,
                resource_name=item.name,
                error_code=outcome.error,
                error_message=outcome.message,
            )
            for item, outcome in zip(asked, await self._altered(asked, request), strict=True)
        ]
        return KafkaResponse(body=answer(responses=responses))

    async def _altered(self, asked: list[_Asked], request: _AlterRequest) -> list[Outcome]:
        named = Counter((item.resource_type, item.name) for item in asked)
        validate_only = request.body.validate_only

        async def change(item: _Asked) -> Outcome:
            try:
                check_named_once(repr(item.name), named[item.resource_type, item.name])
                if item.resource_type == _BROKER_LOGGER:
                    self._change_levels(item, validate_only=validate_only)
                else:
                    await decided(self._services, _wanted(item, validate_only=validate_only))
            except Exception as error:  # noqa: BLE001 - the error boundary of one item; the others have their own answers
                failed = error_response(error, request)
                return Outcome(error=failed.error, message=failed.message)
            return DONE

        return await each(change(item) for item in asked)

    def _change_levels(self, asked: _Asked, *, validate_only: bool) -> None:
        """Raises InvalidConfigError, InvalidRequestError."""
        check_is_this_broker(self._services.node_id, asked.name)
        if asked.replaces_all:
            raise InvalidRequestError("logger levels cannot be replaced as a whole: use IncrementalAlterConfigs")
        changes = asked.changes()
        for change in changes:
            if change.operation is not ConfigOperation.SET:
                raise InvalidRequestError(f"{change.key}: a logger level is not a list: set or delete it")
        change_levels({change.key: change.value for change in changes}, validate_only=validate_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The changes that either request makes to one resource. `changes` raises InvalidRequestError."""

    resource_type: int
    name: str
    replaces_all: bool
    changes: Callable[[], tuple[ConfigChange, ...]]


class _Description:
    """Builds one answer to DescribeConfigs. Topics, or groups, with equal overrides share their entries."""

    def __init__(
        self, services: Services, request: KafkaRequest[bodies.DescribeConfigsRequest], room: AnswerRoom
    ) -> None:
        self._services = services
        self._room = room
        self._image = services.metadata.image
        self._body = request.body
        self._version = request.version
        self._named = Counter((item.resource_type, item.resource_name) for item in request.body.resources)
        self._entries_of: dict[tuple[int, tuple[tuple[str, str], ...]], list[_Entry]] = {}
        self._sizes: dict[int, int] = {}  # of these entries, by their identity

    def encoded(self) -> bytes:
        answer = bodies.DescribeConfigsResponse(results=list(map(self._result, self._body.resources)))
        chunks: list[bytes] = []
        encoder("DescribeConfigsResponse", self._version)(answer, chunks)
        return b"".join(chunks)

    def _result(
        self, resource: bodies.DescribeConfigsRequest.DescribeConfigsResource
    ) -> bodies.DescribeConfigsResponse.DescribeConfigsResult:
        result = bodies.DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        try:
            entries = self._entries(resource.resource_type, resource.resource_name)
            wanted = frozenset(resource.configuration_keys or ())  # null or empty: all keys
            told = [item for item in entries if item.name in wanted] if wanted else entries
            self._room.take(self._size_of(told))
        except BarnabasError as error:
            result.error_code, result.error_message = int(error.code), error.message
            return result
        result.configs = told
        return result

    def _size_of(self, entries: list[_Entry]) -> int:
        found = self._sizes.get(id(entries))
        return sum(map(_size_of_entry, entries)) if found is None else found

    def _entries(self, resource_type: int, name: str) -> list[_Entry]:
        check_named_once(repr(name), self._named[resource_type, name])
        if resource_type == TOPIC_RESOURCE:
            check_topic_name(name)
            overrides = topic_overrides(self._image, name)
            return self._shared(resource_type, overrides, lambda: described_topic(self._services, overrides))
        if resource_type == _BROKER_LOGGER:
            check_is_this_broker(self._services.node_id, name)
            return [
                bodies.DescribeConfigsResponse.DescribeConfigsResourceResult(
                    name=item.name, value=item.level, config_source=_SOURCE_OF_LEVELS, synonyms=[], documentation=None
                )
                for item in levels()
            ]
        if resource_type == GROUP_RESOURCE:
            if not name:
                raise InvalidRequestError("the group id is empty; give a group id")
            of_group = self._image.group_configs.get(name, {})
            return self._shared(resource_type, of_group, lambda: describe_group(of_group, self._services.config))
        if resource_type != BROKER_RESOURCE:
            raise InvalidRequestError(_no_configs(resource_type))
        if name == CLUSTER_DEFAULT:
            return self._written(describe_all_brokers(self._image.broker_configs.get(CLUSTER_DEFAULT, {})))
        check_is_me(self._services.node_id, name)
        return self._written(described_broker(self._services))

    def _shared(
        self, resource_type: int, overrides: Mapping[str, str], describe: Callable[[], tuple[DescribedConfig, ...]]
    ) -> list[_Entry]:
        key = (resource_type, tuple(overrides.items()))
        found = self._entries_of.get(key)
        if found is None:
            found = self._entries_of[key] = self._written(describe())
            self._sizes[id(found)] = self._size_of(found)
        return found

    def _written(self, found: tuple[DescribedConfig, ...]) -> list[_Entry]:
        return [_entry(item, self._body) for item in found]


def _no_configs(resource_type: int) -> str:
    reason = _WITHOUT_CONFIGS.get(resource_type, f"resource type {resource_type} is unknown")
    return (
        f"{reason}; topics ({TOPIC_RESOURCE}), brokers ({BROKER_RESOURCE}), their loggers ({_BROKER_LOGGER}) and groups "
        f"({GROUP_RESOURCE}) have configurations"
    )


def _entry(item: DescribedConfig, body: bodies.DescribeConfigsRequest) -> _Entry:
    synonyms = []
    if body.include_synonyms:
        make = bodies.DescribeConfigsResponse.DescribeConfigsSynonym
        synonyms = [make(name=other.key, value=other.value, source=int(other.source)) for other in item.synonyms]
    return bodies.DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=item.key,
        value=item.value,
        read_only=item.read_only,
        is_sensitive=item.sensitive,
        config_source=int(item.source),
        is_default=item.source is ConfigSource.DEFAULT,
        synonyms=synonyms,
        config_type=_TYPES[item.type],
        documentation=item.documentation if body.include_documentation else None,
    )


def _size_of_entry(item: _Entry) -> int:
    texts = [item.name, item.value, item.documentation]
    for other in item.synonyms:
        texts += (other.name, other.value)
    return ENTRY_BYTES + sum(len(text) for text in texts if text is not None)


def _wanted(asked: _Asked, *, validate_only: bool) -> AlterConfig:
    """Raises InvalidRequestError."""
    if asked.resource_type not in _IN_THE_QUORUM:
        raise InvalidRequestError(_no_configs(asked.resource_type))
    return AlterConfig(
        resource_type=asked.resource_type,
        resource=asked.name,
        changes=asked.changes(),
        validate_only=validate_only,
        replaces_all=asked.replaces_all,
    )


def _replaced(resource: bodies.AlterConfigsRequest.AlterConfigsResource) -> _Asked:
    return _Asked(
        resource_type=resource.resource_type,
        name=resource.resource_name,
        replaces_all=True,
        changes=lambda: tuple(_change(item.name, item.value, int(ConfigOperation.SET)) for item in resource.configs),
    )


def _incremental(resource: bodies.IncrementalAlterConfigsRequest.AlterConfigsResource) -> _Asked:
    return _Asked(
        resource_type=resource.resource_type,
        name=resource.resource_name,
        replaces_all=False,
        changes=lambda: tuple(_change(item.name, item.value, item.config_operation) for item in resource.configs),
    )


def _change(key: str, value: str | None, operation: int) -> ConfigChange:
    if operation == _DELETE:
        return ConfigChange(key=key, value=None)
    if operation not in _OPERATIONS:
        raise InvalidRequestError(f"{key}: unknown configuration operation {operation}")
    if value is None:
        raise InvalidRequestError(f"{key}: the value is null; delete the key to reset it to its default")
    return ConfigChange(key=key, value=value, operation=_OPERATIONS[operation])

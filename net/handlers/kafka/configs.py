"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74), as Kafka's clients ask.

Versions: 0-4, 0-2, 0-1, 0-1. Behaviour: many resources in one request, each with its own error; every key is listed with its
source, synonyms, type and documentation. AlterConfigs resets what it does not name; lists are added to and taken from by the
controller. The levels of loggers are the business of the broker that is named, and last until it stops. Differs from Kafka: a
broker takes changes of configurations for another one too; client metrics have none, nor have share and streams groups.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from barnabas.kraft.metadata.records import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from barnabas.kraft.metadata.requests import AlterConfig, ConfigChange, ConfigOperation
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, UnsupportedVersionError
from barnabas.log.vocabulary.topic_partition import check_topic_name
from barnabas.net.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.protocol.kafka.compiler import encoder, types_of
from barnabas.net.server.dispatcher import RequestContext, error_response
from barnabas.net.settings.broker_loggers import change_levels, levels
from barnabas.net.settings.config_descriptions import (
    ConfigSource,
    DescribedConfig,
    describe_all_brokers,
    describe_group,
)

from ..common.many import check_named_once, each
from ..common.services import Services
from ..own.configs import (
    change_config,
    check_is_me,
    check_is_this_broker,
    described_broker,
    described_topic,
    topic_overrides,
)

MAX_RESOURCES = 20_000  # of one description, each of them once: a few bytes of a request are kilobytes of its answer
RESOURCES_ON_THE_LOOP = 16  # take two milliseconds or so
_TYPES = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7}
_DELETE = 1  # IncrementalAlterConfigs; for us it is to set None
_OPERATIONS = {0: ConfigOperation.SET, 2: ConfigOperation.APPEND, 3: ConfigOperation.SUBTRACT}
_IN_THE_QUORUM = (TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE)  # what the controller changes
_CLIENT_METRICS = 16
_BROKER_LOGGER = 8
_SOURCE_OF_LEVELS = 6  # DYNAMIC_BROKER_LOGGER_CONFIG
_WITHOUT_CONFIGS = {
    _CLIENT_METRICS: "client metrics are not collected here",
}


class KafkaConfigHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    # --- what is set --------------------------------------------------------------------------------------------------

    async def describe(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        """User interfaces ask for all topics at once: that is written in a thread, as it takes a tenth of a second for a
        thousand of them. It only reads what does not change: an image, and the configuration of this broker."""
        count = len(request.body.resources)
        if count > MAX_RESOURCES:
            raise InvalidRequestError(
                f"{count} resources are too many for one request; ask for {MAX_RESOURCES} at most"
            )
        writer = _Description(self._services, request)
        if count <= RESOURCES_ON_THE_LOOP:
            return KafkaResponse(body=writer.encoded())
        return KafkaResponse(body=await asyncio.get_running_loop().run_in_executor(None, writer.encoded))

    async def list_resources(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        """Version 0 asks for client metrics only, of which there are none."""
        types = types_of("ListConfigResourcesResponse")
        image = self._services.metadata.image
        brokers = [str(node) for node in image.brokers]
        names = {TOPIC_RESOURCE: list(image.topics), BROKER_RESOURCE: brokers, _BROKER_LOGGER: brokers}
        names[GROUP_RESOURCE] = list(image.group_configs)
        wanted = set(request.body.resource_types or names) if request.version > 0 else set()
        unknown = wanted - {*names, *_WITHOUT_CONFIGS}
        if unknown:
            raise UnsupportedVersionError(f"resources of type {min(unknown)} are not known")
        resources = [
            types["ConfigResource"](resource_name=name, resource_type=resource_type)
            for resource_type in names
            if resource_type in wanted
            for name in sorted(names[resource_type])
        ]
        return KafkaResponse(body=types["ListConfigResourcesResponse"](config_resources=resources))

    # --- changes ------------------------------------------------------------------------------------------------------

    async def alter(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        return await self._altered(request, "AlterConfigsResponse", is_incremental=False)

    async def alter_incrementally(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        return await self._altered(request, "IncrementalAlterConfigsResponse", is_incremental=True)

    async def _altered(self, request: KafkaRequest, message: str, *, is_incremental: bool) -> KafkaResponse:
        types = types_of(message)
        named = _times_named(request)

        async def change(resource: Any) -> Any:
            result = types["AlterConfigsResourceResponse"](
                resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
            )
            try:
                check_named_once(repr(resource.resource_name), named[resource.resource_type, resource.resource_name])
                if resource.resource_type == _BROKER_LOGGER:
                    self._change_levels(resource, is_incremental, request.body.validate_only)
                    return result
                wanted = _wanted(resource, is_incremental=is_incremental, validate_only=request.body.validate_only)
                await change_config(self._services, wanted)
            except Exception as error:  # noqa: BLE001 - the error boundary of one item; the others have their own answers
                failed = error_response(error, request)
                result.error_code, result.error_message = failed.error, failed.message
            return result

        results = await each(change(resource) for resource in request.body.resources)
        return KafkaResponse(body=types[message](responses=results))

    def _change_levels(self, resource: Any, is_incremental: bool, validate_only: bool) -> None:
        """Raises InvalidConfigError, InvalidRequestError."""
        check_is_this_broker(self._services.node_id, resource.resource_name)
        if not is_incremental:
            raise InvalidRequestError("levels of loggers are changed one by one: use IncrementalAlterConfigs")
        changes = [_change(config, is_incremental) for config in resource.configs]
        for change in changes:
            if change.operation is not ConfigOperation.SET:
                raise InvalidRequestError(f"{change.key}: a level is set or deleted, it is no list")
        change_levels({change.key: change.value for change in changes}, validate_only=validate_only)


class _Description:
    """One answer to DescribeConfigs in the making. Topics that set the same share what is said of it."""

    def __init__(self, services: Services, request: KafkaRequest) -> None:
        self._services = services
        self._image = services.metadata.image
        self._body = request.body
        self._version = request.version
        self._types = types_of("DescribeConfigsResponse")
        self._named = _times_named(request)
        self._of_topics: dict[tuple[tuple[str, str], ...], list[Any]] = {}

    def encoded(self) -> bytes:
        answer = self._types["DescribeConfigsResponse"](results=list(map(self._result, self._body.resources)))
        chunks: list[Any] = []
        encoder("DescribeConfigsResponse", self._version)(answer, chunks)
        return b"".join(chunks)

    def _result(self, resource: Any) -> Any:
        result = self._types["DescribeConfigsResult"](
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        try:
            entries = self._entries(resource.resource_type, resource.resource_name)
        except BarnabasError as error:
            result.error_code, result.error_message = int(error.code), error.message
            return result
        wanted = frozenset(resource.configuration_keys or ())  # none named, null or empty: all
        result.configs = [item for item in entries if item.name in wanted] if wanted else entries
        return result

    def _entries(self, resource_type: int, name: str) -> list[Any]:
        check_named_once(repr(name), self._named[resource_type, name])
        if resource_type == TOPIC_RESOURCE:
            check_topic_name(name)
            return self._topic_entries(topic_overrides(self._image, name))
        if resource_type == _BROKER_LOGGER:
            check_is_this_broker(self._services.node_id, name)
            return [
                self._types["DescribeConfigsResourceResult"](
                    name=item.name, value=item.level, config_source=_SOURCE_OF_LEVELS, synonyms=[], documentation=None
                )
                for item in levels()
            ]
        if resource_type == GROUP_RESOURCE:
            if not name:
                raise InvalidRequestError("the group id is empty; name a group")
            overrides = self._image.group_configs.get(name, {})
            return self._written(describe_group(overrides, self._services.config))
        if resource_type != BROKER_RESOURCE:
            raise InvalidRequestError(_no_configs(resource_type))
        if name == CLUSTER_DEFAULT:
            return self._written(describe_all_brokers(self._image.broker_configs.get(CLUSTER_DEFAULT, {})))
        check_is_me(self._services.node_id, name)
        return self._written(described_broker(self._services))

    def _topic_entries(self, overrides: Mapping[str, str]) -> list[Any]:
        key = tuple(overrides.items())
        found = self._of_topics.get(key)
        if found is None:
            found = self._of_topics[key] = self._written(described_topic(self._services, overrides))
        return found

    def _written(self, found: tuple[DescribedConfig, ...]) -> list[Any]:
        return [_entry(item, self._body, self._types) for item in found]


def _times_named(request: KafkaRequest) -> Counter[tuple[int, str]]:
    return Counter((item.resource_type, item.resource_name) for item in request.body.resources)


def _no_configs(resource_type: int) -> str:
    reason = _WITHOUT_CONFIGS.get(resource_type, f"resources of type {resource_type} are not known")
    return (
        f"{reason}; topics ({TOPIC_RESOURCE}), brokers ({BROKER_RESOURCE}), their loggers ({_BROKER_LOGGER}) and groups "
        f"({GROUP_RESOURCE}) have configurations"
    )


def _entry(item: DescribedConfig, body: Any, types: dict[str, type]) -> Any:
    synonyms = []
    if body.include_synonyms:
        make = types["DescribeConfigsSynonym"]
        synonyms = [make(name=other.key, value=other.value, source=int(other.source)) for other in item.synonyms]
    return types["DescribeConfigsResourceResult"](
        name=item.key,
        value=item.value,
        read_only=item.read_only,
        config_source=int(item.source),
        is_default=item.source is ConfigSource.DEFAULT,
        synonyms=synonyms,
        config_type=_TYPES[item.type],
        documentation=item.documentation if body.include_documentation else None,
    )


def _wanted(resource: Any, *, is_incremental: bool, validate_only: bool) -> AlterConfig:
    """Raises InvalidRequestError."""
    if resource.resource_type not in _IN_THE_QUORUM:
        raise InvalidRequestError(_no_configs(resource.resource_type))
    return AlterConfig(
        resource_type=resource.resource_type,
        resource=resource.resource_name,
        changes=tuple(_change(config, is_incremental) for config in resource.configs),
        validate_only=validate_only,
        replaces_all=not is_incremental,
    )


def _change(config: Any, is_incremental: bool) -> ConfigChange:
    operation = config.config_operation if is_incremental else int(ConfigOperation.SET)
    if operation == _DELETE:
        return ConfigChange(key=config.name, value=None)
    if operation not in _OPERATIONS:
        raise InvalidRequestError(f"{config.name}: there is no operation {operation} on configurations")
    if config.value is None:
        raise InvalidRequestError(f"{config.name}: a null value is not a value; delete the key to have its default")
    return ConfigChange(key=config.name, value=config.value, operation=_OPERATIONS[operation])

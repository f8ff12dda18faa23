"""Configurations of topics and brokers, as far as the cluster agrees on them. What a key means is not known here."""

from collections.abc import Callable, Iterable

from barnabas.log.errors import InvalidConfigError, InvalidRequestError, UnknownTopicOrPartitionError

from .controller_result import ControllerResult
from .controller_settings import MAX_CONFIG_CHANGES_PER_REQUEST, MAX_CONFIG_VALUE_LENGTH
from .delta import MetadataDelta
from .records import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigRecord
from .requests import AlterConfig, ConfigChange
from .topic_settings import CLUSTER_DEFAULT

CheckConfig = Callable[[str, str], None]
"""Raises InvalidConfigError when the key is not known or the value not allowed."""


def accept_any_config(key: str, value: str) -> None:
    """For tests, and for whoever has validated already."""


class ConfigurationControl:
    """Decides on changes of configuration; the definitions of the keys are injected."""

    def __init__(self, check_topic_config: CheckConfig, check_broker_config: CheckConfig) -> None:
        self._check_topic_config = check_topic_config
        self._check_broker_config = check_broker_config

    def alter(self, view: MetadataDelta, request: AlterConfig) -> ControllerResult:
        _check_resource(view, request)
        if request.resource_type == TOPIC_RESOURCE:
            self.check_topic_changes(request.changes)
            now = view.topic_config(request.resource)
        else:
            _check_changes(request.changes, self._check_broker_config)
            now = view.broker_config(request.resource)
        if request.validate_only:
            return ControllerResult()
        return ControllerResult(
            records=tuple(
                ConfigRecord(
                    resource_type=request.resource_type,
                    resource=request.resource,
                    key=change.key,
                    value=change.value,
                )
                for change in request.changes
                if now.get(change.key) != change.value
            )
        )

    def check_topic_changes(self, changes: Iterable[ConfigChange]) -> None:
        """Raises InvalidConfigError."""
        _check_changes(tuple(changes), self._check_topic_config)


def _check_changes(changes: tuple[ConfigChange, ...], check: CheckConfig) -> None:
    if len(changes) > MAX_CONFIG_CHANGES_PER_REQUEST:
        raise InvalidConfigError(f"at most {MAX_CONFIG_CHANGES_PER_REQUEST} configurations can be changed at a time")
    if len({change.key for change in changes}) != len(changes):
        raise InvalidConfigError("a configuration is named twice in one request")
    for change in changes:
        if change.value is None:
            continue  # removing is always allowed, also of a key that this version does not know
        if len(change.value) > MAX_CONFIG_VALUE_LENGTH:
            raise InvalidConfigError(f"the value of {change.key} is longer than {MAX_CONFIG_VALUE_LENGTH} characters")
        check(change.key, change.value)


def _check_resource(view: MetadataDelta, request: AlterConfig) -> None:
    if request.resource_type == TOPIC_RESOURCE:
        if view.topic(request.resource) is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {request.resource!r}")
        return
    if request.resource_type != BROKER_RESOURCE:
        raise InvalidRequestError(f"resources of type {request.resource_type} have no configuration here")
    is_id = request.resource.isascii() and request.resource.isdecimal()
    if request.resource != CLUSTER_DEFAULT and not (is_id and view.broker(int(request.resource)) is not None):
        raise InvalidRequestError(f"broker {request.resource!r} is not registered")

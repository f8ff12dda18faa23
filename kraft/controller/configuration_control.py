"""Configurations of topics and brokers, as far as they are part of the metadata. The meaning of keys is not known here."""

from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from barnabas.log.settings.table import CLUSTER_SETTINGS
from barnabas.log.vocabulary.errors import (
    InvalidConfigError,
    InvalidRequestError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from barnabas.log.vocabulary.topic_partition import no_such_topic

from ..metadata.controller_result import ControllerResult
from ..metadata.controller_settings import (
    MAX_CONFIG_CHANGES_PER_REQUEST,
    MAX_CONFIG_VALUE_LENGTH,
    MAX_CONFIGURED_GROUP_ID_LENGTH,
    MAX_GROUPS_WITH_CONFIGS,
)
from ..metadata.delta import MetadataDelta
from ..metadata.records import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE, ConfigRecord
from ..metadata.requests import AlterConfig, ConfigChange, ConfigOperation
from ..metadata.topic_settings import CLUSTER_DEFAULT

CheckConfig = Callable[[str, str], None]
"""Raises InvalidConfigError when the key is not known or the value not allowed."""


def _accept_any(key: str, value: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRules:
    """The rules about keys, injected.

    `check_together` gets all values that a topic sets, and raises InvalidConfigError for invalid combinations. `default_list` is
    the default of a topic's list key, None if the key is not a list; `broker_key` is the broker key that sets the default of a
    topic key.
    """

    check_topic: CheckConfig = _accept_any
    check_broker: CheckConfig = _accept_any  # of one broker
    check_cluster: CheckConfig = _accept_any  # of all brokers
    check_group: CheckConfig = _accept_any
    check_together: Callable[[Mapping[str, str]], object] = lambda values: None
    default_list: Callable[[str], str | None] = lambda key: None
    broker_key: Callable[[str], str] = lambda key: key


ANY_CONFIG = ConfigRules()  # for tests, and for callers that have validated already


class ConfigurationControl:
    """Decides on changes of configuration."""

    def __init__(self, rules: ConfigRules) -> None:
        self._rules = rules

    def alter(self, view: MetadataDelta, request: AlterConfig) -> ControllerResult:
        _check_resource(view, request)
        is_topic = request.resource_type == TOPIC_RESOURCE
        now, check = self._known(view, request)
        _check_sizes(request.changes)
        wanted = {change.key: self._value(change, now, view, is_topic=is_topic) for change in request.changes}
        _check_values(wanted, check)
        is_for_all = request.resource_type == BROKER_RESOURCE and request.resource == CLUSTER_DEFAULT
        kept = CLUSTER_SETTINGS if is_for_all else {}
        _check_removals(wanted, kept)
        if request.replaces_all:
            wanted |= {key: None for key in now if key not in wanted and key not in kept}
        if is_topic:
            self._check_together({**now, **wanted})
        if request.validate_only:
            return ControllerResult()
        return ControllerResult(
            records=tuple(
                ConfigRecord(resource_type=request.resource_type, resource=request.resource, key=key, value=value)
                for key, value in wanted.items()
                if now.get(key) != value
            )
        )

    def _known(self, view: MetadataDelta, request: AlterConfig) -> tuple[dict[str, str], CheckConfig]:
        """The current values of the resource, and the check of its values."""
        if request.resource_type == TOPIC_RESOURCE:
            return view.topic_config(request.resource), self._rules.check_topic
        if request.resource_type == GROUP_RESOURCE:
            return view.group_config(request.resource), self._rules.check_group
        is_for_all = request.resource == CLUSTER_DEFAULT
        return view.broker_config(request.resource), (
            self._rules.check_cluster if is_for_all else self._rules.check_broker
        )

    def check_new_topic(self, configs: Mapping[str, str]) -> None:
        """Raises InvalidConfigError, InvalidRequestError."""
        _check_sizes(tuple(ConfigChange(key=key, value=value) for key, value in configs.items()))
        _check_values(configs, self._rules.check_topic)
        self._check_together(configs)

    def _value(
        self, change: ConfigChange, now: Mapping[str, str], view: MetadataDelta, *, is_topic: bool
    ) -> str | None:
        """The value behind a change: list operations apply to the current value, so that no change overwrites another."""
        if change.operation is ConfigOperation.SET:
            return change.value
        default = self._rules.default_list(change.key) if is_topic else None
        if default is None:
            raise InvalidConfigError(f"{change.key} is not a list: values cannot be added or removed; set it instead")
        default = view.broker_config(CLUSTER_DEFAULT).get(self._rules.broker_key(change.key), default)
        items, named = _items(now.get(change.key, default)), _items(change.value or "")
        if change.operation is ConfigOperation.APPEND:
            return ",".join([*items, *(item for item in dict.fromkeys(named) if item not in items)])
        return ",".join(item for item in items if item not in named)

    def _check_together(self, values: Mapping[str, str | None]) -> None:
        """An invalid combination that an older version accepted does not prevent changes of other keys."""
        self._rules.check_together({key: value for key, value in values.items() if value is not None})


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _check_sizes(changes: tuple[ConfigChange, ...]) -> None:
    if len(changes) > MAX_CONFIG_CHANGES_PER_REQUEST:
        raise InvalidConfigError(
            f"at most {MAX_CONFIG_CHANGES_PER_REQUEST} configurations can be changed in one request"
        )
    twice = [key for key, count in Counter(change.key for change in changes).items() if count > 1]
    if twice:
        raise InvalidRequestError(f"{', '.join(twice)} is named twice in one request; name it once")
    for change in changes:
        if change.value is not None and len(change.value) > MAX_CONFIG_VALUE_LENGTH:
            raise InvalidConfigError(f"the value of {change.key} is longer than {MAX_CONFIG_VALUE_LENGTH} characters")


def _check_values(values: Mapping[str, str | None] | Mapping[str, str], check: CheckConfig) -> None:
    """Removing is always allowed, also of a key that this version does not know."""
    for key, value in values.items():
        if value is not None:
            check(key, value)


def _check_removals(values: Mapping[str, str | None], kept: Container[str]) -> None:
    for key, value in values.items():
        if value is None and key in kept:
            raise InvalidConfigError(
                f"{key} of the cluster cannot be removed, because all brokers need the same value; set it"
            )


def _check_resource(view: MetadataDelta, request: AlterConfig) -> None:
    if request.resource_type == TOPIC_RESOURCE:
        if view.topic(request.resource) is None:
            raise UnknownTopicOrPartitionError(no_such_topic(request.resource))
        return
    if request.resource_type == GROUP_RESOURCE:
        _check_group(view, request.resource)
        return
    if request.resource_type != BROKER_RESOURCE:
        raise InvalidRequestError(f"resources of type {request.resource_type} have no configuration")
    is_id = request.resource.isascii() and request.resource.isdecimal()
    if request.resource != CLUSTER_DEFAULT and not (is_id and view.broker(int(request.resource)) is not None):
        raise InvalidRequestError(f"broker {request.resource!r} is not registered")


def _check_group(view: MetadataDelta, group_id: str) -> None:
    """A group may be configured before its first member joins, so any name is taken, within limits."""
    if not 0 < len(group_id) <= MAX_CONFIGURED_GROUP_ID_LENGTH:
        raise InvalidRequestError(f"a group id has 1 to {MAX_CONFIGURED_GROUP_ID_LENGTH} characters")
    if not view.group_config(group_id) and view.count_group_configs() >= MAX_GROUPS_WITH_CONFIGS:
        raise PolicyViolationError(
            f"{MAX_GROUPS_WITH_CONFIGS} groups have a configuration, the maximum; remove some, or set the brokers' group.* keys"
        )

"""Configurations as tools show them: every key with its value, the source of the value, and its synonyms. Pure.

The order of precedence (KIP-226): the topic's override, the dynamic value of the broker, the dynamic value of all brokers, the
broker's file, the default. The synonyms of a key are listed in this order. Secrets are never told.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from barnabas.log.settings.key import ConfigKey
from barnabas.log.settings.kinds import ConfigType
from barnabas.log.settings.table import (
    ALL_TOPIC_KEYS,
    BROKER_KEYS,
    CLUSTER_SETTINGS,
    DEFAULTS_OF_TOPICS,
    DYNAMIC_KEYS,
    broker_row,
)

from .config import BrokerConfig
from .dynamic_config import topic_defaults_in_force
from .group_config import group_keys

NOTHING_SET: Mapping[str, str] = {}


class ConfigSource(IntEnum):
    """Kafka's numbers (DescribeConfigs)."""

    TOPIC = 1
    BROKER = 2  # a dynamic value of one broker
    CLUSTER = 3  # a dynamic value of all brokers
    GROUP = 8
    FILE = 4  # the configuration at the start of the broker: file, environment, flags
    DEFAULT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    key: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """`value` None: not set. `synonyms` is never empty; the first one is the source of `value`."""

    key: str
    value: str | None
    type: str  # Kafka's name of the type: BOOLEAN, INT, LONG, DOUBLE, STRING, LIST
    default: str | None
    documentation: str
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def sensitive(self) -> bool:
        """Is the value a secret? Then it is never told, only where it was set."""
        return self.type == ConfigType.PASSWORD.name

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


def describe_topic(
    overrides: Mapping[str, str],
    config: BrokerConfig,
    cluster: Mapping[str, str],
    own: Mapping[str, str] = NOTHING_SET,
) -> tuple[DescribedConfig, ...]:
    """Every configuration of a topic with `overrides` on the broker with `config`; `own` and `cluster` are the dynamic values of
    this broker and of all brokers."""
    of_broker = topic_defaults_in_force(config, own=own, cluster=cluster)
    return tuple(
        _described(
            row,
            tuple(_of_topic(row, overrides, config, cluster, own)),
            value=overrides.get(key, of_broker.get(key, row.default_text)),
        )
        for key, row in ALL_TOPIC_KEYS.items()
    )


def _of_topic(
    row: ConfigKey,
    overrides: Mapping[str, str],
    config: BrokerConfig,
    cluster: Mapping[str, str],
    own: Mapping[str, str],
) -> Iterator[ConfigSynonym]:
    if row.name in overrides:
        yield ConfigSynonym(key=row.name, value=overrides[row.name], source=ConfigSource.TOPIC)
    if row.no_effect:
        yield ConfigSynonym(key=row.name, value=row.default_text, source=ConfigSource.DEFAULT)
        return
    for values, source in ((own, ConfigSource.BROKER), (cluster, ConfigSource.CLUSTER)):
        if row.broker_key in values:
            yield ConfigSynonym(key=row.broker_key, value=values[row.broker_key], source=source)
    for of_brokers in DEFAULTS_OF_TOPICS[row.name]:
        if of_brokers.name in config.sources:
            yield ConfigSynonym(key=of_brokers.name, value=config.text(of_brokers.name), source=ConfigSource.FILE)
    yield ConfigSynonym(key=row.broker_key, value=row.default_text, source=ConfigSource.DEFAULT)


def describe_group(overrides: Mapping[str, str], config: BrokerConfig) -> tuple[DescribedConfig, ...]:
    """Every configuration of a group with `overrides` on the broker with `config`."""
    return tuple(_described(row, tuple(_of_group(row, overrides, config))) for row in group_keys(config).values())


def _of_group(row: ConfigKey, overrides: Mapping[str, str], config: BrokerConfig) -> Iterator[ConfigSynonym]:
    if row.name in overrides:
        yield ConfigSynonym(key=row.name, value=overrides[row.name], source=ConfigSource.GROUP)
    source = ConfigSource.FILE if row.broker_key in config.sources else ConfigSource.DEFAULT
    yield ConfigSynonym(key=row.broker_key, value=row.default_text, source=source)


def describe_broker(
    config: BrokerConfig, *, own: Mapping[str, str], cluster: Mapping[str, str]
) -> tuple[DescribedConfig, ...]:
    """Every configuration of the broker with `config`; `own` and `cluster` are dynamic values."""
    return tuple(
        _described(row, tuple(_of_broker(row, config, own, cluster)), read_only=row.name not in DYNAMIC_KEYS)
        for row in (*BROKER_KEYS.values(), *_rows_of_listeners(config))
    )


def _rows_of_listeners(config: BrokerConfig) -> Iterator[ConfigKey]:
    """Of the keys that a single listener has for itself."""
    return (broker_row(key) for key in sorted(config.sources) if key not in BROKER_KEYS)


def describe_all_brokers(cluster: Mapping[str, str]) -> tuple[DescribedConfig, ...]:
    """The dynamic values of all brokers. The brokers have no other configuration in common."""
    alterable = DYNAMIC_KEYS | CLUSTER_SETTINGS.keys()
    return tuple(
        _described(row, (_set_for_all(row, cluster),), read_only=row.name not in alterable)
        for row in BROKER_KEYS.values()
        if row.name in cluster
    )


def _described(
    row: ConfigKey, synonyms: tuple[ConfigSynonym, ...], *, value: str | None = None, read_only: bool = False
) -> DescribedConfig:
    """The caller passes `value` if the first synonym may have another unit."""
    if row.kind.type is ConfigType.PASSWORD:
        synonyms = tuple(dataclasses.replace(item, value=None) for item in synonyms)
    return DescribedConfig(
        key=row.name,
        value=synonyms[0].value if value is None else value,
        type=row.kind.type.name,
        default=row.default_text,
        documentation=row.documentation,
        read_only=read_only,
        synonyms=synonyms,
    )


def _of_broker(
    row: ConfigKey, config: BrokerConfig, own: Mapping[str, str], cluster: Mapping[str, str]
) -> Iterator[ConfigSynonym]:
    key = row.name
    if key in own:
        yield ConfigSynonym(key=key, value=own[key], source=ConfigSource.BROKER)
    if key in cluster:
        yield _set_for_all(row, cluster)
    if key in config.sources:
        yield ConfigSynonym(key=key, value=config.text(key), source=ConfigSource.FILE)
    yield ConfigSynonym(key=key, value=row.default_text, source=ConfigSource.DEFAULT)


def _set_for_all(row: ConfigKey, cluster: Mapping[str, str]) -> ConfigSynonym:
    return ConfigSynonym(key=row.name, value=cluster[row.name], source=ConfigSource.CLUSTER)

"""Configurations as tools show them: every key with its value, where that came from, and what else would have given one. Pure.

A topic's value stands before what was set for the broker and for all brokers while they run, that before the broker's file,
and that before the default (KIP-226: synonyms, in the order in which they count). Nothing here is secret: there are no
passwords among the keys yet.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from barnabas.kraft.metadata.cluster_settings import CLUSTER_SETTINGS
from barnabas.log.settings.accepted_config import WITHOUT_EFFECT
from barnabas.log.settings.config import DEFINITIONS, ConfigDefinition, broker_name

from .config import BrokerConfig, Definition, definitions
from .dynamic_config import THROTTLE_KEYS, dynamic_keys, topic_defaults_in_force
from .group_config import definitions as group_definitions

NOTHING_SET: Mapping[str, str] = {}

# Keys of a broker that say the same of topics in other units, the one that counts first.
_IN_OTHER_UNITS = {
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
}


class ConfigSource(IntEnum):
    """Kafka's numbers (DescribeConfigs)."""

    TOPIC = 1
    BROKER = 2  # changed while the cluster runs, for one broker
    CLUSTER = 3  # the same for all brokers
    GROUP = 8
    FILE = 4  # what a broker was started with: file, environment, flags
    DEFAULT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    key: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """`value` None: not set. `synonyms` is never empty; the first is where `value` comes from."""

    key: str
    value: str | None
    type: str  # Kafka's word: BOOLEAN, INT, LONG, DOUBLE, STRING, LIST
    default: str | None
    documentation: str
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


def describe_topic(
    overrides: Mapping[str, str],
    config: BrokerConfig,
    cluster: Mapping[str, str],
    own: Mapping[str, str] = NOTHING_SET,
) -> tuple[DescribedConfig, ...]:
    """Every configuration of a topic that sets `overrides`, as the broker with `config` sees it; `own` and `cluster` were set
    for it and for all brokers while the cluster runs."""
    of_broker = topic_defaults_in_force(config, own=own, cluster=cluster)
    return tuple(
        DescribedConfig(
            key=key,
            value=overrides.get(key, of_broker.get(key, definition.default)),
            type=definition.type.name,
            default=definition.default,
            documentation=definition.documentation,
            read_only=False,
            synonyms=tuple(_of_topic(definition, overrides, config, cluster, own)),
        )
        for key, definition in sorted((DEFINITIONS | WITHOUT_EFFECT).items())
    )


def _of_topic(
    definition: ConfigDefinition,
    overrides: Mapping[str, str],
    config: BrokerConfig,
    cluster: Mapping[str, str],
    own: Mapping[str, str],
) -> Iterator[ConfigSynonym]:
    key = definition.name
    if key in overrides:
        yield ConfigSynonym(key=key, value=overrides[key], source=ConfigSource.TOPIC)
    if key in WITHOUT_EFFECT:
        yield ConfigSynonym(key=key, value=definition.default, source=ConfigSource.DEFAULT)
        return
    name = broker_name(definition)
    for values, source in ((own, ConfigSource.BROKER), (cluster, ConfigSource.CLUSTER)):
        if name in values:
            yield ConfigSynonym(key=name, value=values[name], source=source)
    for broker_key in _IN_OTHER_UNITS.get(key, (name,)):
        if broker_key in config.sources:
            yield ConfigSynonym(key=broker_key, value=config.text(broker_key), source=ConfigSource.FILE)
    yield ConfigSynonym(key=name, value=definition.default, source=ConfigSource.DEFAULT)


def describe_group(overrides: Mapping[str, str], config: BrokerConfig) -> tuple[DescribedConfig, ...]:
    """Every configuration of a group that sets `overrides`, as the broker with `config` sees it."""
    return tuple(
        DescribedConfig(
            key=key,
            value=overrides.get(key, definition.default),
            type=definition.type.name,
            default=definition.default,
            documentation=definition.documentation,
            read_only=False,
            synonyms=tuple(_of_group(definition, overrides, config)),
        )
        for key, definition in group_definitions(config).items()
    )


def _of_group(
    definition: ConfigDefinition, overrides: Mapping[str, str], config: BrokerConfig
) -> Iterator[ConfigSynonym]:
    name = broker_name(definition)
    if definition.name in overrides:
        yield ConfigSynonym(key=definition.name, value=overrides[definition.name], source=ConfigSource.GROUP)
    source = ConfigSource.FILE if name in config.sources else ConfigSource.DEFAULT
    yield ConfigSynonym(key=name, value=definition.default, source=source)


def describe_broker(
    config: BrokerConfig, *, own: Mapping[str, str], cluster: Mapping[str, str]
) -> tuple[DescribedConfig, ...]:
    """Every configuration of the broker with `config`; `own` and `cluster` were set while the cluster runs."""
    return tuple(
        _described(
            definition, tuple(_of_broker(definition, config, own, cluster)), THROTTLE_KEYS | dynamic_keys().keys()
        )
        for definition in definitions()
    )


def describe_all_brokers(cluster: Mapping[str, str]) -> tuple[DescribedConfig, ...]:
    """What was set for all brokers while the cluster runs: nothing else is known of all of them."""
    return tuple(
        _described(
            definition,
            (_set_for_all(definition, cluster),),
            THROTTLE_KEYS | dynamic_keys().keys() | CLUSTER_SETTINGS.keys(),
        )
        for definition in definitions()
        if definition.key in cluster
    )


def _described(
    definition: Definition, synonyms: tuple[ConfigSynonym, ...], alterable: Container[str]
) -> DescribedConfig:
    return DescribedConfig(
        key=definition.key,
        value=synonyms[0].value,
        type=definition.type,
        default=definition.default,
        documentation=definition.documentation,
        read_only=definition.key not in alterable,
        synonyms=synonyms,
    )


def _of_broker(
    definition: Definition, config: BrokerConfig, own: Mapping[str, str], cluster: Mapping[str, str]
) -> Iterator[ConfigSynonym]:
    key = definition.key
    if key in own:
        yield ConfigSynonym(key=key, value=own[key], source=ConfigSource.BROKER)
    if key in cluster:
        yield _set_for_all(definition, cluster)
    if key in config.sources:
        yield ConfigSynonym(key=key, value=config.text(key), source=ConfigSource.FILE)
    yield ConfigSynonym(key=key, value=definition.default, source=ConfigSource.DEFAULT)


def _set_for_all(definition: Definition, cluster: Mapping[str, str]) -> ConfigSynonym:
    return ConfigSynonym(key=definition.key, value=cluster[definition.key], source=ConfigSource.CLUSTER)

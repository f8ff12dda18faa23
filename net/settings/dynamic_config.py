"""Configurations of brokers that change while they run (KIP-226), and what holds for a broker at the moment. Pure.

What was set for one broker stands before what was set for all, and that before its file. Dynamic are the defaults of topics,
each by the one name that Kafka's tools use; any other key is refused as long as nothing here would notice its change.
"""

import dataclasses
import logging
from collections.abc import Mapping
from functools import cache

from barnabas.kraft.metadata.cluster_settings import CLUSTER_SETTINGS
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT, REASSIGNMENT_THROTTLE
from barnabas.log.settings.config import DEFINITIONS, LogConfig, broker_name
from barnabas.log.vocabulary.errors import InvalidConfigError

from .cluster_settings import topic_defaults
from .config import BrokerConfig, parse_value

logger = logging.getLogger("barnabas.config")

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
THROTTLE_KEYS = frozenset({LEADER_RATE, FOLLOWER_RATE, REASSIGNMENT_THROTTLE})

_NOT_DYNAMIC = {
    # A guarantee rests on these, so brokers must not differ in them.
    "flush.messages",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    # These two can be wrong together with what topics set, which would have to be looked through.
    "max.compaction.lag.ms",
    "min.compaction.lag.ms",
    # There is one value only.
    "preallocate",
}


@cache
def dynamic_keys() -> Mapping[str, str]:
    """The keys of a broker that may change while it runs, each with the key of topics that it is the default of."""
    return {broker_name(found): name for name, found in DEFINITIONS.items() if name not in _NOT_DYNAMIC}


def check_dynamic_value(key: str, value: str) -> None:
    """Raises InvalidConfigError. `key` is one of `dynamic_keys`."""
    parse_value(key, value)
    LogConfig.from_map({dynamic_keys()[key]: value})


def in_force(config: BrokerConfig, *, own: Mapping[str, str], cluster: Mapping[str, str]) -> BrokerConfig:
    """The broker's configuration with what was set while the cluster runs. A value of a newer version is passed over."""
    values, sources = {}, dict(config.sources)
    for key, text in {**cluster, **own}.items():
        if key not in dynamic_keys():
            continue
        try:
            values[key.replace(".", "_")] = parse_value(key, text)
            sources[key] = "dynamic"
        except InvalidConfigError as error:
            logger.error("the configuration of brokers has a value that is not known here: %s", error)
    return dataclasses.replace(config, **values, sources=sources) if values else config


def topic_defaults_in_force(
    config: BrokerConfig, *, own: Mapping[str, str], cluster: Mapping[str, str]
) -> dict[str, str]:
    """What holds for a topic that sets nothing, by the topics' names of keys; Kafka's defaults are absent."""
    of_cluster = {key: cluster[key] for key in CLUSTER_SETTINGS if key in cluster}
    return topic_defaults(in_force(config, own=own, cluster=cluster), of_cluster)


def topic_defaults_of_image(config: BrokerConfig, image: MetadataImage) -> dict[str, str]:
    """The same for the broker that `config` is the file of."""
    found = image.broker_configs
    own, cluster = found.get(str(config.node_id), {}), found.get(CLUSTER_DEFAULT, {})
    return topic_defaults_in_force(config, own=own, cluster=cluster)

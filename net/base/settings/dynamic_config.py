"""Dynamic configurations of brokers (KIP-226), and the current defaults of topics. Pure.

The dynamic value of one broker overrides that of all brokers, which overrides the broker's file. The table of keys (log/settings)
says which keys are dynamic.
"""

import logging
from collections.abc import Mapping

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT
from barnabas.log.settings.table import BROKER_KEYS, CLUSTER_SETTINGS, DYNAMIC_KEYS
from barnabas.log.vocabulary.errors import InvalidConfigError

from .config import BrokerConfig

logger = logging.getLogger("barnabas.config")

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


def topic_defaults_in_force(
    config: BrokerConfig, *, own: Mapping[str, str], cluster: Mapping[str, str]
) -> dict[str, str]:
    """The current defaults of topics, by topic key; keys with Kafka's default are absent."""
    found = config.topic_defaults()
    given = {**cluster, **own}
    for key in DYNAMIC_KEYS & given.keys():
        row = BROKER_KEYS[key]
        if row.topic_key is None:
            continue
        try:
            found[row.topic_key] = row.kind.show(row.parse(given[key]))
        except InvalidConfigError as error:
            logger.error("ignoring a configuration value that this version does not accept: %s", error)
    for key in CLUSTER_SETTINGS:
        topic_key = BROKER_KEYS[key].topic_key
        if topic_key is not None and key in cluster:
            found[topic_key] = cluster[key]
    return found


def topic_defaults_of_image(config: BrokerConfig, image: MetadataImage) -> dict[str, str]:
    """The same for the broker that was started with `config`."""
    found = image.broker_configs
    own, cluster = found.get(str(config.node_id), {}), found.get(CLUSTER_DEFAULT, {})
    return topic_defaults_in_force(config, own=own, cluster=cluster)

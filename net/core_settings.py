"""A broker's configuration as the settings of the pure cores: the one place where Kafka's keys meet their fields."""

from barnabas.consumer_groups.settings import GroupSettings
from barnabas.kraft.controller_settings import ControllerSettings
from barnabas.log.config import definition_of
from barnabas.log.errors import InvalidConfigError

from .config import BrokerConfig


def group_settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        max_group_size=config.group_consumer_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
    )


def controller_settings(config: BrokerConfig) -> ControllerSettings:
    return ControllerSettings(
        session_timeout_ms=config.broker_session_timeout_ms,
        heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
        default_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
        min_insync_replicas=config.min_insync_replicas,
        unclean_leader_election=config.unclean_leader_election_enable,
        auto_preferred_leaders=config.auto_leader_rebalance_enable,
        preferred_leader_check_interval_ms=config.leader_imbalance_check_interval_seconds * 1000,
    )


def check_topic_config(key: str, value: str) -> None:
    """What the controller asks before it takes a topic's configuration. Raises InvalidConfigError."""
    definition_of(key).parse(value)


def check_broker_config(key: str, value: str) -> None:
    raise InvalidConfigError(f"{key} cannot be changed while a broker runs: set it in server.properties and restart")

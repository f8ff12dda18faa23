"""Converts a broker's configuration to the settings of the pure cores: the only mapping of Kafka's keys to their fields."""

from collections.abc import Mapping

from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.controller.configuration_control import ConfigRules
from barnabas.kraft.metadata.controller_settings import ControllerSettings
from barnabas.kraft.quorum.config import RaftTiming, SnapshotPolicy
from barnabas.log.settings.config import TOPIC_KEYS, LogConfig
from barnabas.log.settings.kinds import ConfigType
from barnabas.log.settings.table import ALL_TOPIC_KEYS, check_broker_config, check_cluster_config, check_topic_config
from barnabas.log.vocabulary.access.quotas import QuotaKind

from ..base.settings.config import BrokerConfig
from ..base.settings.group_config import check_group_value
from ..base.settings.server_limits import UNLIMITED_DESCRIPTORS, ServerLimits
from ..logs.following.replica_fetcher import FetchSettings


def group_settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        max_group_size=config.group_consumer_max_size,
        share_session_timeout_ms=config.group_share_session_timeout_ms,
        share_heartbeat_interval_ms=config.group_share_heartbeat_interval_ms,
        max_share_group_size=config.group_share_max_size,
        assignors=config.group_consumer_assignors,
        assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        max_classic_group_size=config.group_max_size,
        max_groups_per_slot=config.group_max_per_slot,
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    return TransactionSettings(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
        is_two_phase_enabled=config.transaction_two_phase_commit_enable,
    )


def controller_settings(config: BrokerConfig) -> ControllerSettings:
    topics = config.topics
    return ControllerSettings(
        session_timeout_ms=config.broker_session_timeout_ms,
        heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
        default_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
        min_insync_replicas=topics.min_insync_replicas,
        unclean_leader_election=topics.unclean_leader_election_enable,
        flush_messages=topics.flush_messages,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        auto_preferred_leaders=config.auto_leader_rebalance_enable,
        preferred_leader_check_interval_ms=config.leader_imbalance_check_interval_seconds * 1000,
        leader_imbalance_percentage=config.leader_imbalance_per_broker_percentage,
    )


def raft_timing(config: BrokerConfig) -> RaftTiming:
    return RaftTiming.of_election_timeout(config.controller_quorum_election_timeout_ms)


def snapshot_policy(config: BrokerConfig) -> SnapshotPolicy:
    return SnapshotPolicy(size_bytes=config.metadata_log_max_record_bytes_between_snapshots)


MAX_IDLE_WAIT_MS = 2_000


def fetch_settings(config: BrokerConfig) -> FetchSettings:
    return FetchSettings(
        max_wait_ms=config.replica_fetch_wait_max_ms,
        # A follower in the ISR must fetch several times within the maximum lag.
        max_idle_wait_ms=min(
            MAX_IDLE_WAIT_MS, config.replica_lag_time_max_ms // 4, config.replica_socket_timeout_ms // 2
        ),
        min_bytes=config.replica_fetch_min_bytes,
        max_bytes=config.replica_fetch_response_max_bytes,
        max_partition_bytes=config.replica_fetch_max_bytes,
        call_timeout_ms=config.replica_socket_timeout_ms,
        max_backoff_ms=config.replica_fetch_backoff_ms,
    )


def server_limits(config: BrokerConfig, *, max_descriptor: int = UNLIMITED_DESCRIPTORS) -> ServerLimits:
    return ServerLimits(
        max_connections=config.max_connections,
        max_descriptor=max_descriptor,
        max_frame_bytes=config.socket_request_max_bytes,
        max_requests_in_flight=config.queued_max_requests,
        max_buffered_bytes=config.queued_max_request_bytes,
        idle_timeout_ms=config.connections_max_idle_ms,
    )


def quota_bursts(config: BrokerConfig) -> dict[QuotaKind, float]:
    """How many seconds of its quota an idle client saves, as in Kafka: all windows of a quota."""
    clients_s = config.quota_window_num * config.quota_window_size_seconds
    controller_s = config.controller_quota_window_num * config.controller_quota_window_size_seconds
    return {kind: controller_s if kind is QuotaKind.MUTATION else clients_s for kind in QuotaKind}


def loop_limit_ms(config: BrokerConfig) -> int:
    """For how long the loop of a voter may be blocked before the voter must not lead the quorum: two thirds of the session. A
    controller that takes no heartbeats for a whole session would fence every broker; a healthy loop blocks far shorter."""
    return config.broker_session_timeout_ms * 2 // 3


def config_rules(config: BrokerConfig) -> ConfigRules:
    """The rules by which the controller checks a configuration; `config` is that of the controller's own node."""
    defaults = config.topic_defaults()

    def check_together(values: Mapping[str, str]) -> object:
        """An older version may have accepted a key that is no longer known."""
        return LogConfig.from_map({**defaults, **{key: values[key] for key in values if key in TOPIC_KEYS}})

    def default_list(key: str) -> str | None:
        row = ALL_TOPIC_KEYS.get(key)
        return defaults.get(key, row.kind.show(row.default)) if row and row.kind.type is ConfigType.LIST else None

    return ConfigRules(
        check_topic=check_topic_config,
        check_broker=check_broker_config,
        check_group=lambda key, value: check_group_value(config, key, value),
        check_cluster=check_cluster_config,
        check_together=check_together,
        default_list=default_list,
        broker_key=lambda key: TOPIC_KEYS[key].broker_key if key in TOPIC_KEYS else key,
    )

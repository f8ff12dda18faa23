"""Configurations of single groups (KIP-848, KIP-1140): the keys, and the values of a group. Pure.

They override the broker's `group.consumer.*` and the timeouts that a member asks for, from the member's next heartbeat on.
If the session timeout is removed again, a member of Barnabas's own protocol keeps it until the member joins again. Groups of the
classic protocol have no such configurations: their members set their own timeouts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.consumer_groups.share.settings import ShareSettings
from barnabas.log.settings.key import ConfigKey
from barnabas.log.settings.kinds import Unit, int32, one_of
from barnabas.log.vocabulary.errors import InvalidConfigError

from .config import BrokerConfig

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
# Kafka takes these ranges from the brokers' group.consumer.min and max; these are wider, so that tests can be fast.
MIN_HEARTBEAT_INTERVAL_MS, MAX_HEARTBEAT_INTERVAL_MS = 100, 60_000
SHARE_SESSION_TIMEOUT = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL = "share.heartbeat.interval.ms"
SHARE_LOCK_DURATION = "share.record.lock.duration.ms"
SHARE_DELIVERY_LIMIT = "share.delivery.count.limit"
SHARE_MAX_LOCKS = "share.partition.max.record.locks"
SHARE_OFFSET_RESET = "share.auto.offset.reset"
SHARE_ISOLATION = "share.isolation.level"
EARLIEST, READ_COMMITTED = "earliest", "read_committed"
_NOT_HERE = {"streams.": "streams groups are not supported"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """The timeouts of one group; -1: not set."""

    session_timeout_ms: int = -1
    heartbeat_interval_ms: int = -1


def group_keys(config: BrokerConfig) -> dict[str, ConfigKey]:
    """The configuration keys of groups; the defaults and the range of session timeouts come from the broker."""
    rows = (
        ConfigKey(
            name=HEARTBEAT_INTERVAL,
            kind=int32(MIN_HEARTBEAT_INTERVAL_MS, MAX_HEARTBEAT_INTERVAL_MS, unit=Unit.MILLISECONDS),
            default=config.group_consumer_heartbeat_interval_ms,
            documentation="Interval of the heartbeats of this group's members; at least three are sent per session timeout.",
            broker_key="group.consumer.heartbeat.interval.ms",
        ),
        ConfigKey(
            name=SESSION_TIMEOUT,
            kind=int32(
                config.group_min_session_timeout_ms, config.group_max_session_timeout_ms, unit=Unit.MILLISECONDS
            ),
            default=config.group_consumer_session_timeout_ms,
            documentation="Time without a heartbeat before a member is removed from this group.",
            broker_key="group.consumer.session.timeout.ms",
        ),
    )
    return {row.name: row for row in (*rows, *_share_keys(config))}


def _share_keys(config: BrokerConfig) -> tuple[ConfigKey, ...]:
    sessions = int32(config.group_min_session_timeout_ms, config.group_max_session_timeout_ms, unit=Unit.MILLISECONDS)
    return (
        ConfigKey(
            name=SHARE_OFFSET_RESET,
            kind=one_of("latest", EARLIEST),
            default="latest",
            documentation="Where this share group begins in a partition that it has not read: new records, or all of them.",
        ),
        ConfigKey(
            name=SHARE_ISOLATION,
            kind=one_of("read_uncommitted", READ_COMMITTED),
            default="read_uncommitted",
            documentation="Whether this share group waits for the end of transactions, and leaves out those that were aborted.",
        ),
        ConfigKey(
            name=SHARE_LOCK_DURATION,
            kind=int32(100, 3_600_000, unit=Unit.MILLISECONDS),
            default=config.group_share_record_lock_duration_ms,
            documentation="Time that a member of this share group may take to acknowledge a record.",
            broker_key="group.share.record.lock.duration.ms",
        ),
        ConfigKey(
            name=SHARE_DELIVERY_LIMIT,
            kind=int32(1, 100),
            default=config.group_share_delivery_count_limit,
            documentation="Deliveries of a record to this share group after which it is archived.",
            broker_key="group.share.delivery.count.limit",
        ),
        ConfigKey(
            name=SHARE_MAX_LOCKS,
            kind=int32(10, 10_000),
            default=config.group_share_partition_max_record_locks,
            documentation="Maximum records of a partition that are given out to this share group at a time.",
            broker_key="group.share.partition.max.record.locks",
        ),
        ConfigKey(
            name=SHARE_HEARTBEAT_INTERVAL,
            kind=int32(MIN_HEARTBEAT_INTERVAL_MS, MAX_HEARTBEAT_INTERVAL_MS, unit=Unit.MILLISECONDS),
            default=config.group_share_heartbeat_interval_ms,
            documentation="Interval of the heartbeats of members of this share group.",
            broker_key="group.share.heartbeat.interval.ms",
        ),
        ConfigKey(
            name=SHARE_SESSION_TIMEOUT,
            kind=sessions,
            default=config.group_share_session_timeout_ms,
            documentation="Time without a heartbeat before a member is removed from this share group.",
            broker_key="group.share.session.timeout.ms",
        ),
    )


def check_group_value(config: BrokerConfig, key: str, value: str) -> None:
    """Raises InvalidConfigError."""
    row = group_keys(config).get(key)
    if row is None:
        reasons = [reason for prefix, reason in _NOT_HERE.items() if key.startswith(prefix)]
        known = f"groups have {', '.join(sorted(group_keys(config)))}"
        raise InvalidConfigError(f"unknown group configuration {key}: {reasons[0] if reasons else known}")
    row.check(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupConfig:
    """The settings of one share group on the leaders of its partitions."""

    settings: ShareSettings
    begins_at_earliest: bool
    reads_committed: bool


def share_config_of(config: BrokerConfig, overrides: Mapping[str, str]) -> ShareGroupConfig:
    """A value that is not a number comes from another version and is ignored."""

    def number(key: str, default: int) -> int:
        text = overrides.get(key, "")
        return int(text) if text.isdecimal() else default

    settings = ShareSettings(
        record_lock_duration_ms=number(SHARE_LOCK_DURATION, config.group_share_record_lock_duration_ms),
        delivery_count_limit=number(SHARE_DELIVERY_LIMIT, config.group_share_delivery_count_limit),
        max_record_locks=number(SHARE_MAX_LOCKS, config.group_share_partition_max_record_locks),
    )
    return ShareGroupConfig(
        settings=settings,
        begins_at_earliest=overrides.get(SHARE_OFFSET_RESET) == EARLIEST,
        reads_committed=overrides.get(SHARE_ISOLATION) == READ_COMMITTED,
    )


def times_of(
    overrides: Mapping[str, str], session_key: str = SESSION_TIMEOUT, heartbeat_key: str = HEARTBEAT_INTERVAL
) -> GroupTimes:
    """The timeouts that `overrides` sets. A value that is not a number comes from another version and is ignored."""
    session, heartbeat = overrides.get(session_key, ""), overrides.get(heartbeat_key, "")
    return GroupTimes(
        session_timeout_ms=int(session) if session.isdecimal() else -1,
        heartbeat_interval_ms=int(heartbeat) if heartbeat.isdecimal() else -1,
    )


def share_times_of(overrides: Mapping[str, str]) -> GroupTimes:
    """As `times_of`, for a share group."""
    return times_of(overrides, SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL)


def default_session_ms(config: BrokerConfig) -> int:
    """The session timeout of members that cannot ask for one, such as Kafka's. It comes with every heartbeat, so that a removed
    configuration ends.

    -1 if the broker's default is outside the range that a member may ask for: then the timeout is set when a member joins.
    """
    default = config.group_consumer_session_timeout_ms
    is_allowed = config.group_min_session_timeout_ms <= default <= config.group_max_session_timeout_ms
    return default if is_allowed else -1

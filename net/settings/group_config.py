"""Configurations of single groups (KIP-848, KIP-1140): the keys, and the values of a group. Pure.

They override the broker's `group.consumer.*` and the timeouts that a member asks for, from the member's next heartbeat on.
If the session timeout is removed again, a member of Barnabas's own protocol keeps it until the member joins again. Groups of the
classic protocol have no such configurations: their members set their own timeouts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.log.settings.key import ConfigKey
from barnabas.log.settings.kinds import Unit, int32
from barnabas.log.vocabulary.errors import InvalidConfigError

from .config import BrokerConfig

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
# Kafka takes these ranges from the brokers' group.consumer.min and max; these are wider, so that tests can be fast.
MIN_HEARTBEAT_INTERVAL_MS, MAX_HEARTBEAT_INTERVAL_MS = 100, 60_000
_NOT_HERE = {"share.": "share groups are not supported", "streams.": "streams groups are not supported"}


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
    return {row.name: row for row in rows}


def check_group_value(config: BrokerConfig, key: str, value: str) -> None:
    """Raises InvalidConfigError."""
    row = group_keys(config).get(key)
    if row is None:
        reasons = [reason for prefix, reason in _NOT_HERE.items() if key.startswith(prefix)]
        known = f"groups have {HEARTBEAT_INTERVAL} and {SESSION_TIMEOUT}"
        raise InvalidConfigError(f"unknown group configuration {key}: {reasons[0] if reasons else known}")
    row.check(value)


def times_of(overrides: Mapping[str, str]) -> GroupTimes:
    """The timeouts that `overrides` sets. A value that is not a number comes from another version and is ignored."""
    session, heartbeat = overrides.get(SESSION_TIMEOUT, ""), overrides.get(HEARTBEAT_INTERVAL, "")
    return GroupTimes(
        session_timeout_ms=int(session) if session.isdecimal() else -1,
        heartbeat_interval_ms=int(heartbeat) if heartbeat.isdecimal() else -1,
    )


def default_session_ms(config: BrokerConfig) -> int:
    """The session timeout of members that cannot ask for one, such as Kafka's. It comes with every heartbeat, so that a removed
    configuration ends.

    -1 if the broker's default is outside the range that a member may ask for: then the timeout is set when a member joins.
    """
    default = config.group_consumer_session_timeout_ms
    is_allowed = config.group_min_session_timeout_ms <= default <= config.group_max_session_timeout_ms
    return default if is_allowed else -1

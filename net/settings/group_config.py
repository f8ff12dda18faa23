"""Configurations of single groups (KIP-848, KIP-1140): which there are, and what holds for a group. Pure.

They stand before the broker's `group.consumer.*` and before what a member asks for, and hold from a member's next heartbeat on.
A session that is removed again stays that of a member of our own protocol until it joins anew. Groups of the classic protocol
have none: their members bring their own timeouts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.log.settings.key import ConfigKey
from barnabas.log.settings.kinds import Unit, int32
from barnabas.log.vocabulary.errors import InvalidConfigError

from .config import BrokerConfig

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
# Kafka's ranges are those of the brokers' group.consumer.min and max; ours are wider, for tests that cannot wait.
MIN_HEARTBEAT_INTERVAL_MS, MAX_HEARTBEAT_INTERVAL_MS = 100, 60_000
_NOT_HERE = {"share.": "there are no share groups here", "streams.": "there are no streams groups here"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """Of one group; -1 where it sets nothing."""

    session_timeout_ms: int = -1
    heartbeat_interval_ms: int = -1


def group_keys(config: BrokerConfig) -> dict[str, ConfigKey]:
    """The rows of the keys of groups; the defaults, and the range of sessions, are those of the broker."""
    rows = (
        ConfigKey(
            name=HEARTBEAT_INTERVAL,
            kind=int32(MIN_HEARTBEAT_INTERVAL_MS, MAX_HEARTBEAT_INTERVAL_MS, unit=Unit.MILLISECONDS),
            default=config.group_consumer_heartbeat_interval_ms,
            documentation="Interval of the heartbeats of this group's members; at least three are sent in a session.",
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
    """What a group with `overrides` sets. A value that is no number is one of another version, and counts as none."""
    session, heartbeat = overrides.get(SESSION_TIMEOUT, ""), overrides.get(HEARTBEAT_INTERVAL, "")
    return GroupTimes(
        session_timeout_ms=int(session) if session.isdecimal() else -1,
        heartbeat_interval_ms=int(heartbeat) if heartbeat.isdecimal() else -1,
    )


def default_session_ms(config: BrokerConfig) -> int:
    """Of members that cannot ask for one, as Kafka's: told with every heartbeat, so that a removed configuration ends.

    -1 where the broker's default is none that a member may ask for: it holds from a member's join on.
    """
    default = config.group_consumer_session_timeout_ms
    is_allowed = config.group_min_session_timeout_ms <= default <= config.group_max_session_timeout_ms
    return default if is_allowed else -1

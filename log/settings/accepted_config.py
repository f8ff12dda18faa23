"""Topic configurations of Kafka that change nothing here: taken, kept and shown, because tools set them, each with its reason.

A value that Kafka would refuse is refused here too. What would change something and is not to be had stays unknown, and the
error says what to use instead (`CURES`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..vocabulary.errors import InvalidConfigError
from .config import ConfigDefinition, ConfigType, definition_of

_FORMAT_VERSION = re.compile(r"[0-9]+\.[0-9]+(\.[0-9]+)*(-IV[0-9]+)?")
_THROTTLED_REPLICAS = re.compile(r"|\*|\s*[0-9]+:[0-9]+\s*(,\s*[0-9]+:[0-9]+\s*)*")
_MAX_LONG = 2**63 - 1

# Of unknown topic configurations: what to do instead.
CURES = {
    "message.timestamp.difference.max.ms": "use message.timestamp.before.max.ms and message.timestamp.after.max.ms",
}
_OF_RETENTION = -2  # local.retention.*: the same as retention.*
# What Kafka, too, refuses where its brokers have no remote storage, and what to do instead.
_REMOTE_STORAGE = "remote.storage.enable"
_NO_REMOTE_STORAGE = "there is no remote storage: set retention.ms and retention.bytes to what the brokers can hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worded(ConfigDefinition):
    """A text that must match `pattern`; `words` says so."""

    pattern: re.Pattern[str]
    words: str

    def value_of(self, text: str) -> str:
        if not self.pattern.fullmatch(text):
            raise ValueError(f"{text!r} does not match")
        return text

    @property
    def allowed(self) -> str:
        return self.words


def _throttled(side: str) -> ConfigDefinition:
    return _Worded(
        name=f"{side}.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        documentation="Without effect: exactly the replicas that a reassignment adds are throttled (KIP-73).",
        pattern=_THROTTLED_REPLICAS,
        words="partition:broker, several separated by commas, or *",
    )


def _of_remote_storage(name: str, type: ConfigType, default: str, minimum: float | None = None) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        type=type,
        default=default,
        minimum=minimum,
        maximum=_MAX_LONG if minimum is not None else None,
        documentation="Without effect, as in Kafka where remote storage is off.",
    )


WITHOUT_EFFECT: dict[str, ConfigDefinition] = {
    found.name: found
    for found in (
        _throttled("follower"),
        _throttled("leader"),
        ConfigDefinition(
            name="message.downconversion.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            documentation="Without effect: batches are served as they are stored, to every client.",
        ),
        _Worded(
            name="message.format.version",
            type=ConfigType.STRING,
            default="3.0-IV1",
            documentation="Without effect, as in Kafka since 3.0: records are stored as batches of version 2.",
            pattern=_FORMAT_VERSION,
            words="a version of Kafka, like 3.0-IV1",
        ),
        ConfigDefinition(
            name="segment.jitter.ms",
            type=ConfigType.LONG,
            default="0",
            minimum=0,
            maximum=_MAX_LONG,
            documentation="Without effect: segments roll at their age.",
        ),
        _of_remote_storage("local.retention.bytes", ConfigType.LONG, str(_OF_RETENTION), _OF_RETENTION),
        _of_remote_storage("local.retention.ms", ConfigType.LONG, str(_OF_RETENTION), _OF_RETENTION),
        _of_remote_storage("remote.log.copy.disable", ConfigType.BOOLEAN, "false"),
        _of_remote_storage("remote.log.delete.on.disable", ConfigType.BOOLEAN, "false"),
        _of_remote_storage(_REMOTE_STORAGE, ConfigType.BOOLEAN, "false"),
    )
}


def with_effect(overrides: Mapping[str, str]) -> dict[str, str]:
    """What a log must be told of what its topic sets."""
    return {name: text for name, text in overrides.items() if name not in WITHOUT_EFFECT}


def check_topic_value(name: str, text: str) -> None:
    """Raises InvalidConfigError for a key that a topic cannot have, and for a wrong value."""
    if name in CURES:
        raise InvalidConfigError(f"unknown topic configuration {name}: {CURES[name]}")
    value = (WITHOUT_EFFECT.get(name) or definition_of(name)).parse(text)
    if name == _REMOTE_STORAGE and value:
        raise InvalidConfigError(f"{name}={text}: {_NO_REMOTE_STORAGE}")

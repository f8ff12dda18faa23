"""The configuration of one partition's log: Kafka's topic-level names, types, defaults and ranges.

`DEFINITIONS` is the one table; `LogConfig` holds the values, and DescribeConfigs is answered from both. A broker's
`server.properties` gives the defaults (there the names have `log.` in front, see `broker_name`).
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache
from typing import Any

from ..format.compression import GZIP_DEFAULT_LEVEL, LZ4_DEFAULT_LEVEL, ZSTD_DEFAULT_LEVEL
from ..vocabulary.errors import InvalidConfigError

FOREVER_MS = -1  # retention.ms and retention.bytes: no limit
_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")  # longer ones are no 64 bits, and int() of thousands of digits raises
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
MIN_SEGMENT_BYTES = 14  # Kafka's bound until 4.0; small ones are what tests live on.


class ConfigType(Enum):
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One key: `default` is a string as a user would write it."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    broker_name: str | None = None  # where it is not "log." + name

    @property
    def field_name(self) -> str:
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Any:
        """Return the value. Raises InvalidConfigError that names the range."""
        try:
            return self.value_of(text)
        except ValueError as error:
            raise InvalidConfigError(f"{self.name}={text}: must be {self.allowed}") from error

    def value_of(self, text: str) -> Any:
        """The same, also for the broker's key that gives this one its default. Raises ValueError."""
        value = _PARSERS[self.type](text.strip())
        if isinstance(value, int | float) and not self._in_range(value):
            raise ValueError("out of range")
        chosen = value if isinstance(value, tuple) else (value,)
        if self.choices and (not chosen or not set(chosen) <= set(self.choices)):
            raise ValueError("not a choice")
        return value

    def text_of(self, value: object) -> str:
        """The value as a user would write it."""
        if isinstance(value, bool):
            return str(value).lower()
        return ",".join(value) if isinstance(value, tuple) else str(value)

    @property
    def allowed(self) -> str:
        """In words, for the message that refuses a value."""
        if self.choices:
            return f"{'a comma-separated list' if self.type is ConfigType.LIST else 'one'} of {', '.join(self.choices)}"
        if self.minimum is not None or self.maximum is not None:
            return f"{_KINDS[self.type]} between {self.minimum} and {self.maximum}"
        return _KINDS[self.type]

    def _in_range(self, value: float) -> bool:
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)


_KINDS = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.INT: "an integer",
    ConfigType.LONG: "an integer",
    ConfigType.DOUBLE: "a number",
    ConfigType.STRING: "a string",
    ConfigType.LIST: "a comma-separated list",
}


def parse_whole(text: str) -> int:
    """An integer in decimal digits. Raises ValueError, also for what Python alone takes: 1_000 and digits of every script."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError("not an integer")
    return int(text)


def parse_decimal(text: str) -> float:
    """A number. Raises ValueError, also for what Python alone takes: 1_0, nan, inf."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError("not a number")
    return float(text)


def parse_boolean(text: str) -> bool:
    """Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text.lower() == "true"


_PARSERS: dict[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: parse_boolean,
    ConfigType.INT: parse_whole,
    ConfigType.LONG: parse_whole,
    ConfigType.DOUBLE: parse_decimal,
    ConfigType.STRING: str,
    ConfigType.LIST: lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
}


def _int(name: str, default: int, minimum: int, text: str, *, broker: str | None = None) -> ConfigDefinition:
    return ConfigDefinition(name=name, type=ConfigType.INT, default=str(default), minimum=minimum, maximum=_MAX_INT,
                            documentation=text, broker_name=broker)  # fmt: skip


def _long(name: str, default: int, minimum: int, text: str, *, broker: str | None = None) -> ConfigDefinition:
    return ConfigDefinition(name=name, type=ConfigType.LONG, default=str(default), minimum=minimum, maximum=_MAX_LONG,
                            documentation=text, broker_name=broker)  # fmt: skip


def _ratio(name: str, default: float, text: str, *, broker: str | None = None) -> ConfigDefinition:
    return ConfigDefinition(name=name, type=ConfigType.DOUBLE, default=str(default), minimum=0, maximum=1,
                            documentation=text, broker_name=broker)  # fmt: skip


def _boolean(name: str, default: bool, text: str, *, broker: str | None = None) -> ConfigDefinition:
    return ConfigDefinition(name=name, type=ConfigType.BOOLEAN, default=str(default).lower(), documentation=text,
                            broker_name=broker)  # fmt: skip


def _choice(name: str, default: str, choices: tuple[str, ...], text: str, *, broker: str | None = None,
            many: bool = False) -> ConfigDefinition:  # fmt: skip
    kind = ConfigType.LIST if many else ConfigType.STRING
    return ConfigDefinition(
        name=name, type=kind, default=default, choices=choices, documentation=text, broker_name=broker
    )


def _level(name: str, default: int, minimum: int, maximum: int, text: str) -> ConfigDefinition:
    return ConfigDefinition(name=name, type=ConfigType.INT, default=str(default), minimum=minimum, maximum=maximum,
                            documentation=text, broker_name=name)  # fmt: skip


_COMPRESSIONS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_ALL_DEFINITIONS = (
    _choice("cleanup.policy", "delete", ("delete", "compact"),
            "delete: remove old segments; compact: keep only the last record of each key.",
            many=True),
    _level("compression.gzip.level", GZIP_DEFAULT_LEVEL, GZIP_DEFAULT_LEVEL, 9,
           "Compression level if compression.type is gzip: 1 to 9, or -1 for the default of gzip."),
    _level("compression.lz4.level", LZ4_DEFAULT_LEVEL, 1, 17,
           "Compression level if compression.type is lz4; 9 is the fast mode, as in Kafka."),
    _choice("compression.type", "producer", _COMPRESSIONS, "Codec on disk; `producer`: keep the codec of the producer.",
            broker="compression.type"),
    _level("compression.zstd.level", ZSTD_DEFAULT_LEVEL, -131_072, 22,
           "Compression level if compression.type is zstd."),
    _long("delete.retention.ms", _DAY_MS, 0, "Time that a compacted topic keeps tombstones after their compaction.",
          broker="log.cleaner.delete.retention.ms"),
    _long("file.delete.delay.ms", 60_000, 0, "Time that a removed file stays on disk.",
          broker="log.segment.delete.delay.ms"),
    _long("flush.messages", _MAX_LONG, 1, "Flush to disk after this many records; 1: before a record counts.",
          broker="log.flush.interval.messages"),
    _long("flush.ms", _MAX_LONG, 0, "Flush to disk at least this often, in the background (checked every second).",
          broker="log.flush.interval.ms"),
    _int("index.interval.bytes", 4096, 0, "Approximate bytes of the log between two index entries."),
    _long("max.compaction.lag.ms", _MAX_LONG, 1, "Maximum time before a record becomes eligible for compaction.",
          broker="log.cleaner.max.compaction.lag.ms"),
    _int("max.message.bytes", 1_048_588, 0, "Maximum size of a record batch, including 12 bytes of overhead.",
         broker="message.max.bytes"),
    _long("message.timestamp.after.max.ms", _HOUR_MS, 0, "Maximum time that a timestamp may be ahead of the broker's clock."),
    _long("message.timestamp.before.max.ms", _MAX_LONG, 0, "Maximum time that a timestamp may be behind the broker's clock."),
    _choice("message.timestamp.type", "CreateTime", ("CreateTime", "LogAppendTime"),
            "Which clock sets the timestamp: the producer's or the broker's."),
    _ratio("min.cleanable.dirty.ratio", 0.5, "Minimum ratio of the log that is not compacted yet for a compaction.",
           broker="log.cleaner.min.cleanable.ratio"),
    _long("min.compaction.lag.ms", 0, 0, "Minimum time that a record stays uncompacted.",
          broker="log.cleaner.min.compaction.lag.ms"),
    _int("min.insync.replicas", 1, 1, "With fewer in-sync replicas, acks=all is refused.", broker="min.insync.replicas"),
    _boolean("preallocate", False, "Allocate the whole segment when it is created; only `false` is supported yet.",
             broker="log.preallocate"),
    _long("retention.bytes", -1, -1, "Size of the partition at which its oldest segments are deleted; -1: no limit."),
    _long("retention.ms", 7 * _DAY_MS, -1, "Age of its newest record at which a segment is deleted; -1: no limit."),
    _int("segment.bytes", 1_073_741_824, MIN_SEGMENT_BYTES, "Segment size at which a new segment begins."),
    _int("segment.index.bytes", 10_485_760, 12, "Index size at which a new segment begins.",
         broker="log.index.size.max.bytes"),
    _long("segment.ms", 7 * _DAY_MS, 1, "Segment age at which a new segment begins.", broker="log.roll.ms"),
    _boolean("unclean.leader.election.enable", False, "Allow a replica that may lack acknowledged records to become leader.",
             broker="unclean.leader.election.enable"),
)  # fmt: skip
DEFINITIONS: dict[str, ConfigDefinition] = {definition.name: definition for definition in _ALL_DEFINITIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The values. A field is called like its key, with underscores, so the defaults stand in one place: DEFINITIONS."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_gzip_level: int = GZIP_DEFAULT_LEVEL
    compression_lz4_level: int = LZ4_DEFAULT_LEVEL
    compression_type: str = "producer"
    compression_zstd_level: int = ZSTD_DEFAULT_LEVEL
    delete_retention_ms: int = _DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = _MAX_LONG
    flush_ms: int = _MAX_LONG
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = _MAX_LONG
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = _HOUR_MS
    message_timestamp_before_max_ms: int = _MAX_LONG
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = FOREVER_MS
    retention_ms: int = 7 * _DAY_MS
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_ms: int = 7 * _DAY_MS
    unclean_leader_election_enable: bool = False

    @classmethod
    def from_map(cls, overrides: Mapping[str, str], defaults: "LogConfig | None" = None) -> "LogConfig":
        """Return `defaults` with these keys changed. Raises InvalidConfigError for an unknown key or a wrong value."""
        values = {(found := definition_of(name)).field_name: found.parse(text) for name, text in overrides.items()}
        config = replace(defaults or cls(), **values)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfigError("min.compaction.lag.ms must not be above max.compaction.lag.ms")
        if config.compression_gzip_level == 0:
            raise InvalidConfigError("compression.gzip.level=0: the level must be 1 to 9, or -1 for gzip's own")
        return config

    @classmethod
    def from_broker(cls, properties: Mapping[str, str]) -> "LogConfig":
        """Return the defaults that a broker's properties set; keys that do not concern logs are passed over."""
        names = _names_by_broker_name()
        return cls.from_map({names[key]: text for key, text in properties.items() if key in names})

    def to_map(self) -> dict[str, str]:
        """All keys with their values, as a user would write them."""
        return {name: found.text_of(getattr(self, found.field_name)) for name, found in DEFINITIONS.items()}

    @property
    def compression_level(self) -> int:
        """Of the codec that compression.type names; of no use with any other."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type, 0)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """Only sealed segments are compacted, so one that shall be compacted soon is sealed soon."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def is_deleted_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


def definition_of(name: str) -> ConfigDefinition:
    """Raises InvalidConfigError that names the nearest known key."""
    found = DEFINITIONS.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, DEFINITIONS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "see `barnabas topic describe` for the known ones"
    raise InvalidConfigError(f"unknown topic configuration {name}; {hint}")


def broker_name(definition: ConfigDefinition) -> str:
    """How the default of this key is called in server.properties."""
    return definition.broker_name or f"log.{definition.name}"


@cache
def _names_by_broker_name() -> dict[str, str]:
    return {broker_name(definition): definition.name for definition in _ALL_DEFINITIONS}


assert [field.name for field in fields(LogConfig)] == [found.field_name for found in _ALL_DEFINITIONS]

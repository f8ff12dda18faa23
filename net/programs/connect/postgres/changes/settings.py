"""The file of a connector: TOML, checked key by key. An error names the file, the key, and the nearest key that exists."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from .faults import ConfigFileError

SOURCE: Final = "postgres-source"
SINK: Final = "postgres-sink"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Topics that the connector creates; existing ones stay as they are."""

    partitions: int = 1
    replication_factor: int = -1  # the cluster's default
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    mode: str = "initial"  # or "never": only changes from now on
    readers: int = 2  # connections that read at a time
    chunk_rows: int = 50_000  # of a large table, for one reader


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    max_records: int = 10_000  # after which a transaction ends, at the next end of a source transaction
    max_transaction_records: int = 200_000  # of a source transaction, above which it is committed in parts
    linger_ms: int = 50  # time that a transaction waits for further source transactions
    transaction_timeout_ms: int = 60_000  # a source transaction that takes half of this is committed in parts, too
    max_record_bytes: int = (
        1 << 20
    )  # of a row's record, before compression; topics have a limit, too: max.message.bytes
    compression: str = "zstd"
    tombstones: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    interval_s: int = 30
    warn_lag_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    connector: str
    name: str
    dsn: str
    publication: str
    slot: str
    prefix: str
    bootstrap: str = ""
    tables: list[str] = field(default_factory=lambda: ["*.*"])
    topics: TopicSettings = field(default_factory=TopicSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    health: HealthSettings = field(default_factory=HealthSettings)

    @property
    def position_topic(self) -> str:
        return f"__postgres_position.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    connector: str
    name: str  # of the consumer group, and of the positions in the database
    dsn: str
    topics: list[str] = field(default_factory=list)
    pattern: str = ""
    bootstrap: str = ""
    tables: dict[str, str] = field(default_factory=dict)  # by topic; default: the source's schema and name
    max_records: int = 2_000  # of one transaction
    disable_triggers: bool = (
        False  # session_replication_role = replica: no triggers, no foreign keys; needs a superuser
    )


def read_file(path: Path) -> SourceSettings | SinkSettings:
    """Raises ConfigFileError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigFileError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigFileError(
            f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8, or name the connector's file"
        ) from error
    return parse(text, str(path))


def parse(text: str, file: str) -> SourceSettings | SinkSettings:
    """Raises ConfigFileError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigFileError(f"{file} is not valid TOML: {error}") from error
    kind = document.get("connector")
    if kind == SOURCE:
        return checked_source(_read(SourceSettings, document, file, ""), file)
    if kind == SINK:
        return _checked_sink(_read(SinkSettings, document, file, ""), file)
    if kind is None:
        hint = " (a file with source and sink is a pipeline: barnabas pipeline run)" if "sink" in document else ""
        raise ConfigFileError(f'{file}: the key connector is missing: write connector = "{SOURCE}" or "{SINK}"{hint}')
    raise ConfigFileError(
        f'{file}: connector is {kind!r}: write connector = "{SOURCE}" or "{SINK}"', key=("connector",)
    )


def _read(kind: type[T], found: Mapping[str, Any], file: str, within: str) -> T:
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]  # T is one of the classes above
    hints = get_type_hints(kind)
    values = {}
    for name, value in found.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys here are {', '.join(known)}"
            raise ConfigFileError(f"{file}: unknown key {within}{name}: {hint}", key=(*_way(within)[:-1], name))
        values[name] = _value(hints[name], value, file, f"{within}{name}")
    missing = [
        name
        for name, item in known.items()
        if name not in values and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        raise ConfigFileError(f"{file}: the key {within}{missing[0]} is missing")
    return kind(**values)


def _value(kind: Any, value: object, file: str, name: str) -> Any:
    if isinstance(value, dict) and hasattr(kind, "__dataclass_fields__"):
        return _read(kind, value, file, f"{name}.")
    plain = get_origin(kind) or kind
    if type(value) is not plain:
        raise ConfigFileError(f"{file}: {name} is {value!r}: it must be {_WORDS.get(plain, 'a table')}", key=_way(name))
    items = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    for item in items:
        if type(item) is not get_args(kind)[-1]:
            raise ConfigFileError(f"{file}: {name} has the item {item!r}: items must be strings", key=_way(name))
    if type(value) is int and value < _LEAST.get(name, 1):
        raise ConfigFileError(f"{file}: {name} is {value}: it must be at least {_LEAST.get(name, 1)}", key=_way(name))
    return value


def _way(name: str) -> tuple[str, ...]:
    """To a key of the connector's own, none of which has a dot."""
    return tuple(name.split("."))


_LEAST: Final = {"topics.replication_factor": -1, "delivery.linger_ms": 0}
_SLOT_NAME: Final = re.compile("[a-z0-9_]{1,63}")
_WORDS: Final = {str: "a string", int: "an integer", bool: "true or false", list: "a list of strings", dict: "a table"}


def checked_source(settings: SourceSettings, file: str) -> SourceSettings:
    """Raises ConfigFileError; `file` is where the settings come from."""
    for name in ("name", "prefix"):
        if not _is_topic_name(getattr(settings, name)):
            raise ConfigFileError(
                f"{file}: {name} is {getattr(settings, name)!r}: it becomes part of topic names, so use letters, digits,"
                " '.', '_' and '-' only",
                key=(name,),
            )
    if settings.slot and not _SLOT_NAME.fullmatch(settings.slot):
        raise ConfigFileError(
            f"{file}: slot is {settings.slot!r}: PostgreSQL takes up to 63 lower case letters, digits and '_'",
            key=("slot",),
        )
    if settings.snapshot.mode not in ("initial", "never"):
        raise ConfigFileError(
            f'{file}: snapshot.mode is {settings.snapshot.mode!r}: write "initial" or "never"', key=("snapshot", "mode")
        )
    for pattern in settings.tables:
        if pattern.count(".") != 1:
            raise ConfigFileError(
                f'{file}: tables has the item {pattern!r}: write "schema.table", with * for any', key=("tables",)
            )
    return settings


def _checked_sink(settings: SinkSettings, file: str) -> SinkSettings:
    if bool(settings.topics) == bool(settings.pattern):
        raise ConfigFileError(f"{file}: give either topics (a list of names) or pattern (a regular expression)")
    return settings


def _is_topic_name(text: str) -> bool:
    return bool(text) and all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in text)

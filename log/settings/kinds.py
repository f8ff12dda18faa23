"""Kinds of configuration values: how a value is parsed, checked and shown, and which values an error describes as allowed. Pure.

Every key of a type uses the same kind, in files, for topics and for groups. The keys are in `table`.
"""

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

V = TypeVar("V")

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1
MAX_DOUBLE: Final = sys.float_info.max  # Kafka's value for "no limit"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}")  # longer ones exceed 64 bits, and int() of thousands of digits raises
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


class ConfigType(Enum):
    """Kafka's types in DescribeConfigs."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    PASSWORD = "password"


class Unit(Enum):
    NONE = ""
    MILLISECONDS = "ms"
    SECONDS = "s"
    MINUTES = "minutes"
    HOURS = "hours"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes per second"
    PERCENT = "percent"
    RECORDS = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[V]):
    """`read` raises ValueError. The user sees its text in addition to `allowed`; it is empty if `allowed` is sufficient."""

    type: ConfigType
    allowed: str  # completes "must be ..."
    read: Callable[[str], V]
    show: Callable[[V], str] = str
    unit: Unit = Unit.NONE
    bounds: tuple[float, float] | None = None  # of a number, both inclusive


def parse_integer(text: str) -> int:
    """An integer in decimal digits. Raises ValueError, also for forms that only Python accepts: 1_000 and digits of other
    scripts."""
    if not _INTEGER.fullmatch(text):
        raise ValueError
    return int(text)


def int32(
    low: int,
    high: int = MAX_INT32,
    *,
    unit: Unit = Unit.NONE,
    also: int | None = None,
    type: ConfigType = ConfigType.INT,
) -> Kind[int]:
    """An integer from `low` to `high`, both inclusive, or `also`."""

    def read(text: str) -> int:
        value = parse_integer(text)
        if not low <= value <= high and value != also:
            raise ValueError
        return value

    or_also = "" if also is None else f", or {also}"
    return Kind(
        type=type, allowed=f"an integer between {low} and {high}{or_also}", read=read, unit=unit, bounds=(low, high)
    )


def int64(low: int, *, unit: Unit = Unit.NONE) -> Kind[int]:
    return int32(low, MAX_INT64, unit=unit, type=ConfigType.LONG)


def decimal(low: float, high: float = MAX_DOUBLE, *, unit: Unit = Unit.NONE) -> Kind[float]:
    """A number from `low` to `high`, both inclusive, with or without decimals; neither nan nor inf."""

    def read(text: str) -> float:
        value = float(text) if _DECIMAL.fullmatch(text) else None
        if value is None or not low <= value <= high:
            raise ValueError
        return value

    return Kind(
        type=ConfigType.DOUBLE,
        allowed=f"a number between {low:g} and {high:g}",
        read=read,
        unit=unit,
        bounds=(low, high),
    )


def one_of(*choices: str) -> Kind[str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return Kind(type=ConfigType.STRING, allowed=f"one of {', '.join(choices)}", read=read)


def some_of(*choices: str) -> Kind[tuple[str, ...]]:
    """A list of at least one of the choices."""

    def read(text: str) -> tuple[str, ...]:
        items = _read_list(text)
        if not set(items) <= set(choices):
            raise ValueError
        return items

    allowed = f"a comma-separated list of {', '.join(choices)}"
    return Kind(type=ConfigType.LIST, allowed=allowed, read=read, show=comma_list)


def matching(pattern: str, allowed: str, *, type: ConfigType = ConfigType.STRING) -> Kind[str]:
    """A string that matches `pattern` as a whole."""
    compiled = re.compile(pattern)

    def read(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError
        return text

    return Kind(type=type, allowed=allowed, read=read)


def optional(kind: Kind[V], *words: str) -> Kind[V | None]:
    """The same kind, where an empty text or one of `words` means "not set"."""

    def read(text: str) -> V | None:
        return None if text in ("", *words) else kind.read(text)

    def show(value: V | None) -> str:
        return "" if value is None else kind.show(value)

    allowed = ", or ".join((kind.allowed, *words))
    return Kind(type=kind.type, allowed=allowed, read=read, show=show, unit=kind.unit, bounds=kind.bounds)


def items_of(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list, without the empty ones."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def comma_list(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def _read_list(text: str) -> tuple[str, ...]:
    items = items_of(text)
    if not items:
        raise ValueError("the list is empty")
    return items


def _read_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


BOOLEAN: Final = Kind(
    type=ConfigType.BOOLEAN, allowed="true or false", read=_read_boolean, show=lambda value: str(value).lower()
)


class Secret(str):
    """A value that no log, error or description may contain."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[hidden]'"


TEXT: Final = Kind(type=ConfigType.STRING, allowed="a string", read=str)
PASSWORD: Final[Kind[str]] = Kind(type=ConfigType.PASSWORD, allowed="a password", read=Secret, show=repr)
LIST: Final = Kind(type=ConfigType.LIST, allowed="a comma-separated list", read=_read_list, show=comma_list)
RATIO: Final = decimal(0, 1)
COUNT: Final = int32(1)

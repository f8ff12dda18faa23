"""What a serializer and a deserializer are, and what the options of producers and consumers accept as one.

Both are synchronous, so that a record costs no task. One that needs a schema that is not loaded yet raises SchemaNotLoaded; the
client awaits the load and calls again (`writing`, `reading`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

from ..connection.errors import InvalidConfigError

MAX_LOADS: Final = 100  # of schemas, for one record: a schema, and those that it refers to


class Part(StrEnum):
    """Of a record."""

    KEY = "key"
    VALUE = "value"


class SchemaNotLoaded(Exception):
    """Await `load`, and call the serializer or deserializer again. `load` raises SchemaRegistryError."""

    def __init__(self, load: Callable[[], Awaitable[None]]) -> None:
        super().__init__("a schema is not loaded yet")
        self.load = load


@runtime_checkable
class Serializer(Protocol):
    def serialize(self, data: Any, topic: str, part: Part) -> bytes:
        """Raises SchemaNotLoaded, and anything else where `data` does not fit. `data` is never None: a tombstone stays one."""
        ...


@runtime_checkable
class Deserializer(Protocol):
    def deserialize(self, data: bytes, topic: str, part: Part) -> Any:
        """Raises SchemaNotLoaded, and anything else where `data` cannot be read."""
        ...


AnySerializer = Serializer | Callable[[Any], bytes] | str
AnyDeserializer = Deserializer | Callable[[bytes], Any] | str


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the application, for both directions."""

    call: Callable[[Any], Any]

    def serialize(self, data: Any, topic: str, part: Part) -> bytes:
        encoded = self.call(data)
        if isinstance(encoded, bytes):
            return encoded
        raise TypeError(f"the serializer returned {type(encoded).__name__} for a {part}, not bytes")

    def deserialize(self, data: bytes, topic: str, part: Part) -> Any:
        return self.call(data)


def serializer_of(given: AnySerializer | None, option: str) -> Serializer | None:
    """Raises InvalidConfigError."""
    if given is None or given == "bytes":
        return None
    if isinstance(given, str):
        return _named(given, option)
    if isinstance(given, Serializer) and not isinstance(given, type):
        return given
    if callable(given) and not isinstance(given, type):
        return Function(given)
    raise _not_usable(given, option)


def deserializer_of(given: AnyDeserializer | None, option: str) -> Deserializer | None:
    """Raises InvalidConfigError."""
    if given is None or given == "bytes":
        return None
    if isinstance(given, str):
        return _named(given, option)
    if isinstance(given, Deserializer) and not isinstance(given, type):
        return given
    if callable(given) and (not isinstance(given, type) or given in (str, bytes, int, float)):
        return Function(given)
    raise _not_usable(given, option)


class _Both(Serializer, Deserializer, Protocol): ...


def _named(name: str, option: str) -> _Both:
    from .json_format import Json  # Most clients have no serializer, and need none of these.
    from .text_format import Text

    formats: dict[str, Callable[[], _Both]] = {"json": Json, "text": Text}
    if name not in formats:
        raise InvalidConfigError(
            f'{option} is {name!r}; use "json", "text", "bytes", a format such as barnabas.Json(Order), or a function'
        )
    return formats[name]()


def _not_usable(given: object, option: str) -> InvalidConfigError:
    if isinstance(given, type):
        return InvalidConfigError(
            f"{option} is the class {given.__name__}: for JSON of this class, pass barnabas.Json({given.__name__});"
            f" to use a serializer class, pass an instance of it"
        )
    return InvalidConfigError(
        f"{option} is a {type(given).__name__}; it must be a format such as barnabas.Json(Order), a function of one argument,"
        f' "json" or "text"'
    )

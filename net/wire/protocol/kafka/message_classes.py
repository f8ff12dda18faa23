"""Makes the classes of Kafka's messages from their schemas: a msgspec.Struct each, whose fields have defaults. Pure.

A dataclass would be made in Python: six objects of a produce request and its answer, and two hundred of a broker's metadata.

Code that knows the message names its class in `bodies`, where type checkers see the fields. Code that works on any message (the
compiler, tests with random messages) asks here.
"""

from collections.abc import Callable
from functools import cache
from itertools import repeat
from typing import Any

import msgspec

from .schema import Struct, messages


def class_of(message: str) -> type[Any]:
    """The class of a message, such as "FetchRequest"; the classes of its structs are attributes of it."""
    return types_of(message)[message]


@cache
def types_of(message: str) -> dict[str, type]:
    """The classes of a message's structs by Kafka's names; the message's own is under its own name. Equality is by value."""
    body = messages()[message].body
    made: dict[str, type] = {}
    whole = _make_class(body, made)
    for name, nested in made.items():
        if nested is not whole:
            nested.__qualname__ = f"{message}.{name}"
            setattr(whole, name, nested)
    return made


def _make_class(body: Struct, made: dict[str, type]) -> type:
    if body.name in made:
        return made[body.name]
    fields = []
    for item in body.fields:
        default = item.default
        if item.struct is not None:
            nested = _make_class(item.struct, made)
            if default is ...:
                default = default_of(nested)
        kind = msgspec.field(default=default) if _is_plain(default) else msgspec.field(default_factory=_same(default))
        fields.append((item.name, Any, kind))
    made[body.name] = msgspec.defstruct(body.name, fields)
    return made[body.name]


@cache
def default_of(made: type) -> Any:
    """One object, which is never changed: code may compare with it by identity."""
    return made()


def _is_plain(default: Any) -> bool:
    return isinstance(default, int | float | str | bytes | tuple) or default is None


def _same(value: Any) -> Callable[[], Any]:
    """Returns a struct in its default state, which is never changed, at every call; without a call of Python for each field."""
    return repeat(value).__next__

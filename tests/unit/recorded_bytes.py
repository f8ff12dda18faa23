"""Bytes that a released version has written, beside what this version makes of the same values.

A recording is a JSON file of `name: hexadecimal`. Bytes on the wire and on disks never change under users, so a recording is only
ever extended: `RECORD=1 pytest FILE` adds the entries that it lacks, and refuses to change one.
"""

import json
import os
import types
import typing
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import structs

from barnabas.log.vocabulary.access.acls import Operation

BOUNDARY_INTS = (1, 127, 128, 255, 65_536, 2**31, 2**40, -1, -33, -(2**31), 0)  # each has another form in msgpack
# The last member of an enumeration when its messages were recorded, where it got others since then.
LAST_RECORDED: Final[Mapping[type, IntEnum]] = {Operation: Operation.IDEMPOTENT_WRITE}


class Samples:
    """Values of message classes, the same ones each time: `full` sets every field, `least` only those without a default.

    `added`, by the name of a class: fields that it got after the recording. `full` leaves them at their defaults.
    """

    def __init__(self, added: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> None:
        self._added = added
        self._count = 0

    def full(self, cls: Any) -> Any:
        hints = typing.get_type_hints(cls)
        later = self._added.get(cls.__name__, ())
        return cls(**{name: self._of(name, hints[name]) for name, _ in fields_of(cls) if name not in later})

    def least(self, cls: Any) -> Any:
        hints = typing.get_type_hints(cls)
        return cls(**{name: self._of(name, hints[name]) for name, is_required in fields_of(cls) if is_required})

    def _of(self, name: str, hint: Any) -> Any:
        self._count += 1
        if name == "records":
            return bytes(range(self._count % 200))
        arguments = typing.get_args(hint)
        match typing.get_origin(hint):
            case typing.Union | types.UnionType:
                return self._of(name, next(one for one in arguments if one is not type(None)))
            case origin if origin is tuple:
                return tuple(self._of(name, arguments[0]) for _ in range(2))
            case origin if origin is dict:
                return {f"key {number}": self._of(name, arguments[1]) for number in range(2)}
        return self._plain(hint)

    def _plain(self, hint: Any) -> Any:
        if hint is bool:
            return self._count % 2 == 0
        if hint is int:
            return BOUNDARY_INTS[self._count % len(BOUNDARY_INTS)]
        if hint is float:
            return self._count / 4
        if hint is str:
            return f"näme {self._count}" * (1 + self._count % 9)
        if hint is bytes:
            return bytes([self._count % 256]) * (self._count % 300)
        return LAST_RECORDED.get(hint, list(hint)[-1]) if issubclass(hint, IntEnum) else self.full(hint)


def fields_of(cls: Any) -> list[tuple[str, bool]]:
    """Names of the fields in order, and whether a value must be given."""
    return [(field.name, field.required) for field in structs.fields(cls)]


def assert_as_recorded(recording: Path, written: Mapping[str, bytes]) -> None:
    known: dict[str, str] = json.loads(recording.read_text()) if recording.exists() else {}
    now = {name: data.hex() for name, data in written.items()}
    if os.environ.get("RECORD"):
        assert {name: now[name] for name in known} == known
        recording.write_text(json.dumps(now, indent=0) + "\n")
        return
    assert now == known

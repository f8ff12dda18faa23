"""`DocumentTable`: reads the keys of one table, and collects what is wrong with them: each place, and what to write. Pure.

A reader asks for the keys that it knows, and calls `finish`, which reports all other keys. After a problem, the reader gets a
value of the right type and goes on: so all problems of a file are reported at once, and its result is not used.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from barnabas.net.base.near_words import did_you_mean

from .toml_lines import KeyPath, Place, places_of_keys

T = TypeVar("T")

_START: Final = Place(1, 1)
_TOML_PLACE: Final = re.compile(r"\(at line (\d+), column (\d+)\)")
_TOO_DEEP = "has hundreds of arrays or tables within each other: this is no pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong at a key, and what to do."""

    place: Place
    key: str
    message: str
    may_pass: bool = False  # nothing is wrong with the file: a server does not answer

    def text(self, file: str) -> str:
        where = f"{file}:{self.place.line}:{self.place.column}"
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


def parse_document(text: str, *, is_yaml: bool) -> "DocumentTable | Problem":
    """The whole document, or where the text stops to be one."""
    return _parse_yaml(text) if is_yaml else _parse_toml(text)


def _parse_toml(text: str) -> "DocumentTable | Problem":
    try:
        document, places = tomllib.loads(text), places_of_keys(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).partition(" (at ")[0]
        found = _TOML_PLACE.search(str(error))
        place = Place(int(found[1]), int(found[2])) if found else Place(text.count("\n") + 1, 1)  # at the end
        return Problem(
            place=place, key="", message=f"not valid TOML: {reason}; strings need quotes, see https://toml.io"
        )
    except RecursionError:
        return Problem(place=_START, key="", message=_TOO_DEEP)
    return DocumentTable(document, path=(), places=places, problems=[], words=Words())


def _parse_yaml(text: str) -> "DocumentTable | Problem":
    try:
        from .yaml_text import YamlError, read_yaml
    except ModuleNotFoundError:
        cure = "pip install 'barnabas[spark]', or write the file in TOML"
        return Problem(place=_START, key="", message=f"YAML needs PyYAML, which is not installed: {cure}")
    try:
        document = read_yaml(text)
    except YamlError as error:
        return Problem(place=error.place, key="", message=str(error))
    return DocumentTable(document.values, path=(), places=document.places, problems=[], words=Words(is_yaml=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How to write something in the language of the file."""

    is_yaml: bool = False

    def pair(self, name: str, value: str | Sequence[str] | Mapping[str, str]) -> str:
        """A key and its value, on one line."""
        return f"{name}: {self._shown(value)}" if self.is_yaml else f"{name} = {self._shown(value)}"

    def table(self, name: str) -> str:
        return f"{name}: with its keys below, indented" if self.is_yaml else f"[{name}] and its keys below"

    def array(self, name: str) -> str:
        return f"{name}: with a - before each" if self.is_yaml else f"[[{name}]] before each"

    def _shown(self, value: str | Sequence[str] | Mapping[str, str]) -> str:
        if isinstance(value, Mapping):
            pairs = ", ".join(self.pair(name, item) for name, item in value.items())
            return f"{{{pairs}}}" if self.is_yaml else f"{{ {pairs} }}"
        return json.dumps(value)


class DocumentTable:
    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        path: KeyPath,
        places: Mapping[KeyPath, Place],
        problems: list[Problem],
        words: Words,
    ) -> None:
        self._values = values
        self._path = path
        self._places = places
        self._known: list[str] = []
        self.problems = problems  # of the whole document
        self.words = words

    # --- values -------------------------------------------------------------------------------------------------------

    def text(self, name: str, default: str = "", *, choices: Sequence[str] = ()) -> str:
        """A string that is not empty, or the default."""
        found = self._value(name, str, "a string")
        if found is None:
            return default
        if choices and found not in choices:
            self.refuse(name, f"is {found!r}: write {' or '.join(choices)}{did_you_mean(found, choices)}")
            return default or choices[0]
        if not found.strip():
            self.refuse(name, "is empty: write a value, or remove the key")
            return default
        return found

    def required_text(self, name: str, example: str, *, choices: Sequence[str] = ()) -> str:
        if name not in self._values:
            self._known.append(name)
            self.refuse(name, f"is missing: add {self.words.pair(name, example)}")
            return choices[0] if choices else ""
        return self.text(name, choices=choices)

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        found = self._value(name, int, "an integer")
        if found is None:
            return default
        if not least <= found <= most:
            self.refuse(name, f"is {found}: must be an integer between {least} and {most}")
            return default
        return found

    def boolean(self, name: str, *, default: bool = False) -> bool:
        found = self._value(name, bool, "true or false")
        return default if found is None else found

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty without the key."""
        found = self._value(name, list, 'a list of strings, such as ["a", "b"]')
        if found is None:
            return ()
        if not found or not all(isinstance(item, str) and item for item in found):
            self.refuse(name, f'is {found!r}: write a list of strings, such as ["a", "b"]')
            return ()
        return tuple(found)

    def text_by_name(self, name: str) -> Mapping[str, str]:
        """A table of strings; empty without the key."""
        found = self._value(name, dict, "a table of strings")
        for key, value in (found or {}).items():
            if not isinstance(value, str):
                self.refuse(f"{name}.{key}", f'is {value!r}: write a string, such as "{value}"')
        return {key: value for key, value in (found or {}).items() if isinstance(value, str)}

    def table(self, name: str) -> "DocumentTable | None":
        found = self._value(name, dict, f"a table: write {self.words.table(name)}")
        return None if found is None else self._within(found, name)

    def tables(self, name: str) -> Iterator["DocumentTable"]:
        """The elements of an array of tables."""
        found = self._value(name, list, f"an array of tables: write {self.words.array(name)}")
        for index, item in enumerate(found or ()):
            if isinstance(item, dict):
                yield self._within(item, name, index)
            else:
                self.refuse(name, f"has the item {item!r}: each must be a table: write {self.words.array(name)}")

    def _value(self, name: str, kind: type[T], words: str) -> T | None:
        self._known.append(name)
        if name not in self._values:
            return None
        found = self._values[name]
        if type(found) is not kind:  # isinstance would take true for an integer
            self.refuse(name, f"is {found!r}: must be {words}")
            return None
        return found

    def _within(self, values: Mapping[str, Any], *names: str | int) -> "DocumentTable":
        return DocumentTable(
            values, path=(*self._path, *names), places=self._places, problems=self.problems, words=self.words
        )

    # --- problems -----------------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return name in self._values

    def names(self) -> list[str]:
        return list(self._values)

    def given(self, *names: str) -> list[str]:
        """Which of these keys are there; they are known from now on."""
        self._known.extend(names)
        return [name for name in names if name in self._values]

    def refuse(self, name: str, message: str, *, may_pass: bool = False) -> None:
        """A problem at a key of this table; "" is the table itself."""
        self.refuse_path((*self._path, *(part for part in name.split(".") if part)), message, may_pass=may_pass)

    def finish(self) -> None:
        """Report the keys that the reader has not asked for."""
        known = list(dict.fromkeys(self._known))
        for name in self._values:
            if name not in known:
                near = did_you_mean(name, known)
                self.refuse_key(name, f"unknown key{near}; the keys here are {', '.join(known)}")

    def refuse_key(self, name: str, message: str) -> None:
        """As `refuse`, for a name that may contain dots."""
        self.refuse_path((*self._path, name), message)

    def refuse_path(self, path: KeyPath, message: str, *, may_pass: bool = False) -> None:
        """At a place of the whole document."""
        shown = ".".join(f"[{part + 1}]" if isinstance(part, int) else part for part in path).replace(".[", "[")
        self.problems.append(Problem(place=self.place_of(path), key=shown, message=message, may_pass=may_pass))

    def place_of(self, path: KeyPath) -> Place:
        """Of the whole document. A key that is missing has the place of its table; an empty document has the start."""
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path, _START)

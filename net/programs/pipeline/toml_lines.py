"""`places_of_keys`: on which line and in which column of a TOML text each key stands, which `tomllib` does not report. Pure.

The text must be valid TOML: `tomllib` has read it before. So this scanner only has to find keys and skip values.
"""

import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

KeyPath = tuple[str | int, ...]  # an int is the index in an array


class Place(NamedTuple):
    """Of a key in a text; both count from 1."""

    line: int
    column: int


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_BASIC: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL: Final = re.compile(r"'[^'\n]*'")
_LONG_BASIC: Final = re.compile(r'"""(?:[^\\]|\\.)*?"""(?!")', re.DOTALL)
_LONG_LITERAL: Final = re.compile(r"'''.*?'''(?!')", re.DOTALL)
_PLAIN: Final = re.compile(r"[^,\]}#\n]*")  # numbers, booleans, dates
_BLANK: Final = re.compile(r"[ \t]*")
_BLANK_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")


def places_of_keys(text: str) -> Mapping[KeyPath, Place]:
    """Of each key, of each table's heading, and of each item of an array."""
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.places


class _Scanner:
    def __init__(self, text: str) -> None:
        self.places: dict[KeyPath, Place] = {}
        self._text = text
        self._at = 0
        self._line_ends = [found.start() for found in re.finditer("\n", text)]
        self._last: dict[KeyPath, int] = {}  # the newest index of each array of tables

    def scan(self) -> None:
        table: KeyPath = ()
        while self._more():
            if self._text[self._at] == "[":
                table = self._heading()
            else:
                self._pair(table)

    def _more(self) -> bool:
        self._skip(_BLANK_LINES)
        return self._at < len(self._text)

    def _heading(self) -> KeyPath:
        place = self._place()
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        names = self._key()
        self._at += 2 if is_array else 1
        table: KeyPath = ()
        for number, name in enumerate(names):
            table = (*table, name)
            self.places.setdefault(table, place)
            if is_array and number == len(names) - 1:
                self._last[table] = self._last.get(table, -1) + 1
            if table in self._last:
                table = (*table, self._last[table])
        self.places[table] = place
        return table

    def _pair(self, table: KeyPath) -> None:
        place = self._place()
        path = table
        for name in self._key():
            path = (*path, name)
            self.places.setdefault(path, place)
        self._at += 1  # the equals sign
        self._value(path)

    def _key(self) -> list[str]:
        """A dotted key, with the blanks behind it."""
        names = []
        while True:
            self._skip(_BLANK)
            names.append(self._name())
            self._skip(_BLANK)
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _name(self) -> str:
        kind = {'"': _BASIC, "'": _LITERAL}.get(self._text[self._at], _BARE)
        found = self._skip(kind)
        return found if kind is _BARE else str(tomllib.loads(f"name = {found}")["name"])

    def _value(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        match self._text[self._at]:
            case "{":
                self._members("}", path)
            case "[":
                self._members("]", path)
            case '"':
                self._skip(_LONG_BASIC if self._text.startswith('"""', self._at) else _BASIC)
            case "'":
                self._skip(_LONG_LITERAL if self._text.startswith("'''", self._at) else _LITERAL)
            case _:
                self._skip(_PLAIN)

    def _members(self, end: str, path: KeyPath) -> None:
        """An inline table or an array, which may stand on several lines."""
        self._at += 1
        index = 0
        while True:
            self._skip(_BLANK_LINES)
            if self._text[self._at] == end:
                self._at += 1
                return
            if self._text[self._at] == ",":
                self._at += 1
            elif end == "}":
                self._pair(path)
            else:
                self.places[*path, index] = self._place()
                self._value((*path, index))
                index += 1

    def _skip(self, pattern: "re.Pattern[str]") -> str:
        found = pattern.match(self._text, self._at)
        assert found is not None, f"the text was valid TOML: {self._text[self._at : self._at + 20]!r}"
        self._at = found.end()
        return found[0]

    def _place(self) -> Place:
        before = bisect_left(self._line_ends, self._at)
        start = self._line_ends[before - 1] + 1 if before else 0
        return Place(before + 1, self._at - start + 1)

"""Values of PostgreSQL's types as JSON: from the text that the server writes, by type.

Integers and finite floats are JSON numbers, with the digits of the server; booleans are booleans; arrays are arrays; bytea is
base64. Everything else is a string: numeric (no digit is lost), timestamps (ISO 8601), uuid, json (the document as text), enums
and types that Barnabas does not know. These are Debezium's modes `decimal.handling.mode=string` and
`time.precision.mode=isostring`.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import Final

ToJson = Callable[[str], str]
_NUMBERS: Final = ("int2", "int4", "int8", "oid", "xid", "cid")
_FLOATS: Final = ("float4", "float8")
_NOT_FINITE: Final = frozenset(("NaN", "Infinity", "-Infinity"))
_TEXT_OID: Final = 25
MAX_TYPES: Final = 10_000  # of one database: more than any schema has; a bound for the memory of this table


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """A row of pg_type, as far as values need it."""

    oid: int
    name: str
    element_oid: int = 0  # of an array; 0: no array
    base_oid: int = 0  # of a domain; 0: no domain
    delimiter: str = ","


class Types:
    """The types of one database, by oid."""

    def __init__(self, rows: Mapping[int, TypeRow] | None = None) -> None:
        self._rows = dict(rows or {})
        self._converters: dict[int, ToJson] = {}
        self._announced: dict[int, str] = {}  # names, as the stream has them

    def announce(self, oid: int, name: str) -> None:
        """What the server says of a type in the stream, which may have types that the catalog has not any more."""
        assert len(self._announced) < MAX_TYPES
        self._announced[oid] = name

    def add_gone(self, oid: int) -> TypeRow:
        """A type that the catalog does not have, as it was announced: of a domain, the name is that of its base, and an array's
        begins with an underscore."""
        name = self._announced.get(oid, "text")
        row = TypeRow(oid=oid, name=name, element_oid=_TEXT_OID if name.startswith("_") else 0)
        self.add(row)
        return row

    def add(self, row: TypeRow) -> None:
        assert len(self._rows) < MAX_TYPES
        self._rows[row.oid] = row
        self._converters.clear()

    def knows(self, oid: int) -> bool:
        return oid in self._rows

    def name(self, oid: int) -> str:
        """The name of the type; of a domain, that of its base."""
        row = self._rows.get(oid)
        if row is None:
            return ""
        return self.name(row.base_oid) if row.base_oid else row.name

    def own_name(self, oid: int) -> str:
        """The name of the type; "" if it is not known."""
        row = self._rows.get(oid)
        return "" if row is None else row.name

    def converter(self, oid: int) -> ToJson:
        """What turns a value's text into JSON."""
        found = self._converters.get(oid)
        if found is None:
            found = self._converters[oid] = self._new_converter(oid)
        return found

    def _new_converter(self, oid: int) -> ToJson:
        row = self._rows.get(oid)
        if row is None:
            return quoted
        if row.base_oid:
            return self.converter(row.base_oid)
        if row.element_oid:
            element, delimiter = self.converter(row.element_oid), row.delimiter
            return lambda text: _array(text, element, delimiter)
        if row.name in _NUMBERS:
            return str
        if row.name in _FLOATS:
            return _float
        return _BY_NAME.get(row.name, quoted)


def _float(text: str) -> str:
    return f'"{text}"' if text in _NOT_FINITE else text


def _boolean(text: str) -> str:
    return "true" if text == "t" else "false"


def _bytes(text: str) -> str:
    """From `\\x0a1b`, the format that connections of Barnabas ask for."""
    return f'"{base64.b64encode(bytes.fromhex(text[2:])).decode()}"'


def _timestamp(text: str) -> str:
    return f'"{text.replace(" ", "T", 1)}"' if text[0].isdigit() else quoted(text)  # "infinity" stays


def _timestamp_with_zone(text: str) -> str:
    """Connections of Barnabas use UTC."""
    if not text[0].isdigit():
        return quoted(text)
    return _timestamp(text.replace("+00", "Z", 1))


_BY_NAME: Final[dict[str, ToJson]] = {
    "bool": _boolean,
    "bytea": _bytes,
    "timestamp": _timestamp,
    "timestamptz": _timestamp_with_zone,
}


# --- arrays ---------------------------------------------------------------------------------------------------------------


def _array(text: str, element: ToJson, delimiter: str) -> str:
    """An array's text (`{1,NULL,"a b"}`) as JSON. Bounds (`[2:3]={...}`) are left out."""
    start = text.index("{")
    parts: list[str] = []
    at = start
    while at < len(text):
        at = _array_item(text, at, element, delimiter, parts)
    return "".join(parts)


def _array_item(text: str, at: int, element: ToJson, delimiter: str, parts: list[str]) -> int:
    """Append the JSON of the brace, delimiter or value at this position; returns the position behind it."""
    sign = text[at]
    if sign == "{":
        parts.append("[")
        return at + 1
    if sign == "}":
        parts.append("]")
        return at + 1
    if sign == delimiter:
        parts.append(",")
        return at + 1
    if sign == '"':
        value, at = _quoted_item(text, at + 1)
        parts.append(element(value))
        return at
    end = at
    while text[end] not in (delimiter, "}"):
        end += 1
    word = text[at:end]
    parts.append("null" if word == "NULL" else element(word))
    return end


def _quoted_item(text: str, at: int) -> tuple[str, int]:
    letters: list[str] = []
    while text[at] != '"':
        if text[at] == "\\":
            at += 1
        letters.append(text[at])
        at += 1
    return "".join(letters), at + 1

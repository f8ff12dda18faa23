"""A key that a person types as JSON, as the bytes that a serializer with a schema registry writes for it.

The JSON is what the console shows of a decoded key: bytes are base64, times are ISO 8601, a value of a union stands for itself.
"""

import json
import re
from base64 import b64decode
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from io import BytesIO
from typing import Any, Final

from barnabas.net.client.arrow.extra import require
from barnabas.net.client.serde.avro_format import AvroReader, is_plain_bytes, parsed_with_references
from barnabas.net.client.serde.registry import Schema, SchemaRegistry

MAX_TEXT: Final = 16_384  # characters of a typed key; more than a URL may have
MAX_DEPTH: Final = 32  # of objects and lists in one another
MAX_STEPS: Final = 10_000  # values that are tried, and fields of records; each type of a union is a try
SYMBOLS_A_STEP: Final = 100  # of an enum, which are looked through for each value
MAX_DIGITS: Final = 10_000  # of a decimal: an exponent of nine characters stands for a number of a gigabyte
MAX_KEY_BYTES: Final = 256 * 1024  # defaults of a schema may stand within one another
_TIMES: Final[dict[str, tuple[str, type[date] | type[time]]]] = {  # by logical type: its type, and that of Python
    "date": ("int", date),
    "time-millis": ("int", time),
    "time-micros": ("long", time),
    "timestamp-millis": ("long", datetime),
    "timestamp-micros": ("long", datetime),
    "local-timestamp-millis": ("long", datetime),
    "local-timestamp-micros": ("long", datetime),
}
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"')
_NUMBERS: Final = ("int", "long", "float", "double")
_RECORDS: Final = ("record", "error")
_NAMED: Final = (*_RECORDS, "enum", "fixed")
_CONTAINERS: Final = (*_RECORDS, "array", "map")


class _BoundedBytes(BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > MAX_KEY_BYTES:
            raise ValueError(f"it has more than {MAX_KEY_BYTES} bytes")
        return super().write(data)


def parsed(text: str) -> Any:
    """Raises ValueError."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has more than {MAX_TEXT} characters")
    depth = 0
    for character in _STRINGS.sub("", text):  # a bracket in a string would count as the end of a list
        depth += (character in "[{") - (character in "]}")
        if depth > MAX_DEPTH:
            raise ValueError(f"it has more than {MAX_DEPTH} objects and lists in one another")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f'it is not valid JSON ({error}); text needs quotes: "{text[:20]}"') from None


def avro_key(registry: SchemaRegistry, schema: Schema, tree: Any) -> bytes:
    """Without the id of the schema. Raises SchemaNotLoaded, ValueError, MissingExtraError."""
    avro = require("fastavro", extra="schemas", feature="Avro")
    found, named = parsed_with_references(registry, schema)
    AvroReader(found, named)  # refuses a schema that is endless
    try:
        value = _Typed(avro, named).value(found, tree, "the key")
    except RecursionError:
        raise ValueError("types of its schema, or defaults, are too deep in one another") from None
    if is_plain_bytes(found):
        return bytes(value)
    out = _BoundedBytes()
    # In Python, unlike the compiled one, it writes piece by piece, so that what grows too large is noticed.
    write = require("fastavro._write_py", extra="schemas", feature="Avro").schemaless_writer
    write(out, found, value, strict_allow_default=True)
    return out.getvalue()


class _Typed:
    """Gives JSON the types of a schema, as fastavro takes them."""

    def __init__(self, avro: Any, named: dict[str, Any]) -> None:
        self._avro = avro
        self._named = named
        self._left = MAX_STEPS

    def value(self, schema: Any, tree: Any, where: str) -> Any:
        """`where`: for people. Raises ValueError."""
        self._tried()
        if isinstance(schema, list):
            return self._of_union(schema, tree, where)
        schema = self._resolved(schema)
        kind = schema["type"]
        if kind in _RECORDS:
            return self._of_record(schema, tree, where)
        if kind == "array" and isinstance(tree, list):
            return [self.value(schema["items"], item, f"{where}[{number}]") for number, item in enumerate(tree)]
        if kind == "map" and isinstance(tree, dict):
            return {name: self.value(schema["values"], item, f"{where}.{name}") for name, item in tree.items()}
        if isinstance(kind, list):
            return self._of_union(kind, tree, where)
        return self._plain(schema, tree, where)

    def _tried(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"more than {MAX_STEPS} values of its schema must be tried")

    def _resolved(self, schema: Any) -> Any:
        """A dict whose type is that of a value, or a union."""
        while True:
            if isinstance(schema, str):
                schema = self._named.get(schema, {"type": schema})
            kind = schema["type"]
            if isinstance(kind, list) or (isinstance(kind, str) and kind not in self._named):
                return schema
            self._tried()
            schema = kind

    def _of_record(self, schema: Any, tree: Any, where: str) -> dict[str, Any]:
        if not isinstance(tree, dict):
            raise ValueError(f"{where} must be an object with the fields of {schema['name']}")
        self._tried(len(schema["fields"]))
        fields = {field["name"]: field for field in schema["fields"]}
        unknown = [name for name in tree if name not in fields]
        missing = [name for name, field in fields.items() if name not in tree and "default" not in field]
        if unknown or missing:
            told = [f"has no field {', '.join(unknown)}"] * bool(unknown) + [f"needs {', '.join(missing)}"] * bool(
                missing
            )
            raise ValueError(f"{where}: {schema['name']} {' and '.join(told)}")
        given = {name: self.value(fields[name]["type"], item, f"{where}.{name}") for name, item in tree.items()}
        return given | {
            name: self._default(field["type"], field["default"]) for name, field in fields.items() if name not in tree
        }

    def _default(self, schema: Any, tree: Any) -> Any:
        """A default of the schema. fastavro would look for it while it writes: endlessly, if it contains itself."""
        self._tried()
        if isinstance(schema, list):
            return self._default_of_union(schema, tree)
        schema = self._resolved(schema)
        kind = schema["type"]
        if isinstance(kind, list):
            return self._default_of_union(kind, tree)
        if kind in _RECORDS and isinstance(tree, dict):
            return {
                field["name"]: self._default(field["type"], tree.get(field["name"], field.get("default")))
                for field in schema["fields"]
            }
        if kind == "array" and isinstance(tree, list):
            return [self._default(schema["items"], item) for item in tree]
        if kind == "map" and isinstance(tree, dict):
            return {name: self._default(schema["values"], item) for name, item in tree.items()}
        if kind in _CONTAINERS or isinstance(tree, dict | list):
            raise ValueError(f"its schema has a default that is not of type {kind}")
        return tree.encode("latin-1") if kind in ("bytes", "fixed") and isinstance(tree, str) else tree

    def _default_of_union(self, schemas: list[Any], tree: Any) -> Any:
        """It is of the first type, or of any in newer versions of Avro."""
        for schema in schemas:
            try:
                found = self._default(schema, tree)
                return (_name_of(schema), found) if isinstance(found, dict | list | bytes) else found
            except ValueError:
                if self._left < 0:
                    raise
        raise ValueError("its schema has a default that is of no type of its union")

    def _of_union(self, schemas: list[Any], tree: Any, where: str) -> Any:
        """The first type that fits. What has parts has its name with it: fastavro would look for it again, in all ways."""
        for schema in schemas:
            try:
                found = self.value(schema, tree, where)
            except ValueError:
                if self._left < 0:
                    raise
            else:
                return (_name_of(schema), found) if isinstance(found, dict | list | bytes) else found
        raise ValueError(f"{where} is none of the {len(schemas)} types that it may be")

    def _plain(self, schema: Any, tree: Any, where: str) -> Any:
        kind, logical = schema["type"], _logical(schema)
        self._tried(len(schema.get("symbols", ())) // SYMBOLS_A_STEP)
        try:
            found = _converted(schema, tree)
            fits = kind not in _CONTAINERS and self._fits(schema, found)
        except (ValueError, InvalidOperation, OverflowError):
            fits = False
        if not fits or (kind in _NUMBERS and isinstance(tree, bool)):
            raise ValueError(f"{where} must be {_told(kind, logical)}, not {_shown(tree)}")
        return found

    def _fits(self, schema: Any, found: Any) -> bool:
        if schema["type"] == "enum":  # fastavro would check all symbols of the schema again
            return isinstance(found, str) and found in schema["symbols"]
        return bool(self._avro.validate(found, {**schema}, raise_errors=False))


def _logical(schema: Any) -> str:
    """Its logical type, or "": one that does not suit its type counts for nothing, as the specification of Avro says."""
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return "decimal" if kind in ("bytes", "fixed") and "precision" in schema else ""
    if logical == "uuid":
        return "uuid" if kind == "string" else ""
    return str(logical) if isinstance(logical, str) and _TIMES.get(logical, ("",))[0] == kind else ""


def _converted(schema: Any, tree: Any) -> Any:
    """Raises ValueError, InvalidOperation, OverflowError."""
    kind, logical = schema["type"], _logical(schema)
    if schema.get("size", 0) > MAX_KEY_BYTES:
        raise ValueError("its size is larger than a key")
    if not isinstance(tree, str):
        return tree
    if logical == "decimal":
        return _decimal(schema, tree)
    if logical in _TIMES:
        return _moment(logical, tree)
    return b64decode(tree, validate=True) if kind in ("bytes", "fixed") else tree


def _decimal(schema: Any, text: str) -> Decimal:
    found = Decimal(text)
    _, digits, exponent = found.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("it is no number")
    if len(digits) + exponent + schema.get("scale", 0) > min(schema["precision"], MAX_DIGITS):
        raise ValueError("it has more digits than the schema allows")
    return found


def _moment(logical: str, text: str) -> date | time:
    """A timestamp without a zone is one of UTC, not of the zone of this machine; other times have no zone."""
    found = _TIMES[logical][1].fromisoformat(text)
    zone = getattr(found, "tzinfo", None)
    if isinstance(found, datetime) and logical.startswith("timestamp"):
        return found if zone else found.replace(tzinfo=UTC)
    if zone:
        raise ValueError("it has a zone")
    return found


def _name_of(schema: Any) -> str:
    """Of a type in a union."""
    kind = schema if isinstance(schema, str) else schema["type"]
    return str(schema["name"] if kind in _NAMED else kind)


def _shown(tree: Any) -> str:
    if isinstance(tree, dict | list):
        return "an object" if isinstance(tree, dict) else "a list"
    return json.dumps(tree)[:60]


def _told(kind: str, logical: str) -> str:
    if logical in _TIMES:
        has_zone = logical.startswith("timestamp")
        return f"a {logical} as ISO 8601" + ("" if has_zone or logical == "date" else " without a zone")
    if logical:
        return f"a {logical}"
    return f"{kind} as base64" if kind in ("bytes", "fixed") else f"of type {kind}"

"""A key that a person types as JSON, as the bytes that a serializer with a schema registry writes for it.

The JSON is what the console shows of a decoded key: bytes are base64, times are ISO 8601, a value of a union stands for itself.
"""

import json
from base64 import b64decode
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from io import BytesIO
from typing import Any, Final

from barnabas.net.client.arrow.extra import require
from barnabas.net.client.serde.avro_format import AvroReader
from barnabas.net.client.serde.registered import with_references
from barnabas.net.client.serde.registry import Schema, SchemaRegistry

MAX_TEXT: Final = 16_384  # characters of a typed key; more than a URL may have
MAX_DEPTH: Final = 32  # of objects and lists in one another
MAX_STEPS: Final = 10_000  # values that are tried; each type of a union is a try
_TIMES: Final[dict[str, type[date] | type[time]]] = {
    "date": date,
    "time-millis": time,
    "time-micros": time,
    "timestamp-millis": datetime,
    "timestamp-micros": datetime,
    "local-timestamp-millis": datetime,
    "local-timestamp-micros": datetime,
}
_NUMBERS: Final = ("int", "long", "float", "double")


def parsed(text: str) -> Any:
    """Raises ValueError."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has more than {MAX_TEXT} characters")
    depth = 0
    for character in text:  # Brackets in a text count too: they only make it stricter.
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
    named: dict[str, Any] = {}
    for _, item in with_references(registry, schema):
        avro.parse_schema(_tree(item.text), named_schemas=named)
    found = avro.parse_schema(_tree(schema.text), named_schemas=named)
    AvroReader(found, named)  # refuses a schema that is endless
    out = BytesIO()
    avro.schemaless_writer(out, found, _Typed(avro, named).value(found, tree, "the key"), strict_allow_default=True)
    return out.getvalue()


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # the name of a type


class _Typed:
    """Gives JSON the types of a schema, as fastavro takes them."""

    def __init__(self, avro: Any, named: dict[str, Any]) -> None:
        self._avro = avro
        self._named = named
        self._left = MAX_STEPS

    def value(self, schema: Any, tree: Any, where: str) -> Any:
        """`where`: for people. Raises ValueError."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {MAX_STEPS} values of its schema must be tried")
        if isinstance(schema, list):
            return self._of_union(schema, tree, where)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.value(kind, tree, where)
        if kind in ("record", "error"):
            return self._of_record(schema, tree, where)
        if kind == "array" and isinstance(tree, list):
            return [self.value(schema["items"], item, f"{where}[{number}]") for number, item in enumerate(tree)]
        if kind == "map" and isinstance(tree, dict):
            return {name: self.value(schema["values"], item, f"{where}.{name}") for name, item in tree.items()}
        if kind in self._named:
            return self.value(self._named[kind], tree, where)
        return self._plain(schema, tree, where)

    def _of_record(self, schema: Any, tree: Any, where: str) -> dict[str, Any]:
        if not isinstance(tree, dict):
            raise ValueError(f"{where} must be an object with the fields of {schema['name']}")
        fields = {field["name"]: field for field in schema["fields"]}
        unknown = [name for name in tree if name not in fields]
        missing = [name for name, field in fields.items() if name not in tree and "default" not in field]
        if unknown or missing:
            told = [f"has no field {', '.join(unknown)}"] * bool(unknown) + [f"needs {', '.join(missing)}"] * bool(
                missing
            )
            raise ValueError(f"{where}: {schema['name']} {' and '.join(told)}")
        return {name: self.value(fields[name]["type"], item, f"{where}.{name}") for name, item in tree.items()}

    def _of_union(self, schemas: list[Any], tree: Any, where: str) -> Any:
        """The first type that fits."""
        for schema in schemas:
            try:
                return self.value(schema, tree, where)
            except ValueError:
                if self._left < 0:
                    raise
        raise ValueError(f"{where} is none of the {len(schemas)} types that it may be")

    def _plain(self, schema: Any, tree: Any, where: str) -> Any:
        logical = schema.get("logicalType", "")
        kind = schema["type"]
        try:
            if logical == "decimal" and isinstance(tree, str):
                found: Any = Decimal(tree)
            elif logical in _TIMES and isinstance(tree, str):
                found = _TIMES[logical].fromisoformat(tree)
            elif kind in ("bytes", "fixed") and isinstance(tree, str):
                found = b64decode(tree, validate=True)
            else:
                found = tree
            fits = self._avro.validate(found, {**schema}, raise_errors=False) and not (
                kind in _NUMBERS and isinstance(tree, bool)
            )
        except (ValueError, InvalidOperation, OverflowError):
            fits = False
        if not fits:
            raise ValueError(f"{where} must be {_told(kind, logical)}, not {json.dumps(tree)[:60]}")
        return found


def _told(kind: str, logical: str) -> str:
    if logical in _TIMES:
        return f"a {logical} as ISO 8601"
    if logical:
        return f"a {logical}"
    return f"{kind} as base64" if kind in ("bytes", "fixed") else f"of type {kind}"

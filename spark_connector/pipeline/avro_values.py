"""Avro values: the columns of a schema, and values as those columns take them. By fastavro.

Spark's own `from_avro` needs a jar. Types: numbers become those of Spark; `enum`, `uuid` and times of day become strings, `fixed`
becomes binary; a union may have one type besides null, or several of numbers, of which the widest is the column's.
"""

import datetime
import json
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final, TypeVar
from uuid import UUID

from pyspark.sql import types as T

from barnabas.net.client.arrow.extra import require
from barnabas.net.client.connection.loop_thread import loop_thread
from barnabas.net.client.serde.avro_format import Avro, AvroReader
from barnabas.net.client.serde.registry import RegistryAccess
from barnabas.net.client.serde.serdes import MAX_LOADS, Part, SchemaNotLoaded

from .faults import PipelineFault

Convert = Callable[[Any], Any]
Read = Callable[[bytes], dict[str, Any]]
R = TypeVar("R")

MAX_DEPTH: Final = 64  # of records within records
MAX_FIELDS: Final = 10_000  # of a schema, with those of each place of a named record
MAX_DIGITS: Final = 38  # of Spark's decimals
_PLAIN: Final[Mapping[str, T.DataType]] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "string": T.StringType(),
    "fixed": T.BinaryType(),
    "enum": T.StringType(),
}
_LOGICAL: Final[Mapping[str, T.DataType]] = {
    "int-date": T.DateType(),
    "int-time-millis": T.StringType(),
    "long-time-micros": T.StringType(),
    "long-timestamp-millis": T.TimestampType(),
    "long-timestamp-micros": T.TimestampType(),
    "long-local-timestamp-millis": T.TimestampNTZType(),
    "long-local-timestamp-micros": T.TimestampNTZType(),
    "string-uuid": T.StringType(),
}
_WIDER: Final = ("int", "long", "float", "double")


class Columns:
    """The columns of a parsed schema: `type` for Spark, `convert` from what fastavro reads to what Arrow takes."""

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        """`named`: the schemas that names stand for. Raises PipelineFault."""
        self._named = named
        self._fields = 0
        found, self.convert = self._of(schema, ())
        if not isinstance(found, T.StructType):
            raise PipelineFault("the Avro schema is no record: only the fields of a record can become columns")
        self.type = found

    def _of(self, schema: Any, path: tuple[str, ...]) -> tuple[T.DataType, Convert]:
        if len(path) > MAX_DEPTH:
            raise PipelineFault(f"the Avro schema has more than {MAX_DEPTH} types within one another")
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            return self._of(self._named[schema], path) if schema in self._named else _simple({}, schema, path)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._of(kind, path)
        match kind:
            case "record" | "error":
                return self._record(schema, path)
            case "array":
                item, convert = self._of(schema["items"], (*path, "[]"))
                return T.ArrayType(item), lambda found: [convert(one) for one in found]
            case "map":
                item, convert = self._of(schema["values"], (*path, "{}"))
                return T.MapType(T.StringType(), item), lambda found: [
                    (key, convert(one)) for key, one in found.items()
                ]
        if kind in self._named:
            return self._of(self._named[kind], path)
        return _simple(schema, kind, path)

    def _record(self, schema: Any, path: tuple[str, ...]) -> tuple[T.DataType, Convert]:
        name = schema["name"]
        if name in path:
            raise PipelineFault(
                f"the Avro type {name} contains itself, which columns cannot: use another reader schema"
            )
        self._fields += len(schema["fields"])
        if self._fields > MAX_FIELDS:
            raise PipelineFault(f"the Avro schema has more than {MAX_FIELDS} fields: use a smaller reader schema")
        fields, converts = [], {}
        for field in schema["fields"]:
            kind, converts[field["name"]] = self._of(field["type"], (*path, name))
            fields.append(T.StructField(field["name"], kind))
        # What a default of a field around this record leaves out: fastavro takes that default as it is.
        defaults = {field["name"]: field["default"] for field in schema["fields"] if "default" in field}

        def row(found: Any) -> dict[str, Any]:
            given = found if converts.keys() <= found.keys() else {**defaults, **found}
            return {key: convert(given[key]) for key, convert in converts.items()}

        return T.StructType(fields), row

    def _union(self, schema: list[Any], path: tuple[str, ...]) -> tuple[T.DataType, Convert]:
        others = [one for one in schema if one != "null"]
        if len(others) > 1 and all(one in _WIDER for one in others):
            widest = max(others, key=_WIDER.index)
            if widest in ("float", "double"):  # a double has all digits of an int
                return _PLAIN["double"], _or_null(float)
            return _PLAIN[widest], _or_null(int)
        if len(others) != 1:
            where = ".".join(path) or "the schema"
            raise PipelineFault(
                f"{where} has the union {json.dumps(schema)}, which is no column: use one type besides null in the reader schema"
            )
        kind, convert = self._of(others[0], path)
        return kind, _or_null(convert)


def _simple(schema: Any, kind: str, path: tuple[str, ...]) -> tuple[T.DataType, Convert]:
    """Values come as fastavro reads the type of the writer, which may have another logical type or none; defaults come as in
    JSON."""
    if kind == "null":
        where = ".".join(path) or "the schema"
        raise PipelineFault(
            f"{where} has a type that is always null, which is no column: leave it out in the reader schema"
        )
    logical = schema.get("logicalType", "")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema)
    found = _LOGICAL.get(f"{kind}-{logical}", _PLAIN[kind])
    if logical in ("timestamp-millis", "local-timestamp-millis") and kind == "long":
        # For Arrow, an int is in microseconds.
        return found, lambda given: given * 1_000 if isinstance(given, int) else given
    if logical in ("time-millis", "time-micros") and isinstance(found, T.StringType) and kind in ("int", "long"):
        unit = datetime.timedelta(milliseconds=1) if kind == "int" else datetime.timedelta(microseconds=1)
        return found, lambda given: str(_time_of(given * unit) if isinstance(given, int) else given)
    if isinstance(found, T.BinaryType):
        return found, lambda given: given.encode("latin-1") if isinstance(given, str) else given
    if kind == "string":
        return found, lambda given: str(given) if isinstance(given, UUID) else given
    return found, _same


def _decimal(schema: Any) -> tuple[T.DataType, Convert]:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if precision > MAX_DIGITS:
        raise PipelineFault(f"a decimal has {precision} digits; Spark has {MAX_DIGITS} at most")
    if precision < 1:
        raise PipelineFault("a decimal of the Avro schema has no precision: say how many digits it has")
    exact = Context(prec=MAX_DIGITS)

    def convert(given: Any) -> Any:
        raw = given.encode("latin-1") if isinstance(given, str) else given
        if not isinstance(raw, bytes):
            return raw
        return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, exact)

    return T.DecimalType(precision, scale), convert


def _time_of(since_midnight: datetime.timedelta) -> datetime.time:
    """Raises ValueError."""
    if not datetime.timedelta(0) <= since_midnight < datetime.timedelta(days=1):
        raise ValueError(f"{since_midnight} is no time of day")
    return (datetime.datetime.min + since_midnight).time()


def _same(found: Any) -> Any:
    return found


def _or_null(convert: Convert) -> Convert:
    return lambda found: None if found is None else convert(found)


class AvroValues:
    """Values of one schema. `registry`: values begin with the id of the schema that they were written with, which is looked up
    there; without one, they were written with `schema`. Made by the driver, and again by each worker."""

    def __init__(self, schema: str, registry: RegistryAccess | None = None) -> None:
        """`schema`: its text. Raises PipelineFault, MissingExtraError."""
        library = require("fastavro", extra="schemas", feature="a pipeline of Avro values")
        named: dict[str, Any] = {}
        try:
            parsed = library.parse_schema(json.loads(schema), named_schemas=named)
        except Exception as error:
            raise PipelineFault(f"the Avro schema cannot be used: {error}") from error
        self._columns = Columns(parsed, named)
        self.type = self._columns.type
        if registry is not None:
            reader = Avro(registry.registry(auto_register=False), schema)
            self._decode: Read = lambda data: loaded(lambda: reader.deserialize(data, "", Part.VALUE))
        else:
            own = _reader(parsed, named)
            self._decode = lambda data: own.read(data, 0)

    def read(self, data: bytes) -> dict[str, Any]:
        """Raises SchemaRegistryUnavailableError, and any other exception where the value does not fit."""
        row: dict[str, Any] = self._columns.convert(self._decode(data))
        return row


def latest_schema(registry: RegistryAccess, subject: str, kind: str = "AVRO") -> str:
    """`kind`: "AVRO" or "JSON". Raises PipelineFault, SchemaRegistryError."""
    found = loop_thread().call(registry.registry(auto_register=False).latest(subject))
    if found.kind != kind:
        raise PipelineFault(f"the newest schema of {subject} is {found.kind}, not {kind}")
    if found.references:
        names = ", ".join(reference.name for reference in found.references)
        raise PipelineFault(
            f"the newest schema of {subject} refers to {names}: give a whole reader schema, value.schema = FILE"
        )
    text: str = found.text
    return text


def _reader(parsed: Any, named: Mapping[str, Any]) -> AvroReader:
    """Raises PipelineFault."""
    try:
        return AvroReader(parsed, named)
    except ValueError as error:
        raise PipelineFault(f"the Avro schema cannot be used: {error}") from error


def loaded(decode: Callable[[], R]) -> R:
    """The result, after the schemas that it needs were loaded. Raises SchemaRegistryError."""
    for _ in range(MAX_LOADS):
        try:
            return decode()
        except SchemaNotLoaded as missing:
            loop_thread().call(_load(missing))
    raise ValueError(f"the value needs more than {MAX_LOADS} schemas")


async def _load(missing: SchemaNotLoaded) -> None:
    await missing.load()

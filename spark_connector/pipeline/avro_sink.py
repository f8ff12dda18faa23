"""Rows as Avro in the wire format of Confluent's serializers, for the topic of a sink, by Python workers."""

import json
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from barnabas.net.client.arrow.extra import require
from barnabas.net.client.connection.errors import InvalidConfigError
from barnabas.net.client.serde.avro_format import Avro
from barnabas.net.client.serde.registry import RegistryAccess
from barnabas.net.client.serde.serdes import Part

from .avro_values import Convert, loaded
from .faults import PipelineFault
from .values import quoted

_WRITERS: Final = 16  # that a worker keeps
_PLAIN: Final[dict[type[T.DataType], Any]] = {
    T.BooleanType: "boolean",
    T.ByteType: "int",
    T.ShortType: "int",
    T.IntegerType: "int",
    T.LongType: "long",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.BinaryType: "bytes",
    T.DateType: {"type": "int", "logicalType": "date"},
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def schema_of(columns: T.StructType, name: str) -> str:
    """The schema of a record with these columns, each of which may be null. Raises PipelineFault for types that Avro lacks."""
    return json.dumps(_record(columns, name))


def record_name(topic: str) -> str:
    """A name of a record that Avro takes."""
    found = "".join(letter if letter.isalnum() else "_" for letter in topic)
    return f"_{found}" if found[:1].isdigit() else found


def _record(columns: T.StructType, name: str) -> dict[str, Any]:
    fields = []
    for field in columns:
        if not field.name.isidentifier() or not field.name.isascii():
            raise PipelineFault(
                f"the column {field.name} has no name that Avro takes: rename it in the last step, with letters, digits and _"
            )
        fields.append(
            {"name": field.name, "type": ["null", _type(field.dataType, f"{name}_{field.name}")], "default": None}
        )
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: T.DataType, name: str) -> Any:
    if isinstance(kind, T.StructType):
        return _record(kind, name)
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": ["null", _type(kind.elementType, name)]}
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return {"type": "map", "values": ["null", _type(kind.valueType, name)]}
    if isinstance(kind, T.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if type(kind) not in _PLAIN:
        raise PipelineFault(f"{name} is {kind.simpleString()}, which Avro does not have: convert it in the last step")
    return _PLAIN[type(kind)]


def check_schema(registry: RegistryAccess, schema: str) -> None:
    """Raises PipelineFault, MissingExtraError."""
    require("fastavro", extra="schemas", feature="a sink of Avro values")
    try:
        _writer(registry, schema)
    except InvalidConfigError as error:
        raise PipelineFault(f"sink.schema: {error.message}") from error


def register(registry: RegistryAccess, schema: str, topic: str) -> None:
    """What the first record would do in a worker, so that a refused schema or a wrong login ends the pipeline before it reads.

    Raises SchemaRegistryError.
    """
    loaded(partial(_writer(registry, schema).registered_id, topic, Part.VALUE))


@lru_cache(_WRITERS)
def _writer(registry: RegistryAccess, schema: str) -> Avro:
    return Avro(registry.registry(auto_register=True), schema)


def _with_maps(kind: T.DataType) -> Convert:
    """Arrow hands out a map as a list of pairs, for which Avro needs a dict."""
    if isinstance(kind, T.MapType):
        convert = _with_maps(kind.valueType)
        return lambda found: None if found is None else {key: convert(value) for key, value in found}
    if isinstance(kind, T.ArrayType) and (inner := _with_maps(kind.elementType)) is not _as_it_is:
        return lambda found: None if found is None else [inner(item) for item in found]
    if isinstance(kind, T.StructType):
        made = {field.name: convert for field in kind if (convert := _with_maps(field.dataType)) is not _as_it_is}
        if made:
            return lambda found: None if found is None else found | {name: made[name](found[name]) for name in made}
    return _as_it_is


def _as_it_is(found: Any) -> Any:
    return found


def encoded(columns: T.StructType, registry: RegistryAccess, schema: str, topic: str) -> Column:
    """The row as a value in the wire format. A row that does not fit the schema ends the micro-batch with an error."""
    with_maps = _with_maps(columns)

    def encode(rows: pa.Array) -> pa.Array:
        writer = _writer(registry, schema)
        found = [loaded(partial(writer.serialize, with_maps(row), topic, Part.VALUE)) for row in rows.to_pylist()]
        return pa.array(found, pa.binary())

    made: Any = arrow_udf  # The kind of function is read from the types of `encode`, which the stubs do not know.
    column: Column = made(encode, T.BinaryType())(F.struct(*(F.col(quoted(field.name)) for field in columns)))
    return column

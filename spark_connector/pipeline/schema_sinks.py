"""Rows as Avro, Protobuf or JSON with a schema, in the wire format of Confluent's serializers, for the topic of a sink.

By Python workers. The columns make the schema of Avro and JSON, unless a file has it; Protobuf needs the message of a file.
"""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from barnabas.net.base.near_words import did_you_mean
from barnabas.net.client.arrow.extra import require
from barnabas.net.client.connection.errors import InvalidConfigError
from barnabas.net.client.serde.avro_format import Avro
from barnabas.net.client.serde.json_schema_format import JsonSchema
from barnabas.net.client.serde.protobuf_format import Protobuf
from barnabas.net.client.serde.registry import RegistryAccess
from barnabas.net.client.serde.serdes import Part
from barnabas.net.programs.pipeline.spec import TopicSink

from .avro_values import Convert, loaded
from .faults import PipelineFault
from .protobuf_values import ProtobufRows
from .schema_values import Schema, text_of
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


# --- JSON Schema ----------------------------------------------------------------------------------------------------------


_JSON_TYPES: Final[dict[type[T.DataType], str]] = {
    T.BooleanType: "boolean",
    T.ByteType: "integer",
    T.ShortType: "integer",
    T.IntegerType: "integer",
    T.LongType: "integer",
    T.FloatType: "number",
    T.DoubleType: "number",
    T.DecimalType: "number",
}


def json_schema_of(columns: T.StructType, title: str) -> str:
    """The schema of an object with these columns, as `to_json` writes it: without those that are null. It is closed, so that a
    column may be added later: what an open one allows already cannot be given a type."""
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title}
    return json.dumps(draft | _json_type(columns))


def _json_type(kind: T.DataType) -> dict[str, Any]:
    if isinstance(kind, T.StructType):
        fields = {field.name: _json_type(field.dataType) for field in kind}
        return {"type": "object", "properties": fields, "additionalProperties": False}
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": {"anyOf": [{"type": "null"}, _json_type(kind.elementType)]}}
    if isinstance(kind, T.MapType):
        return {"type": "object", "additionalProperties": {"anyOf": [{"type": "null"}, _json_type(kind.valueType)]}}
    return {"type": _JSON_TYPES.get(type(kind), "string")}


# --- Protobuf -------------------------------------------------------------------------------------------------------------


_WHOLE: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType)
_FRACTIONS: Final = (T.FloatType, T.DoubleType)


def check_columns(columns: T.DataType, message: T.DataType, path: str) -> None:
    """Whether rows with these columns fit a message with those. Raises PipelineFault."""
    if isinstance(columns, T.StructType) and isinstance(message, T.StructType):
        fields = {field.name: field.dataType for field in message}
        for field in columns:
            name = f"{path}{field.name}"
            if field.name not in fields:
                near = did_you_mean(field.name, list(fields))
                raise PipelineFault(
                    f"the column {name} is no field of the Protobuf message{near}: rename it or leave it out"
                )
            check_columns(field.dataType, fields[field.name], f"{name}.")
    elif isinstance(columns, T.ArrayType) and isinstance(message, T.ArrayType):
        check_columns(columns.elementType, message.elementType, path)
    elif isinstance(columns, T.MapType) and isinstance(message, T.MapType):
        check_columns(columns.keyType, message.keyType, path)
        check_columns(columns.valueType, message.valueType, path)
    elif not _fits(columns, message):
        raise PipelineFault(
            f"the column {path.removesuffix('.')} is {columns.simpleString()}, and the field of the Protobuf message is"
            f" {message.simpleString()}: CAST it in the last step"
        )


def _fits(column: T.DataType, field: T.DataType) -> bool:
    """A number that is too large for its field is an error of its row."""
    if isinstance(column, T.DecimalType) and column.scale:
        return False
    kinds = next((kinds for kinds in (_WHOLE, _FRACTIONS) if isinstance(column, kinds)), (type(column),))
    return isinstance(field, kinds)


# --- writing --------------------------------------------------------------------------------------------------------------


def schema_for(sink: TopicSink, columns: T.StructType, content: bytes | None) -> Schema:
    """`content`: of the schema's file; None: the columns make it. Raises PipelineFault."""
    if content is None:
        made = json_schema_of if sink.schema_format == "json_schema" else schema_of
        content = made(columns, record_name(sink.topic)).encode()
    return Schema(format=sink.schema_format, content=content, message=sink.message)


def check_schema(registry: RegistryAccess, schema: Schema, columns: T.StructType) -> None:
    """Raises PipelineFault, MissingExtraError."""
    try:
        _writer(registry, schema)
        if schema.format == "protobuf":
            check_columns(columns, ProtobufRows(schema.content, schema.message).type, "")
    except (InvalidConfigError, PipelineFault) as error:
        reason = error.message if isinstance(error, InvalidConfigError) else error
        raise PipelineFault(f"sink.schema: {reason}") from error


def register(registry: RegistryAccess, schema: Schema, topic: str) -> None:
    """What the first record would do in a worker, so that a refused schema or a wrong login ends the pipeline before it reads.

    Raises SchemaRegistryError.
    """
    loaded(partial(_writer(registry, schema)[0].registered_id, topic, Part.VALUE))


@lru_cache(_WRITERS)
def _writer(registry: RegistryAccess, schema: Schema) -> tuple[Avro | Protobuf | JsonSchema, Convert]:
    """What writes a value, and makes such a value of a row. Raises InvalidConfigError, PipelineFault."""
    client = registry.registry(auto_register=True)
    if schema.format == "protobuf":
        rows = ProtobufRows(schema.content, schema.message)
        return Protobuf(client, rows.message), rows.made
    text = text_of(schema)
    if schema.format == "json_schema":
        return JsonSchema(client, schema=text), msgspec.Raw
    require("fastavro", extra="schemas", feature="a sink of Avro values")
    return Avro(client, text), _as_it_is


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


def encoded(columns: T.StructType, registry: RegistryAccess, schema: Schema, topic: str) -> Column:
    """The row as a value in the wire format. A row that does not fit the schema ends the micro-batch with an error."""
    is_json = schema.format == "json_schema"
    with_maps: Callable[[Any], Any] = _with_maps(columns) if schema.format == "avro" else _as_it_is

    def encode(rows: pa.Array) -> pa.Array:
        writer, value_of = _writer(registry, schema)

        def write(row: Any) -> bytes:
            return writer.serialize(value_of(with_maps(row)), topic, Part.VALUE)

        return pa.array([loaded(partial(write, row)) for row in rows.to_pylist()], pa.binary())

    made: Any = arrow_udf  # The kind of function is read from the types of `encode`, which the stubs do not know.
    row = F.struct(*(F.col(quoted(field.name)) for field in columns))
    column: Column = made(encode, T.BinaryType())(F.to_json(row) if is_json else row)
    return column

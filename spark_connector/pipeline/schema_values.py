"""Values with a schema (Avro, Protobuf, JSON Schema) as columns, by Python workers: they take a batch of values as Arrow, and
return the fields of each, and a reason where a value does not fit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from barnabas.net.base.near_words import did_you_mean
from barnabas.net.client.connection.errors import SchemaNotFoundError, SchemaRegistryError
from barnabas.net.client.serde.registry import RegistryAccess
from barnabas.net.programs.pipeline.spec import FILE_COLUMNS, RECORD_COLUMNS, SchemaFormat

from .avro_values import AvroValues
from .faults import PipelineFault
from .json_schema_values import JsonSchemaValues
from .protobuf_values import ProtobufValues

FIELDS: Final = "fields"
REASON: Final = "reason"
_SHOWN_CHARS: Final = 200  # of an error in a reason
_READERS: Final = 16  # that a worker keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What a worker needs in order to read or write values."""

    content: bytes  # of the schema's file: a schema of Avro or JSON, or a descriptor set
    format: SchemaFormat = "avro"
    registry: RegistryAccess | None = None  # of Avro and JSON that is read
    message: str = ""  # of Protobuf
    is_framed: bool = False  # of Protobuf


@lru_cache(_READERS)
def reader_of(schema: Schema) -> AvroValues | ProtobufValues | JsonSchemaValues:
    """Raises PipelineFault, MissingExtraError."""
    made: AvroValues | ProtobufValues | JsonSchemaValues
    match schema.format:
        case "protobuf":
            made = ProtobufValues(schema.content, schema.message, is_framed=schema.is_framed)
        case "json_schema":
            made = JsonSchemaValues(text_of(schema), schema.registry)
        case "avro":
            made = AvroValues(text_of(schema), schema.registry)
    _check(made.type, "")
    for name in made.type.fieldNames():
        if name.lower() in (*RECORD_COLUMNS, *FILE_COLUMNS):
            raise PipelineFault(f"the schema has the field {name}, the name of a column that each row has anyway")
    return made


def text_of(schema: Schema) -> str:
    """Raises PipelineFault."""
    try:
        return schema.content.decode()
    except UnicodeDecodeError as error:
        raise PipelineFault(f"the schema is no UTF-8 text ({error.reason} at byte {error.start})") from None


def _check(found: DataType, path: str) -> None:
    if isinstance(found, ArrayType):
        _check(found.elementType, path)
    elif isinstance(found, MapType):
        _check(found.valueType, path)
    elif isinstance(found, StructType):
        names = Counter(name.lower() for name in found.fieldNames())
        if not names:
            raise PipelineFault(f"the schema has no fields {f'in {path}' if path else 'at all'}: columns need one")
        twice = next((name for name, times in names.items() if times > 1), "")
        if twice:
            raise PipelineFault(f"the schema has {path}{twice} twice: Spark does not tell upper case from lower case")
        for field in found:
            _check(field.dataType, f"{path}{field.name}.")


def decoded(value: Column, schema: Schema, required: Sequence[str] = ()) -> Column:
    """A struct of FIELDS, null for a value that does not fit, and REASON, null for one that does. Nulls stay null.
    Raises PipelineFault, also if the schema lacks a field of `required`, and MissingExtraError."""
    fields = reader_of(schema).type
    missing = [name for name in required if name not in fields.fieldNames()]
    if missing:
        near = did_you_mean(missing[0], fields.fieldNames())
        raise PipelineFault(f"required has {missing[0]!r}, which is no field of the schema{near}")
    result = StructType([StructField(FIELDS, fields), StructField(REASON, StringType())])
    arrow = to_arrow_type(fields, timezone="UTC")

    def decode(values: pa.Array) -> pa.Array:
        read = reader_of(schema).read
        rows: list[dict[str, Any] | None] = []
        reasons: list[str | None] = []
        for data in values.to_pylist():
            row, reason = (None, None) if data is None else _read(read, data)
            rows.append(row)
            reasons.append(reason)
        return _struct(rows, reasons, arrow)

    made: Any = arrow_udf  # The kind of function is read from the types of `decode`, which the stubs do not know.
    column: Column = made(decode, result)(value)
    return column


def _read(read: Any, data: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """Raises SchemaRegistryError if the registry does not answer: the micro-batch is tried again."""
    try:
        return read(data), None
    except SchemaNotFoundError as error:
        return None, str(error)[:_SHOWN_CHARS]
    except SchemaRegistryError:
        raise
    except Exception as error:  # noqa: BLE001 - the libraries raise what they like for bytes that are none of theirs
        return None, _reason(error)


def _reason(error: Exception) -> str:
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"the value does not fit its schema: {words[:_SHOWN_CHARS]}"


def _struct(rows: list[dict[str, Any] | None], reasons: list[str | None], arrow: pa.DataType) -> pa.Array:
    try:
        fields = pa.array(rows, arrow)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        fields = _one_by_one(rows, reasons, arrow)
    return pa.StructArray.from_arrays([fields, pa.array(reasons, pa.string())], names=[FIELDS, REASON])


def _one_by_one(rows: Sequence[Any], reasons: list[str | None], arrow: pa.DataType) -> pa.Array:
    """Some value is none of its column's type, such as a number that is too large: it becomes a bad one."""
    found: list[pa.Array] = []
    for index, row in enumerate(rows):
        try:
            found.append(pa.array([row], arrow))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            found.append(pa.nulls(1, arrow))
            reasons[index] = _reason(error)
    return pa.concat_arrays(found)

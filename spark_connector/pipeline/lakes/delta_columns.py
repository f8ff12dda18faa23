"""Which columns of a result fit a Delta table. Pure: types are Spark's, or the JSON in which Delta's log tells them."""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import types as T

from ..faults import PipelineFault

_PARTITION_TYPES: Final = (T.StringType, T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType)
# Others (intervals, variants, the type of NULL) have no type in Delta's log, or one that other readers do not know.
_TYPES: Final = (
    *_PARTITION_TYPES, T.CharType, T.VarcharType, T.FloatType, T.DoubleType, T.DecimalType, T.TimestampType, T.TimestampNTZType,
    T.BinaryType,
)  # fmt: skip

TypeJson = Any  # a name, or {"type": "struct", "fields": [...]} and the like


def check_columns(columns: T.StructType, partition_by: tuple[str, ...]) -> None:
    """Raises PipelineFault for columns that no table can have."""
    seen: dict[str, str] = {}
    for field in columns:
        if other := seen.get(field.name.lower()):
            raise PipelineFault(
                f"sink.delta: columns {other!r} and {field.name!r} have one name, without upper and lower case: rename one"
            )
        seen[field.name.lower()] = field.name
        for kind in _leaves(field.dataType):
            if not isinstance(kind, _TYPES):
                raise PipelineFault(
                    f"sink.delta: column {field.name!r} has the type {kind.simpleString()}, which Delta lacks: cast it"
                )
    for name in partition_by:
        kind = columns[name].dataType
        if not isinstance(kind, _PARTITION_TYPES):
            raise PipelineFault(
                f"sink.partition_by names {name!r}, which is {kind.simpleString()}: use text, whole numbers, booleans or "
                "dates"
            )
    if len(columns) <= len(partition_by):
        raise PipelineFault("sink.partition_by names all columns: files need at least one other")


def _leaves(kind: T.DataType) -> Iterator[T.DataType]:
    match kind:
        case T.StructType():
            for field in kind:
                yield from _leaves(field.dataType)
        case T.ArrayType():
            yield from _leaves(kind.elementType)
        case T.MapType():
            yield from _leaves(kind.keyType)
            yield from _leaves(kind.valueType)
        case _:
            yield kind


def accepts(known: TypeJson, given: TypeJson) -> bool:
    """Whether a column of the type `known` may hold all values of the type `given`: the same, but for what is never null."""
    if isinstance(known, str) or isinstance(given, str) or known["type"] != given["type"]:
        return bool(known == given)
    match known["type"]:
        case "array":
            return _allows(known, given, "containsNull") and accepts(known["elementType"], given["elementType"])
        case "map":
            return (
                _allows(known, given, "valueContainsNull")
                and accepts(known["keyType"], given["keyType"])
                and accepts(known["valueType"], given["valueType"])
            )
        case _:
            fields, others = known["fields"], given["fields"]
            return [field["name"] for field in fields] == [other["name"] for other in others] and all(
                _allows(field, other, "nullable") and accepts(field["type"], other["type"])
                for field, other in zip(fields, others, strict=True)
            )


def _allows(known: TypeJson, given: TypeJson, key: str) -> bool:
    return bool(known[key] or not given[key])


def told(kind: TypeJson) -> str:
    """A type as a user reads it."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "array":
            return f"array<{told(kind['elementType'])}{_never_null(kind['containsNull'])}>"
        case "map":
            values = f"{told(kind['valueType'])}{_never_null(kind['valueContainsNull'])}"
            return f"map<{told(kind['keyType'])}, {values}>"
        case _:
            fields = (f"{item['name']}: {told(item['type'])}{_never_null(item['nullable'])}" for item in kind["fields"])
            return f"struct<{', '.join(fields)}>"


def _never_null(is_nullable: bool) -> str:
    return "" if is_nullable else " not null"

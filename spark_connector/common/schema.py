"""The columns of a topic in Spark: those of Spark's Kafka source, by name, type and order.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int
    headers array<struct<key string, value binary>>, with includeHeaders

A user's own `.schema(...)` may name some of them, in any order: the others are not decoded. It may also name
`topicId string`, which tells a topic from one that is made again under its name.
"""

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.log.vocabulary.errors import InvalidConfigError

if TYPE_CHECKING:
    import pyarrow

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS_TYPE),
    ]
)
_ON_REQUEST = StructType([*COLUMNS.fields, StructField("topicId", StringType())])


def source_schema(*, includes_headers: bool) -> StructType:
    return COLUMNS if includes_headers else StructType(COLUMNS.fields[:-1])


def check_projection(schema: StructType) -> None:
    """Raises InvalidConfigError for a column that a topic does not have, or has with another type."""
    check_columns(schema, _ON_REQUEST, "a topic")


def check_columns(schema: StructType, columns: StructType, what: str) -> None:
    """`schema` names some of `columns`, with their types. Raises InvalidConfigError, which says what has no such column."""
    known = {field.name: field.dataType for field in columns}
    if not schema.fields:
        raise InvalidConfigError("the schema has no column: select some of " + ", ".join(known))
    for field in schema.fields:
        if field.name not in known:
            raise InvalidConfigError(f"{what} has no column {field.name!r}; it has {', '.join(known)}")
        if field.dataType != known[field.name]:
            cure = f"read it as {known[field.name].simpleString()} and cast the column"
            raise InvalidConfigError(f"column {field.name!r} cannot be {field.dataType.simpleString()}: {cure}")


def arrow_schema(schema: StructType) -> "pyarrow.Schema":
    """The exact Arrow schema that Spark expects: Spark compares names, nullability and element names, too."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")

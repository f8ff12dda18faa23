"""Values to columns: for each format the parsed fields of a row, and why a value does not fit (null if it fits).

Nearly everything is an expression of Spark, so values are parsed in the JVM, and a bad value costs no exception. Values with a
schema (Avro, Protobuf, JSON Schema) are read by Python workers (`schema_values`).
"""

import re
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from barnabas.net.programs.collect.parsers import ACCESS_LINE
from barnabas.net.programs.pipeline.spec import ValueField, ValueSpec

from .schema_values import FIELDS, Schema, decoded
from .schema_values import REASON as DECODED_REASON

PARSED = "__parsed"  # a struct of the fields
REASON = "__reason"  # why the value does not fit
_CORRUPT = "__corrupt"
_DECODED = "__decoded"
_SHOWN_CHARS = 100  # of a wrong value in its reason
_JAVA_GROUPS = re.compile(r"\(\?P<\w+>")
_ACCESS_TIME = "dd/MMM/yyyy:HH:mm:ss Z"
_NO_VALUE = "-"


def with_parsed(rows: DataFrame, spec: ValueSpec, schema: Schema | None = None) -> DataFrame:
    """The rows with the columns PARSED and REASON; `rows` has the binary column `value`. `schema`: of a format that has one.

    Raises PipelineFault for a schema that cannot be used.
    """
    if schema is not None:
        return _with_decoded(rows, spec, schema)
    match spec.format:
        case "raw":
            return rows.withColumn(PARSED, F.struct("value")).withColumn(REASON, F.lit(None).cast("string"))
        case "text":
            parsed, reason = F.struct(_text().alias("text")), F.lit(None).cast("string")
        case "json":
            parsed, reason = _json(spec.fields), _json_reason(spec)
        case "changes":
            rows = rows.where(F.col("value").isNotNull())  # tombstones, for compaction
            parsed, reason = _changes(spec.fields), _changes_reason(spec)
        case "csv":
            if spec.has_header:
                header = spec.delimiter.join(field.name for field in spec.fields)
                rows = rows.where(~_text().eqNullSafe(header))
            parsed, reason = _csv(spec, spec.fields), _csv_reason(spec)
        case "access_log":
            parsed, reason = _access(spec.pattern), _access_reason()
    unreadable = F.when(F.col("value").isNull(), "the record has no value").when(
        ~F.is_valid_utf8(_text()), "the value is not UTF-8 text"
    )
    if spec.format == "text":
        unreadable = F.when(~F.is_valid_utf8(_text()), "the value is not UTF-8 text")
    return rows.withColumn(PARSED, parsed).withColumn(REASON, F.coalesce(unreadable, reason))


def _with_decoded(rows: DataFrame, spec: ValueSpec, schema: Schema) -> DataFrame:
    found = rows.withColumn(_DECODED, decoded(F.col("value"), schema, spec.required))
    none = F.when(F.col("value").isNull(), "the record has no value")
    found = found.withColumn(PARSED, F.col(_DECODED).getField(FIELDS))
    reasons = [none, F.col(_DECODED).getField(DECODED_REASON), *_missing(spec.required)]
    return found.withColumn(REASON, _first_of(reasons)).drop(_DECODED)


def _text() -> Column:
    return F.col("value").cast("string")


def _schema(fields: Sequence[ValueField]) -> str:
    return ", ".join(f"{quoted(field.name)} {field.type_name}" for field in fields) + f", {_CORRUPT} string"


def quoted(name: str) -> str:
    """A name as Spark's SQL and its paths of columns read it, whatever letters it has."""
    return f"`{name.replace('`', '``')}`"


def _field(name: str) -> Column:
    return F.col(PARSED).getField(name)


def _first_of(reasons: Sequence[Column]) -> Column:
    return F.coalesce(*reasons) if reasons else F.lit(None).cast("string")


def _wrong(field: ValueField, given: Column) -> Column:
    """The value has something for the field, but not of its type."""
    shown = F.concat(
        F.lit(f"the field {field.name} is "),
        F.left(given, F.lit(_SHOWN_CHARS)),
        F.lit(f", which is no {field.type_name}"),
    )
    return F.when(_field(_CORRUPT).isNotNull() & _field(field.name).isNull() & given.isNotNull(), shown)


def _missing(names: Sequence[str]) -> list[Column]:
    return [F.when(_field(name).isNull(), F.lit(f"the field {name} is missing")) for name in names]


# --- json -----------------------------------------------------------------------------------------------------------------


def _json(fields: Sequence[ValueField]) -> Column:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return F.from_json(_text(), _schema(fields), options)


def _json_reason(spec: ValueSpec) -> Column:
    """`from_json` would take the first object of an array, and ignore what follows an object: both are no JSON object."""
    array = F.concat(F.lit("["), _text(), F.lit("]"))  # One element, unless something follows the value,
    keys = F.json_object_keys(F.concat(F.lit('{"value":'), array, F.lit("}")))  # or closes the array itself.
    is_json = F.coalesce((F.json_array_length(array) == 1) & (F.size(keys) == 1), F.lit(False))
    return _first_of(
        [
            F.when(~is_json, F.lit("the value is not valid JSON")),
            F.when(~_text().rlike(r"^\s*\{"), F.lit("the value is not a JSON object")),
            *(_wrong(field, F.get_json_object(_text(), _path(field.name))) for field in spec.fields),
            *_missing(spec.required),
            F.when(_field(_CORRUPT).isNotNull(), F.lit("the value does not fit its fields")),
        ]
    )


def _path(name: str) -> str:
    return f"$['{name}']"


# --- changes --------------------------------------------------------------------------------------------------------------


def _envelope(fields: Sequence[ValueField]) -> Column:
    row = f"struct<{', '.join(f'{quoted(field.name)}: {field.type_name}' for field in fields)}>"
    schema = (
        f"before {row}, after {row}, op string, transaction struct<total_order: bigint>, {_CORRUPT} string,"
        " source struct<commit_lsn: bigint, generation: bigint, ts_ms: bigint, unchanged: array<string>>"
    )
    return F.from_json(_text(), schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})


def _changes(fields: Sequence[ValueField]) -> Column:
    """The row after the change; of a delete, what is known of the row before. Names are those of CHANGE_COLUMNS."""
    found = _envelope(fields)
    is_delete = found["op"] == "d"
    return F.struct(
        *(
            F.when(is_delete, found["before"].getField(field.name))
            .otherwise(found["after"].getField(field.name))
            .alias(field.name)
            for field in fields
        ),
        found["op"].alias("change_op"),
        found["source"]["generation"].alias("change_generation"),
        found["source"]["commit_lsn"].alias("change_lsn"),
        found["transaction"]["total_order"].alias("change_order"),
        F.timestamp_millis(found["source"]["ts_ms"]).alias("change_time"),
        found[_CORRUPT].alias(_CORRUPT),
    )


def _changes_reason(spec: ValueSpec) -> Column:
    op = F.get_json_object(_text(), "$.op")
    unchanged = _envelope(spec.fields)["source"]["unchanged"]
    names = F.array_join(unchanged, ", ")
    lacking = F.concat(
        F.lit("the change lacks the large values of "),
        names,
        F.lit(": ALTER TABLE ... REPLICA IDENTITY FULL in the source"),
    )
    has_row = op.isin("c", "u", "r")
    row = F.when(op == "d", F.lit("before")).otherwise(F.lit("after"))
    given = [
        F.when(row == "before", _given_in("before", field)).otherwise(_given_in("after", field))
        for field in spec.fields
    ]
    return _first_of(
        [
            F.when(
                F.coalesce(~op.isin("c", "u", "d", "r", "t"), F.lit(True)) | _field("change_lsn").isNull(),
                F.lit("the value is no change of a table, as `barnabas connect` writes it"),
            ),
            F.when(has_row & (F.size(F.coalesce(unchanged, F.array())) > 0), lacking),
            *(_wrong(field, value) for field, value in zip(spec.fields, given, strict=True)),
            *(F.when(has_row, reason) for reason in _missing(spec.required)),
            F.when(_field(_CORRUPT).isNotNull(), F.lit("the row does not fit its fields")),
        ]
    )


def _given_in(row: str, field: ValueField) -> Column:
    return F.get_json_object(_text(), f"$.{row}['{field.name}']")


# --- csv ------------------------------------------------------------------------------------------------------------------


def _csv(spec: ValueSpec, fields: Sequence[ValueField]) -> Column:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "sep": spec.delimiter}
    return F.from_csv(_text(), _schema(fields), options)


def _csv_reason(spec: ValueSpec) -> Column:
    words = _csv(spec, [ValueField(name=field.name, type_name="string") for field in spec.fields])
    count = F.lit(f"the line does not have {len(spec.fields)} fields")
    return _first_of(
        [
            F.when(words.getField(_CORRUPT).isNotNull(), count),
            *(_wrong(field, words.getField(field.name)) for field in spec.fields),
            *_missing(spec.required),
            F.when(_field(_CORRUPT).isNotNull(), F.lit("the line does not fit its fields")),
        ]
    )


# --- access_log -----------------------------------------------------------------------------------------------------------


def _access(pattern: str) -> Column:
    """The fields that `barnabas collect --parse access` finds, by the same pattern; `time` is a timestamp."""
    request = F.split(_group("request"), " ")
    parts = F.size(request) == 3
    fields = [
        _named("client"),
        _named("user"),
        _access_time().alias("time"),
        _named("request"),
        *(F.when(parts, request[number]).alias(name) for number, name in enumerate(("method", "path", "protocol"))),
        _group("status").cast("int").alias("status"),
        F.coalesce(_given("bytes").cast("bigint"), F.lit(0)).alias("bytes"),
    ]
    if pattern == "combined":
        fields += [_named("referer"), _named("agent")]
    return F.when(_is_access(), F.struct(*fields))


def _access_reason() -> Column:
    return _first_of(
        [
            F.when(~_is_access(), F.lit("the line is not in the format of an access log")),
            F.when(
                _access_time().isNull(), F.concat(F.lit("the time cannot be read: "), F.left(_group("time"), F.lit(40)))
            ),
        ]
    )


def _java_pattern() -> str:
    """Java numbers the groups; `\\z` is the end, where `$` would allow a line feed."""
    return rf"^(?:{_JAVA_GROUPS.sub('(', ACCESS_LINE.pattern)})\z"


def _is_access() -> Column:
    return _text().rlike(_java_pattern())


def _group(name: str) -> Column:
    return F.regexp_extract(_text(), _java_pattern(), ACCESS_LINE.groupindex[name])


def _given(name: str) -> Column:
    """Null for `-`, and for what the common format leaves out."""
    found = _group(name)
    return F.when((found != _NO_VALUE) & (found != ""), found)


def _named(name: str) -> Column:
    return _given(name).alias(name)


def _access_time() -> Column:
    return F.try_to_timestamp(_group("time"), F.lit(_ACCESS_TIME))


# --- rows -----------------------------------------------------------------------------------------------------------------


def fields_and(place: Sequence[str], parsed: DataFrame) -> DataFrame:
    """The fields of the values as columns, and the columns in `place`."""
    struct = parsed.schema[PARSED].dataType
    names = [name for name in struct.fieldNames() if name != _CORRUPT]  # type: ignore[attr-defined]  # a StructType
    return parsed.select(*(_field(name).alias(name) for name in names), *place)

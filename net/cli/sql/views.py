"""Views over topics: keys and values as bytes, as text, or the fields of JSON values as columns."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from barnabas.net.client.arrow.tables import SCHEMA

SAMPLE_RECORDS: Final = 1_000  # Of the first records with a value: enough to see the fields that topics usually have.
SAMPLE_BYTES: Final = 16 << 20  # Of large values, fewer.
SAMPLE_ROWS_AT_A_TIME: Final = 64
MAX_DEPTH: Final = (
    100  # DuckDB's function for the structure of JSON fails for 128, and takes the database down with it.
)
_BRACKETS: Final = re.compile(r"[\[\]{}]")
VALUES: Final = ("json", "text", "raw")


def add_view(connection: Any, topic: str, dataset: Any, values: str) -> None:
    """Make a topic a table of the connection."""
    source = f"topic of {topic}"
    connection.register(source, dataset)
    connection.execute(
        f"create or replace temp view {quoted(topic)} as select {_columns(connection, source, values)} from {quoted(source)}"
    )


def quoted(name: str) -> str:
    """An identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _columns(connection: Any, source: str, values: str) -> str:
    if values == "raw":
        return "*"
    kept = 'topic, partition, "offset", "timestamp"'
    text = "try(decode(key)) as key, try(decode(value)) as value, headers"
    fields = _fields(connection, source) if values == "json" else {}
    return ", ".join([kept, text, *_field_columns(fields)])


def _fields(connection: Any, source: str) -> Mapping[str, object]:
    """The fields of JSON objects among the first values, with their types in DuckDB's notation; none: no value is an object."""
    ((found,),) = connection.execute(
        "with objects as (select try_cast(value as json) as value from (select unnest(?::varchar[]) as value)) "
        "select json_group_structure(value) from objects where json_type(value) = 'OBJECT'",
        [_sample(connection, source)],
    ).fetchall()
    structure = json.loads(found) if found else {}
    return structure if isinstance(structure, dict) else {}


def _sample(connection: Any, source: str) -> list[str]:
    """The first values that are text, without those that the function for their structure cannot take."""
    values = connection.execute(
        f"select try(decode(value)) from {quoted(source)} where value is not null limit {SAMPLE_RECORDS}"
    )
    found: list[str] = []
    left = SAMPLE_BYTES
    while left > 0 and (rows := values.fetchmany(SAMPLE_ROWS_AT_A_TIME)):
        found += [text for (text,) in rows if text is not None and _depth(text) <= MAX_DEPTH]
        left -= sum(len(text) for (text,) in rows if text is not None)
    return found


def _depth(text: str) -> int:
    """Of JSON, or more: brackets in texts count, too."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _field_columns(fields: Mapping[str, object]) -> Sequence[str]:
    """A field that has the name of a column of records becomes `value_...`."""
    taken = {name.lower() for name in SCHEMA.names}
    columns = []
    for name, kind in fields.items():
        if not name:
            continue  # No column can have this name.
        structure = json.dumps({name: _wide(kind)}).replace("'", "''")
        column = f"value_{name}" if name.lower() in taken else name
        if column.lower() in taken:
            continue  # The same name in other letters, or twice: it is still in `value`.
        taken.add(column.lower())
        text, field = "try_cast(try(decode(value)) as json)", name.replace("'", "''")
        columns.append(f"struct_extract(from_json({text}, '{structure}'), '{field}') as {quoted(column)}")
    return columns


def _wide(kind: object) -> object:
    """Later values may be negative, or larger. Objects whose fields cannot be those of a struct stay JSON."""
    if isinstance(kind, dict):
        if "" in kind or len({name.lower() for name in kind}) < len(kind):
            return "JSON"
        return {name: _wide(part) for name, part in kind.items()}
    if isinstance(kind, list):
        return [_wide(part) for part in kind]
    return "BIGINT" if kind == "UBIGINT" else "JSON" if kind == "NULL" else kind

"""Records of a table's topic as changes of a target table: pure, from JSON to the values of statements.

A record is an upsert (all columns, or some with `unchanged` ones left as they are), a delete, a move to another key, or a
truncation. Of several changes of one key in a batch, only the result is written: `TableBatch` merges them.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from .faults import ColumnMissingError, SchemaConflictError

Text = str | None  # a value as PostgreSQL reads it
_DECODER: Final = json.JSONDecoder(parse_float=str, parse_int=str)  # numbers keep all of their digits
Order = tuple[int, int, int]  # generation, LSN of the commit, number within the transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    schema: str
    name: str
    types: Mapping[str, str]  # of the columns, by name: as pg_type names them


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One record. `row` None: a delete. `new_key`: the row has this key from now on."""

    key: Mapping[str, Text]
    order: Order | None = None  # None: a tombstone, which repeats the delete before it
    row: Mapping[str, Text] | None = None
    missing: frozenset[str] = frozenset()  # columns that keep their values
    new_key: Mapping[str, Text] | None = None
    is_truncation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    schema: str
    name: str


def source_table(value: bytes, topic: str) -> SourceTable:
    """Which table the record comes from. Raises SchemaConflictError."""
    source = _object(value, topic, "value").get("source")
    if not isinstance(source, dict) or "table" not in source:
        raise SchemaConflictError(
            f"a record of topic {topic} has no source.table: the sink reads topics of a postgres-source"
        )
    return SourceTable(schema=str(source.get("schema", "public")), name=str(source["table"]))


def change_of(key: bytes | None, value: bytes | None, table: TargetTable, topic: str) -> TableChange:
    """Raises SchemaConflictError."""
    if key is None:
        raise SchemaConflictError(f"a record of topic {topic} has no key, so its row cannot be found")
    found = _object(key, topic, "key")
    if value is None:
        return TableChange(key={} if "__op" in found else _texts(found, table, topic))
    document = _object(value, topic, "value")
    source = document.get("source") or {}
    try:
        total = int((document.get("transaction") or {}).get("total_order", 0))
        order = (int(source.get("generation", 0)), int(source["commit_lsn"]), total)
        op = document["op"]
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaConflictError(
            f"a record of topic {topic} is no change of a postgres-source (it lacks {error}): see docs/connect.md"
        ) from error
    if op == "t":
        return TableChange(key={}, order=order, is_truncation=True)
    texts = _texts(found, table, topic)
    if op == "d":
        new_key = source.get("new_key")
        return TableChange(key=texts, order=order, new_key=_texts(new_key, table, topic) if new_key else None)
    missing = frozenset(source.get("unchanged") or ())
    after = {name: item for name, item in document["after"].items() if name not in missing}
    return TableChange(key=texts, order=order, row=_texts(after, table, topic), missing=missing)


def _object(data: bytes, topic: str, what: str) -> dict[str, Any]:
    try:
        found = _DECODER.decode(data.decode())
    except ValueError as error:
        raise SchemaConflictError(f"the {what} of a record of topic {topic} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise SchemaConflictError(f"the {what} of a record of topic {topic} is no JSON object: {data[:60]!r}")
    return found


# --- values ---------------------------------------------------------------------------------------------------------------


def _texts(values: Mapping[str, Any], table: TargetTable, topic: str) -> dict[str, Text]:
    found = {}
    for name, value in values.items():
        type_name = table.types.get(name)
        if type_name is None:
            raise ColumnMissingError(
                f"a record of topic {topic} has the column {name}, which table {table.schema}.{table.name} lacks: run ALTER TABLE"
                f" {table.schema}.{table.name} ADD COLUMN {name} with the type that it has in the source; the sink goes on from"
                " this record"
            )
        found[name] = _text(value, type_name)
    return found


def _text(value: Any, type_name: str) -> Text:
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, str):
        return _hexadecimal(value) if type_name == "bytea" else value
    if isinstance(value, list) and type_name.startswith("_"):
        return _array(value, type_name[1:])
    return json.dumps(value, ensure_ascii=False)


def _hexadecimal(base64_text: str) -> str:
    try:
        return f"\\x{base64.b64decode(base64_text, validate=True).hex()}"
    except binascii.Error:
        return base64_text  # of another producer: the server says whether it can read it


def _array(items: list[Any], type_name: str) -> str:
    parts = []
    for item in items:
        if isinstance(item, list):
            parts.append(_array(item, type_name))
            continue
        text = _text(item, type_name)
        if text is None:
            parts.append("NULL")
        else:
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            parts.append(f'"{escaped}"')
    return f"{{{','.join(parts)}}}"


# --- a batch --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TableBatch:
    """Changes of one table that are written together, at most one for each key, in the order of their last change."""

    changes: dict[tuple[tuple[str, Text], ...], TableChange] = field(default_factory=dict)

    def add(self, change: TableChange) -> None:
        assert not change.is_truncation and change.new_key is None, "these are written at their place, on their own"
        key = tuple(change.key.items())
        before = self.changes.pop(key, None)
        self.changes[key] = change if before is None else _merged(before, change)

    def take(self) -> list[TableChange]:
        taken = list(self.changes.values())
        self.changes = {}
        return taken


def _merged(before: TableChange, change: TableChange) -> TableChange:
    if change.row is None or not change.missing or before.row is None:
        return change
    row = {**{name: text for name, text in before.row.items() if name in change.missing}, **change.row}
    return replace(change, row=row, missing=change.missing.difference(row))

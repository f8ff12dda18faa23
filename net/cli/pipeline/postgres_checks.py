"""What a pipeline needs of a PostgreSQL server: its settings, publication, slot, tables, columns, types and privileges.

Each function asks the server, and refuses keys of the file with what to run there. Nothing is created.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

from barnabas.net.programs.connect.postgres.catalog import (
    PublishedTable,
    add_types,
    check_server,
    is_captured,
    published_tables,
    slot_of,
)
from barnabas.net.programs.connect.postgres.changes.faults import ConnectorError
from barnabas.net.programs.connect.postgres.changes.values import Types
from barnabas.net.programs.connect.postgres.server import Connection, close, connect, first_line, passes
from barnabas.net.programs.pipeline.spec import PostgresSource

from ...base.near_words import did_you_mean

if TYPE_CHECKING:
    from barnabas.net.programs.pipeline.document_table import DocumentTable
    from barnabas.net.programs.pipeline.spec import SourceSpec, TableSink, ValueField
    from barnabas.net.programs.pipeline.toml_lines import KeyPath

MAX_TABLES: Final = 10_000  # of a database that are looked at; near words are searched in them
_TABLES: Final = """
    SELECT n.nspname, c.relname,
        EXISTS (SELECT FROM pg_publication_tables p
            WHERE p.pubname = %s AND p.schemaname = n.nspname AND p.tablename = c.relname),
        has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%'
    ORDER BY 1, 2 LIMIT %s"""
_SINK: Final = """
    SELECT c.oid::bigint, has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'UPDATE'),
        has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'DELETE')
    FROM pg_class c WHERE c.oid = to_regclass(%s)"""
_UNIQUE: Final = """
    SELECT array_agg(a.attname::text) FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])
    WHERE i.indrelid = %s AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid"""
_INTEGERS: Final = frozenset({"int2", "int4", "int8", "oid", "xid", "cid"})
_FLOATS: Final = _INTEGERS | {"float4", "float8"}
_TIMES: Final = frozenset({"date", "timestamp", "timestamptz"})
# Which types of PostgreSQL become a type of Spark, as `changes.values` writes them; a string takes all.
_TYPES: Final = {
    **dict.fromkeys(("tinyint", "smallint", "int", "integer", "bigint", "long"), _INTEGERS),
    **dict.fromkeys(("float", "double"), _FLOATS),
    "decimal": _FLOATS | {"numeric"},
    "boolean": frozenset({"bool"}),
    "date": _TIMES,
    "timestamp": _TIMES | _INTEGERS,  # seconds since 1970
    "timestamp_ntz": _TIMES - {"timestamptz"},
    "binary": frozenset({"bytea"}),
}
_BEST: Final = {
    "int2": "smallint", "int4": "int", "int8": "bigint", "float4": "float", "float8": "double", "numeric": "decimal(38,9)",
    "bool": "boolean", "date": "date", "timestamp": "timestamp_ntz", "timestamptz": "timestamp", "bytea": "binary",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    name: str  # schema.table
    is_published: bool
    is_readable: bool


@asynccontextmanager
async def _connected(document: "DocumentTable", path: "KeyPath", dsn: str) -> AsyncIterator[Connection | None]:
    """None: the server cannot be asked, which is told. Errors of questions are told, too."""
    connection: Connection | None = None
    try:
        connection = await connect(dsn)
    except (psycopg.Error, ConnectorError) as error:
        document.refuse_path(
            path,
            f"the server cannot be asked: {first_line(error)}: correct host, port, user and dbname, start the server, or put the"
            " password into ~/.pgpass",
            may_pass=isinstance(error, psycopg.Error) and passes(error),
        )
    try:
        yield connection
    except psycopg.Error as error:
        is_passing = passes(error)
        cure = "start it, or end what holds it up" if is_passing else "give the role what it lacks"
        words = f"the server {'has not answered' if is_passing else 'refuses'} a question: {first_line(error)}: {cure}"
        document.refuse_path(path, words, may_pass=is_passing)
    finally:
        if connection is not None:
            await close(connection)


# --- sources --------------------------------------------------------------------------------------------------------------


async def check_source(
    document: "DocumentTable", path: "KeyPath", source: "SourceSpec", *, is_batch: bool, has_run: bool
) -> None:
    origin = source.origin
    assert isinstance(origin, PostgresSource)
    async with _connected(document, (*path, "postgres"), origin.dsn) as connection:
        if connection is None:
            return
        try:
            await check_server(connection)
        except ConnectorError as error:
            document.refuse_path((*path, "postgres"), str(error))
        if not is_batch:
            await _check_role(document, path, connection)
            await _check_slot(document, path, connection, origin.slot, has_run=has_run)
        if not await _has_publication(document, path, connection, origin.publication):
            return
        tables = await _captured(document, path, connection, origin)
        if source.value is not None and source.value.format == "changes":
            await _check_fields(document, path, connection, source.value.fields, tables)


async def _check_role(document: "DocumentTable", path: "KeyPath", connection: Connection) -> None:
    (row,) = await _rows(connection, "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")
    if not row[0]:
        user = connection.info.user
        document.refuse_path(
            (*path, "postgres"), f"the role {user} may not replicate: run as a superuser: ALTER ROLE {user} REPLICATION"
        )


async def _check_slot(
    document: "DocumentTable", path: "KeyPath", connection: Connection, name: str, *, has_run: bool
) -> None:
    place = (*path, "slot")
    try:
        slot = await slot_of(connection, name)
    except ConnectorError as error:
        document.refuse_path(place, str(error))
        return
    reset = "run `barnabas pipeline reset`, which reads all tables again"
    if slot is None and has_run:
        document.refuse_path(place, f"the slot {name} does not exist any more, so changes are lost: {reset}")
    elif slot is None:
        ((used, most),) = await _rows(
            connection, "SELECT count(*), current_setting('max_replication_slots')::int FROM pg_replication_slots"
        )
        if int(str(used)) >= int(str(most)):
            document.refuse_path(
                place,
                f"the server has {used} slots, and max_replication_slots is {most}: drop one that is not needed (SELECT"
                " pg_drop_replication_slot('name')), or raise the setting and restart the server",
            )
    elif slot.database != connection.info.dbname:
        document.refuse_path(place, f"the slot {name} is of the database {slot.database}: choose another name")
    elif slot.wal_status == "lost":
        document.refuse_path(
            place,
            f"the server has discarded log that the slot {name} needs: raise max_slot_wal_keep_size, run SELECT"
            f" pg_drop_replication_slot('{name}'), and {reset}",
        )


async def _has_publication(
    document: "DocumentTable", path: "KeyPath", connection: Connection, publication: str
) -> bool:
    known = [str(row[0]) for row in await _rows(connection, "SELECT pubname FROM pg_publication LIMIT %s", MAX_TABLES)]
    if publication in known:
        return True
    document.refuse_path(
        (*path, "publication"),
        f"there is no publication {publication!r} in database {connection.info.dbname}{did_you_mean(publication, known)}:"
        f" correct the name, or run CREATE PUBLICATION {publication} FOR TABLE name, ...",
    )
    return False


async def _captured(
    document: "DocumentTable", path: "KeyPath", connection: Connection, origin: PostgresSource
) -> dict[str, PublishedTable]:
    """The tables that can be captured; what is wrong with others is told at their patterns."""
    rows = await _rows(connection, _TABLES, origin.publication, MAX_TABLES)
    tables = [
        _Table(name=f"{schema}.{name}", is_published=bool(published), is_readable=bool(readable))
        for schema, name, published, readable in rows
    ]
    found: dict[str, PublishedTable] = {}
    for number, pattern in enumerate(origin.tables):
        place = (*path, "tables", number)
        problem = _problem_of(pattern, tables, origin.publication, connection.info)
        if problem:
            document.refuse_path(place, problem)
            continue
        try:
            found |= await published_tables(connection, origin.publication, [pattern])
        except ConnectorError as error:
            document.refuse_path(place, str(error))
    return found


def _problem_of(pattern: str, tables: list[_Table], publication: str, info: psycopg.ConnectionInfo) -> str:
    matching = [table for table in tables if is_captured([pattern], table.name)]
    published = [table for table in matching if table.is_published]
    if not matching:
        schema, _, name = pattern.partition(".")  # the schema itself would make all of its tables alike
        near = did_you_mean(
            name, [table.name.partition(".")[2] for table in tables if table.name.startswith(f"{schema}.")]
        )
        return f"no table of database {info.dbname} is {pattern!r}{near}: correct the name, or create the table"
    if not published:
        name = matching[0].name
        return (
            f"the publication {publication} does not have {name}: run ALTER PUBLICATION {publication} ADD TABLE {name}"
        )
    closed = next((table.name for table in published if not table.is_readable), "")
    if closed:
        schema = closed.partition(".")[0]
        return (
            f"the role {info.user} may not read {closed}: run as its owner: GRANT USAGE ON SCHEMA {schema} TO {info.user};"
            f" GRANT SELECT ON {closed} TO {info.user}"
        )
    return ""


async def _check_fields(
    document: "DocumentTable",
    path: "KeyPath",
    connection: Connection,
    fields: "tuple[ValueField, ...]",
    tables: dict[str, PublishedTable],
) -> None:
    types = Types()
    await add_types(
        connection, types, [column.type_oid for table in tables.values() for column in table.relation.columns]
    )
    for field in fields:
        for table in tables.values():
            columns = {column.name: types.name(column.type_oid) for column in table.relation.columns}
            problem = _problem_of_field(field, table.name, columns)
            if problem:
                document.refuse_path((*path, "value", "fields", field.name), problem)
                break


def _problem_of_field(field: "ValueField", table: str, columns: dict[str, str]) -> str:
    """`columns`: of the table, with the names of their types."""
    if field.name not in columns:
        near = did_you_mean(field.name, columns)
        return (
            f"the table {table} has no column {field.name!r} that is published{near}: correct the name, or leave it out"
        )
    kind = columns[field.name]
    if fits(field.type_name, kind):
        return ""
    return (
        f"is {field.type_name!r}, and the column of {table} is {kind.removeprefix('_')}{'[]' * kind.startswith('_')}: write"
        f' {field.name} = "{_best(kind)}"'
    )


def fits(type_name: str, kind: str) -> bool:
    """Whether Spark reads a column of PostgreSQL as this type. `kind`: as pg_type names it; names of arrays begin with _."""
    wanted = type_name.strip().lower()
    base = re.split(r"[(<]", wanted, maxsplit=1)[0].strip()
    if base == "string":
        return True
    if base == "array":
        element = wanted.partition("<")[2].rpartition(">")[0]
        return kind.startswith("_") and (not element or fits(element, kind[1:]))
    return kind in _TYPES.get(base, ())


def _best(kind: str) -> str:
    if kind.startswith("_"):
        return f"array<{_best(kind[1:])}>"
    return _BEST.get(kind, "string")


# --- sinks ----------------------------------------------------------------------------------------------------------------


async def check_sink(document: "DocumentTable", sink: "TableSink", dsn: str) -> None:
    """Of a table that is there: its key, and what the role may do. Of one that is not: whether it can be created."""
    async with _connected(document, ("sink", "database"), dsn) as connection:
        if connection is None:
            return
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in sink.table.split("."))
        rows = await _rows(connection, _SINK, quoted)
        if rows:
            await _check_table(document, sink, connection, rows[0])
        else:
            await _check_schema(document, sink, connection)


async def _check_table(
    document: "DocumentTable", sink: "TableSink", connection: Connection, row: tuple[object, ...]
) -> None:
    oid, *granted = row
    needed = ["INSERT", *(("UPDATE", "SELECT") if sink.key else ()), *(("DELETE",) if sink.applies_changes else ())]
    lacking = [
        name
        for name, is_granted in zip(("INSERT", "UPDATE", "SELECT", "DELETE"), granted, strict=True)
        if not is_granted
    ]
    lacking = [name for name in lacking if name in needed]
    if lacking:
        user = connection.info.user
        document.refuse(
            "sink.table",
            f"the role {user} lacks {', '.join(lacking)} on {sink.table}: run as its owner: GRANT {', '.join(lacking)} ON"
            f" {sink.table} TO {user}",
        )
    known = await _rows(
        connection, "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped", oid
    )
    columns = [str(found[0]) for found in known]
    missing = [name for name in sink.key if name not in columns]
    if missing:
        near = did_you_mean(missing[0], columns)
        document.refuse(
            "sink.key",
            f"the table {sink.table} has no column {missing[0]!r}{near}: its columns are {', '.join(columns)}",
        )
        return
    unique = [set(found[0]) for found in await _rows(connection, _UNIQUE, oid)]  # type: ignore[call-overload]  # names
    if sink.key and set(sink.key) not in unique:
        names = ", ".join(sink.key)
        document.refuse(
            "sink.key",
            f"the table {sink.table} has no unique key of ({names}): run ALTER TABLE {sink.table} ADD UNIQUE ({names}), or name"
            " the columns of its key",
        )


async def _check_schema(document: "DocumentTable", sink: "TableSink", connection: Connection) -> None:
    given = sink.table.rpartition(".")[0]
    ((schema,),) = await _rows(connection, "SELECT coalesce(nullif(%s::text, ''), current_schema()::text)", given)
    rows = await _rows(
        connection, "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s", schema
    )
    if not rows:
        document.refuse("sink.table", f"there is no schema {schema}: run CREATE SCHEMA {schema}, or correct the name")
    elif not rows[0][0]:
        user = connection.info.user
        document.refuse(
            "sink.table",
            f"there is no table {sink.table}, and the role {user} may not create it: run GRANT CREATE ON SCHEMA {schema} TO"
            f" {user}",
        )


async def _rows(connection: Connection, statement: str, *values: object) -> list[tuple[object, ...]]:
    return await (await connection.execute(statement, values or None)).fetchall()

"""What the connectors ask of a database's catalog: settings, slot, publication, tables and their keys, types."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from psycopg import sql

from .changes.alterations import columns_of
from .changes.change_stream import SeenTransactions
from .changes.faults import KeyMissingError, ServerSetupError, SlotLostError
from .changes.lsn import lsn_of, lsn_text
from .changes.pgoutput import Column, Identity, Relation
from .changes.position import Position, TableProgress
from .changes.values import TypeRow, Types
from .server import Connection

COLUMNS_OF_PUBLICATIONS: Final = 150_000  # the version of the server from which a publication can name columns and rows
_SLOT: Final = """
    SELECT plugin, slot_type, database, active, active_pid, confirmed_flush_lsn::text, restart_lsn::text, wal_status,
        pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint,
        pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint, safe_wal_size, pg_current_wal_lsn()::text
    FROM pg_replication_slots WHERE slot_name = %s"""
_TABLES: Final = """
    SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relreplident::text, {rows}
    FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    WHERE p.pubname = %s ORDER BY 2, 3"""
_COLUMNS: Final = """
    SELECT a.attname, a.atttypid::bigint, t.typname, i.indrelid IS NOT NULL, a.attstorage IN ('x', 'e'), a.atttypmod
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])
        AND CASE WHEN %(identity)s = 'i' THEN i.indisreplident ELSE i.indisprimary END
    WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum"""
_TYPES: Final = """
    SELECT oid::bigint, typname, CASE WHEN typcategory = 'A' THEN typelem::bigint ELSE 0 END, typbasetype::bigint,
        COALESCE((SELECT e.typdelim FROM pg_type e WHERE e.oid = t.typelem), ',')::text
    FROM pg_type t WHERE oid < 10000 OR oid = ANY(%s)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A row of pg_replication_slots."""

    name: str
    plugin: str
    database: str
    active_pid: int | None
    confirmed_lsn: int
    wal_status: str  # reserved, extended, unreserved, lost
    lag_bytes: int  # of the log behind the confirmed position
    retained_bytes: int  # of the log that the server keeps for the slot
    safe_bytes: int | None  # that can be written before the slot may be lost; None: no limit
    current_lsn: int  # the end of the server's log


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    relation: Relation
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    is_partitioned: bool
    row_filter: str  # a condition in SQL; "": all rows
    has_large_values: bool

    @property
    def name(self) -> str:
        return self.relation.table

    @property
    def progress(self) -> TableProgress:
        return TableProgress(
            oid=self.relation.oid,
            key=self.key,
            key_types=self.key_types,
            columns=columns_of(self.relation),
        )


def is_captured(patterns: list[str], table: str) -> bool:
    return any(fnmatchcase(table, pattern) for pattern in patterns)


async def check_server(connection: Connection) -> None:
    """Raises ServerSetupError."""
    row = await (await connection.execute("SHOW wal_level")).fetchone()
    assert row is not None
    if row[0] != "logical":
        raise ServerSetupError(
            f"wal_level of the server is {row[0]}, and changes need logical: run ALTER SYSTEM SET wal_level = logical, and"
            " restart the server"
        )


async def seen_transactions(connection: Connection) -> SeenTransactions:
    """What all later queries see, too."""
    row = await (await connection.execute("SELECT pg_current_snapshot()::text")).fetchone()
    assert row is not None
    return SeenTransactions.of(str(row[0]))


async def log_end(connection: Connection) -> int:
    """The position at which the server writes its log now."""
    row = await (await connection.execute("SELECT pg_current_wal_lsn()::text")).fetchone()
    assert row is not None
    return lsn_of(str(row[0]))


async def slot_of(connection: Connection, name: str) -> Slot | None:
    row = await (await connection.execute(_SLOT, (name,))).fetchone()
    if row is None:
        return None
    plugin, kind, database, is_active, pid, confirmed, _restart, wal_status, lag, retained, safe, now = row
    if kind != "logical" or plugin != "pgoutput":
        raise ServerSetupError(
            f"slot {name} is of another kind ({kind}, {plugin}): choose another name for the key slot of the file"
        )
    return Slot(
        name=name,
        plugin=str(plugin),
        database=str(database),
        active_pid=int(str(pid)) if is_active else None,
        confirmed_lsn=lsn_of(str(confirmed)) if confirmed else 0,
        wal_status=str(wal_status),
        lag_bytes=int(str(lag or 0)),
        retained_bytes=int(str(retained or 0)),
        safe_bytes=None if safe is None else int(str(safe)),
        current_lsn=lsn_of(str(now)),
    )


def check_slot(slot: Slot | None, name: str, lsn: int) -> None:
    """The slot must have everything from the position on. Raises SlotLostError."""
    cure = "run `barnabas connect reset FILE`: topics get a truncation, and all tables are read again"
    if slot is None:
        raise SlotLostError(
            f"slot {name} does not exist any more, so changes after {lsn_text(lsn)} are lost (was it dropped, or the server"
            f" replaced by a standby?): {cure}"
        )
    if slot.wal_status == "lost":
        raise SlotLostError(
            f"the server has discarded log that slot {name} needs, because it exceeded max_slot_wal_keep_size: raise that"
            f" setting, drop the slot (SELECT pg_drop_replication_slot('{name}')), then {cure}"
        )
    if slot.current_lsn < lsn:
        raise SlotLostError(
            f"the log of the server ends at {lsn_text(slot.current_lsn)}, before the position of this connector,"
            f" {lsn_text(lsn)}: the server was restored from an older backup, and what it writes now would be taken for known."
            f" To follow it, {cure}"
        )
    if slot.confirmed_lsn > lsn:
        raise SlotLostError(
            f"slot {name} stands at {lsn_text(slot.confirmed_lsn)}, and this connector at {lsn_text(lsn)}: another program has"
            f" used the slot, or it was dropped and created again, so changes between are lost. Give each connector its own"
            f" slot, and {cure}"
        )


def check_timeline(position: Position, timeline: int, ends: Mapping[int, int]) -> None:
    """A standby that was promoted continues the log that it has, which may end before that of the old primary did.

    Raises SlotLostError."""
    end_lsn, known_lsn = ends.get(position.timeline), position.last_known_lsn
    if end_lsn is not None and known_lsn <= end_lsn:
        return
    until = "is not of its history" if end_lsn is None else f"ended there at {lsn_text(end_lsn)}"
    raise SlotLostError(
        f"the server was promoted or restored: its log is of timeline {timeline}, and timeline {position.timeline}, which this"
        f" connector has read up to {lsn_text(known_lsn)}, {until}. The topics may have changes that the server does not have,"
        f" and its own changes up to there would be left out: run `barnabas connect reset FILE`: topics get a truncation, and"
        " all tables are read again"
    )


async def published_tables(connection: Connection, publication: str, patterns: list[str]) -> dict[str, PublishedTable]:
    """Raises ServerSetupError, KeyMissingError."""
    rows = "''" if connection.info.server_version < COLUMNS_OF_PUBLICATIONS else "COALESCE(p.rowfilter, '')"
    statement = sql.SQL(_TABLES).format(rows=sql.SQL(rows))
    found = await (await connection.execute(statement, (publication,))).fetchall()
    if not found:
        await _check_publication(connection, publication)
    tables = {}
    for oid, schema, name, kind, identity, row_filter in found:
        if is_captured(patterns, f"{schema}.{name}"):
            table = await _table(connection, publication, int(str(oid)), str(schema), str(name), str(identity))
            tables[table.name] = _with(table, is_partitioned=kind == "p", row_filter=str(row_filter))
    if not tables:
        raise ServerSetupError(
            f"publication {publication} has no table that the key tables ({', '.join(patterns)}) names: run ALTER PUBLICATION"
            f" {publication} ADD TABLE name, or correct the key tables"
        )
    return tables


def _with(table: PublishedTable, *, is_partitioned: bool, row_filter: str) -> PublishedTable:
    return PublishedTable(
        relation=table.relation,
        key=table.key,
        key_types=table.key_types,
        has_large_values=table.has_large_values,
        is_partitioned=is_partitioned,
        row_filter=row_filter,
    )


async def _check_publication(connection: Connection, publication: str) -> None:
    row = await connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,))
    if await row.fetchone() is None:
        raise ServerSetupError(
            f"publication {publication} does not exist in database {connection.info.dbname}: run CREATE PUBLICATION"
            f" {publication} FOR TABLE name, ... (or FOR ALL TABLES)"
        )


async def _table(
    connection: Connection, publication: str, oid: int, schema: str, name: str, identity: str
) -> PublishedTable:
    given = {"table": oid, "identity": identity}
    rows = await (await connection.execute(_COLUMNS, given)).fetchall()
    published = await _published_columns(connection, publication, schema, name)
    columns, key, key_types, has_large_values = [], [], [], False
    for column, type_oid, type_name, is_key, is_large, modifier in rows:
        if published is not None and column not in published:
            continue
        columns.append(
            Column(
                name=str(column),
                type_oid=int(str(type_oid)),
                is_identity=bool(is_key),
                modifier=int(str(modifier)),
            )
        )
        has_large_values = has_large_values or bool(is_large)
        if is_key:
            key.append(str(column))
            key_types.append(str(type_name))
    if not key or identity == "n":
        raise KeyMissingError(
            f"table {schema}.{name} has no {'primary key' if not key else 'replica identity'}, so its rows cannot be distinct;"
            f" add a primary key (ALTER TABLE {schema}.{name} ADD PRIMARY KEY (...)), choose a unique index"
            f" (ALTER TABLE {schema}.{name} REPLICA IDENTITY USING INDEX name), or leave the table out of the key tables"
        )
    relation = Relation(oid=oid, schema=schema, name=name, identity=Identity(identity), columns=tuple(columns))
    return PublishedTable(
        relation=relation,
        key=tuple(key),
        key_types=tuple(key_types),
        has_large_values=has_large_values,
        is_partitioned=False,
        row_filter="",
    )


async def _published_columns(connection: Connection, publication: str, schema: str, name: str) -> set[str] | None:
    """None: all."""
    if connection.info.server_version < COLUMNS_OF_PUBLICATIONS:
        return None
    row = await (
        await connection.execute(
            "SELECT attnames::text[] FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s",
            (publication, schema, name),
        )
    ).fetchone()
    return None if row is None or row[0] is None else set(row[0])  # type: ignore[call-overload]  # a list of names


async def add_types(connection: Connection, types: Types, oids: list[int]) -> list[str]:
    """The built-in types and these, with the types that they consist of. Returns the names of arrays that are gone."""
    wanted, gone = set(oids), list[str]()
    while wanted:
        rows = await (await connection.execute(_TYPES, (list(wanted),))).fetchall()
        parts: set[int] = set()
        for oid, name, element, base, delimiter in rows:
            row = TypeRow(
                oid=int(str(oid)),
                name=str(name),
                element_oid=int(str(element)),
                base_oid=int(str(base)),
                delimiter=str(delimiter),
            )
            types.add(row)
            parts |= {row.element_oid, row.base_oid}
        for oid in wanted:
            if not types.knows(oid) and (row := types.add_gone(oid)).element_oid:
                gone.append(row.name.removeprefix("_") + "[]")
        wanted = {oid for oid in parts if oid and not types.knows(oid)}
    return gone

"""The sink connector: topics of a source connector into tables, so that each table becomes equal to its source.

It stands on `process_once`: the records of one poll, and how far they reach in the topic, are one transaction of the database,
keyed by the topic's id. After a crash of anything, reading goes on where the database says.

Every partition of a topic has each truncation. The first one that is read empties the table and is noted in
`barnabas_truncations`; records of other partitions that come from before it are then left out. Each transaction holds a share
lock of that note, so a truncation by another worker waits for it.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

import psycopg
from psycopg import errors, sql

from barnabas.net.base.retries import Backoff
from barnabas.net.client.connection.errors import BarnabasError, NoBrokersAvailableError
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.consumer.process_once import process_once

from .changes.faults import ColumnMissingError, SchemaConflictError, ServerSetupError
from .changes.settings import SinkSettings
from .changes.upserts import (
    Order,
    TableBatch,
    TableChange,
    TargetTable,
    Text,
    change_of,
    source_table,
)
from .server import Connection, close, connect, first_line, passes, setup_error

logger = logging.getLogger("barnabas.connect")

PAUSE: Final = Backoff(first_ms=200, max_ms=10_000)  # between runs
STEADY_S: Final = 30.0  # a run that lasted this long was no failed attempt
_CREATE: Final = """CREATE TABLE IF NOT EXISTS barnabas_truncations (
    group_id TEXT NOT NULL, topic TEXT NOT NULL, generation BIGINT NOT NULL, commit_lsn NUMERIC(20) NOT NULL,
    total_order BIGINT NOT NULL, PRIMARY KEY (group_id, topic))"""
_NOTE: Final = "INSERT INTO barnabas_truncations VALUES (%s, %s, 0, 0, 0) ON CONFLICT DO NOTHING"
_GUARD: Final = """SELECT generation, commit_lsn::bigint, total_order FROM barnabas_truncations
    WHERE group_id = %s AND topic = %s FOR SHARE"""
_TRUNCATED: Final = """UPDATE barnabas_truncations SET generation = %s, commit_lsn = %s, total_order = %s
    WHERE group_id = %s AND topic = %s"""
_COLUMNS: Final = """
    SELECT a.attname, CASE WHEN t.typbasetype <> 0 THEN b.typname ELSE t.typname END
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"""
Cursor = Any  # of psycopg, as process_once returns it


async def run_sink(settings: SinkSettings, bootstrap: str, security: SecurityOptions) -> None:
    """Until it is cancelled. Raises ConnectorError, and errors of Barnabas that do not pass by themselves."""
    failures, rng = 0, Random()
    while True:
        started_s = time.monotonic()
        try:
            await Sink(settings, bootstrap, security).run()
        except (psycopg.Error, BarnabasError, OSError) as error:
            reason = _passing_reason(error)
            failures = 1 if time.monotonic() - started_s > STEADY_S else failures + 1
            delay_ms = PAUSE.delay_ms(failures, rng.random)
            logger.warning("starting over connector=%s in_ms=%d reason=%s", settings.name, delay_ms, reason)
            await asyncio.sleep(delay_ms / 1000)


def _passing_reason(error: psycopg.Error | BarnabasError | OSError) -> str:
    """Raises what does not pass by itself."""
    if isinstance(error, psycopg.Error) and not passes(error):
        raise _refused(error) from error
    if isinstance(error, BarnabasError) and not error.retriable and not isinstance(error, NoBrokersAvailableError):
        raise error
    return first_line(error)


def _refused(error: psycopg.Error) -> Exception:
    if isinstance(error, errors.InvalidColumnReference):
        return ServerSetupError(
            f"{first_line(error)}: the target table needs a primary key or a unique constraint on the columns of the records'"
            " keys"
        )
    if isinstance(error, errors.IntegrityError | errors.DataError):
        table = f" of table {error.diag.table_name}" if error.diag.table_name else ""
        return SchemaConflictError(
            f"the database refuses a row{table}: {first_line(error)}. The target must take what its source takes: relax its"
            " constraint or type, or set disable_triggers = true for foreign keys and triggers; the sink goes on from this record"
        )
    return setup_error(error)


class Sink:
    def __init__(self, settings: SinkSettings, bootstrap: str, security: SecurityOptions) -> None:
        self._settings = settings
        self._consumer = Consumer(
            *settings.topics,
            bootstrap=bootstrap,
            pattern=settings.pattern or None,
            group=settings.name,
            auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            client_id=f"connect-{settings.name}",
            missing_topic_timeout_ms=-1,  # A connector may be set up before its topics are.
            **security,
        )
        self._targets: dict[str, TargetTable] = {}  # by topic
        self._guards: dict[str, Order] = {}  # the last truncation of each topic, in the open transaction
        self._batches: dict[str, TableBatch] = {}

    async def run(self) -> None:
        connection = await connect(self._settings.dsn)
        try:
            await self._prepare(connection)
            async with (
                self._consumer as consumer,
                process_once(consumer, connection, max_records=self._settings.max_records) as records,
            ):
                logger.info("sink begins connector=%s", self._settings.name)
                async for record, cursor in records:
                    await self._take(record, cursor)
                    if records.is_last:
                        await self._write_all(cursor)
        finally:
            await close(connection)

    async def _prepare(self, connection: Connection) -> None:
        try:
            await connection.execute(_CREATE)
        except errors.UniqueViolation:
            logger.debug("another worker creates the table at the same time")
        if self._settings.disable_triggers:
            await connection.execute("SET session_replication_role = replica")
        await connection.set_autocommit(False)

    # --- records ------------------------------------------------------------------------------------------------------

    async def _take(self, record: ConsumerRecord, cursor: Cursor) -> None:
        topic, key = record.topic, None if record.key is None else bytes(record.key)
        value = None if record.value is None else bytes(record.value)
        table = self._targets.get(topic)
        if table is None:
            if value is None:
                return  # a topic that begins with a tombstone: compaction has removed the delete, and there is no row
            table = self._targets[topic] = await self._target(topic, value, cursor)
        if topic not in self._guards:
            self._guards[topic] = await self._guard(topic, cursor)
        try:
            change = change_of(key, value, table, topic)
        except ColumnMissingError:  # unless the target got the column meanwhile
            if value is None:
                raise
            await self._write(topic, cursor)
            table = self._targets[topic] = await self._target(topic, value, cursor)
            change = change_of(key, value, table, topic)
        if change.order is not None and change.order < self._guards[topic]:
            return  # from before a truncation that another partition has brought already
        if change.is_truncation:
            await self._truncate(topic, table, change, cursor)
        elif change.new_key is not None:
            await self._write(topic, cursor)
            await cursor.execute(_move(table, change), [*change.new_key.values(), *change.key.values()])
        elif change.key:
            self._batches.setdefault(topic, TableBatch()).add(change)

    async def _target(self, topic: str, value: bytes, cursor: Cursor) -> TargetTable:
        said = self._settings.tables.get(topic)
        if said is None:
            source = source_table(value, topic)
            schema, name = source.schema, source.name
        else:
            schema, _, name = said.rpartition(".")
        full = sql.Identifier(schema or "public", name).as_string(None)
        await cursor.execute(_COLUMNS, (full,))
        types = dict(await cursor.fetchall())
        if not types:
            raise ServerSetupError(
                f"table {schema or 'public'}.{name}, the target of topic {topic}, does not exist: create it like its source"
                " (pg_dump --schema-only --table NAME), or name another one under [tables]"
            )
        return TargetTable(schema=schema or "public", name=name, types=types)

    async def _guard(self, topic: str, cursor: Cursor) -> Order:
        place = (self._settings.name, topic)
        await cursor.execute(_GUARD, place)
        row = await cursor.fetchone()
        if row is None:
            await cursor.execute(_NOTE, place)
            await cursor.execute(_GUARD, place)
            row = await cursor.fetchone()
        return int(row[0]), int(row[1]), int(row[2])

    async def _truncate(self, topic: str, table: TargetTable, change: TableChange, cursor: Cursor) -> None:
        assert change.order is not None
        if change.order == self._guards[topic]:
            return  # another partition has brought it
        self._batches.pop(topic, None)  # it is the first of its kind, so all of these are older
        await cursor.execute(_TRUNCATED, [*change.order, self._settings.name, topic])
        await cursor.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(table.schema, table.name)))
        logger.info("table truncated table=%s.%s topic=%s", table.schema, table.name, topic)
        self._guards[topic] = change.order

    # --- statements ---------------------------------------------------------------------------------------------------

    async def _write_all(self, cursor: Cursor) -> None:
        """The transaction is about to be committed."""
        for topic in list(self._batches):
            await self._write(topic, cursor)
        self._guards.clear()

    async def _write(self, topic: str, cursor: Cursor) -> None:
        batch = self._batches.pop(topic, None)
        if batch is None:
            return
        table = self._targets[topic]
        groups: dict[tuple[object, ...], list[TableChange]] = {}
        for change in batch.take():
            shape = (tuple(change.key), tuple(change.row or ()), change.row is None, change.missing)
            groups.setdefault(shape, []).append(change)
        for changes in groups.values():
            await self._write_alike(table, changes, cursor)

    async def _write_alike(self, table: TargetTable, changes: Sequence[TableChange], cursor: Cursor) -> None:
        first = changes[0]
        if first.row is None:
            await cursor.executemany(_delete(table, first.key), [list(change.key.values()) for change in changes])
        elif not first.missing:
            await cursor.executemany(_upsert(table, first), [list((change.row or {}).values()) for change in changes])
        else:
            rows = [[*(change.row or {}).values(), *change.key.values()] for change in changes]
            await cursor.executemany(_update(table, first), rows)
            if cursor.rowcount != len(rows):
                raise SchemaConflictError(
                    f"{len(rows) - cursor.rowcount} rows of table {table.schema}.{table.name} are missing, of which the records"
                    f" have only some columns ({', '.join(sorted(first.missing))} are large values that an UPDATE did not send):"
                    " was a row deleted here, or the topic compacted? Run ALTER TABLE ... REPLICA IDENTITY FULL in the source,"
                    " and `barnabas connect reset FILE --table NAME` with the source's file"
                )


def _named(*names: str) -> sql.Composable:
    """An identifier in a statement with parameters, in which a percent sign has to be doubled."""
    return sql.SQL(sql.Identifier(*names).as_string(None).replace("%", "%%"))


def _assignments(names: Sequence[str], joint: str) -> sql.Composable:
    return sql.SQL(joint).join(sql.SQL("{} = %s").format(_named(name)) for name in names)


def _delete(table: TargetTable, key: Mapping[str, Text]) -> sql.Composable:
    return sql.SQL("DELETE FROM {} WHERE {}").format(_named(table.schema, table.name), _assignments(list(key), " AND "))


def _move(table: TargetTable, change: TableChange) -> sql.Composable:
    assert change.new_key is not None
    return sql.SQL("UPDATE {} SET {} WHERE {}").format(
        _named(table.schema, table.name),
        _assignments(list(change.new_key), ", "),
        _assignments(list(change.key), " AND "),
    )


def _update(table: TargetTable, change: TableChange) -> sql.Composable:
    return sql.SQL("UPDATE {} SET {} WHERE {}").format(
        _named(table.schema, table.name),
        _assignments(list(change.row or ()), ", "),
        _assignments(list(change.key), " AND "),
    )


def _upsert(table: TargetTable, change: TableChange) -> sql.Composable:
    names = list(change.row or ())
    others = [name for name in names if name not in change.key]
    action: sql.Composable = sql.SQL("NOTHING")
    if others:
        updates = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(_named(name)) for name in others)
        action = sql.SQL("UPDATE SET {}").format(updates)
    return sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({}) ON CONFLICT ({}) DO {}").format(
        _named(table.schema, table.name),
        sql.SQL(", ").join(map(_named, names)),
        sql.SQL(", ").join(sql.Placeholder() for _ in names),
        sql.SQL(", ").join(map(_named, change.key)),
        action,
    )

"""Reading tables as an exported snapshot shows them: ranges of keys in the order of the key, several at a time.

Each reader has a connection of its own that uses the same snapshot. It streams COPY, so that neither side holds a range in
memory, and puts batches of rows into a queue of limited length: a slow topic slows the readers down.

TRUNCATE and an ALTER TABLE that rewrites a table do not respect older snapshots: for these, the table is empty from then on.
So a reader locks a table before it reads it, and compares the table's files with those that the snapshot knows. Names of columns
and tables are those of now, too, while the snapshot decides which values there are: `TableAlteredError` says that the two, or the
columns that the caller knows, do not agree any more, and that a newer snapshot is needed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

import psycopg
from psycopg import sql

from .catalog import PublishedTable, published_tables
from .changes.coverage import NATIVE, KeyText, Range
from .changes.lsn import lsn_text
from .changes.pgoutput import Row
from .changes.settings import SourceSettings
from .replication import ReplicationConnection
from .server import Connection, close, connect, first_line

logger = logging.getLogger("barnabas.connect")

TEMPORARY_SLOT: Final = "barnabas_snapshot_{}"
ROWS_AT_ONCE: Final = 500  # of one item in the queue
# The catalog has rows as of the snapshot; the function knows the files of now.
_SAME: Final = "SELECT to_regclass(%s)::oid::bigint"
_REWRITTEN: Final = """
    SELECT c.oid::regclass::text FROM pg_class c
    WHERE c.oid IN (SELECT %(table)s::oid UNION SELECT relid::oid FROM pg_partition_tree(%(table)s::oid::regclass))
        AND c.relkind = 'r' AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)"""
MAX_QUEUED: Final = 8  # items: with ROWS_AT_ONCE rows each, what is held in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    table: PublishedTable
    range: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of a chunk, in the order of the key. They complete `range`, which begins where the last ones of the chunk ended."""

    table: PublishedTable
    rows: Sequence[Row]
    range: Range


class TableAlteredError(psycopg.OperationalError):
    """A table is not what the caller or the snapshot knows. It passes: a newer snapshot has the table as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    error: BaseException


class SnapshotReaders:
    """Reads chunks by several connections. Used in `async with`; `next` gives what was read, in any order of the chunks."""

    def __init__(self, dsn: str, snapshot: str, lsn: int, *, count: int, chunk_rows: int) -> None:
        self._dsn = dsn
        self._snapshot = snapshot
        self._lsn = lsn
        self._count = count
        self._chunk_rows = chunk_rows
        self._chunks: list[Chunk] = []
        self._queue: asyncio.Queue[ReadRows | _Failed | None] = asyncio.Queue(MAX_QUEUED)
        self._tasks: list[asyncio.Task[None]] = []
        self._running = 0

    async def start(self, tables: Sequence[PublishedTable], gaps: Sequence[Sequence[Range]]) -> None:
        """`gaps`: of each table, what is to be read. Raises TableAlteredError."""
        connection = await self._connect()
        try:
            for table, missing in zip(tables, gaps, strict=True):
                with _known(table):
                    await _check_table(connection, table)
                    for gap in missing:
                        ranges = await self._split(connection, table, gap)
                        self._chunks += [Chunk(table=table, range=found) for found in ranges]
        finally:
            await close(connection)
        self._chunks.reverse()  # they are taken from the end
        self._running = min(self._count, len(self._chunks))
        self._tasks = [asyncio.create_task(self._read_chunks()) for _ in range(self._running)]

    @property
    def chunks_left(self) -> int:
        return len(self._chunks)

    async def next(self, timeout_s: float | None) -> ReadRows | None:
        """None at the end. Raises what a reader raised, and TimeoutError."""
        while self._running:
            async with asyncio.timeout(timeout_s):
                found = await self._queue.get()
            if isinstance(found, _Failed):
                raise found.error
            if found is not None:
                return found
            self._running -= 1
        return None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self) -> Connection:
        connection = await connect(self._dsn)
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self._snapshot)))
        return connection

    async def _read_chunks(self) -> None:
        try:
            connection = await self._connect()
            try:
                while self._chunks:
                    chunk = self._chunks.pop()
                    with _known(chunk.table):
                        await _check_table(connection, chunk.table)
                        await self._read(connection, chunk)
            finally:
                await close(connection)
        except Exception as error:  # noqa: BLE001 - `next` raises it
            await self._queue.put(_Failed(error=error))
            return
        await self._queue.put(None)

    async def _split(self, connection: Connection, table: PublishedTable, gap: Range) -> list[Range]:
        """Chunks of about `chunk_rows`, where the key's index finds them; otherwise one chunk, in one pass over the table."""
        if table.key_types[0] not in NATIVE:
            return [gap]
        key = _names(table)
        statement = sql.SQL(
            "SELECT {texts} FROM"
            " (SELECT {key}, row_number() OVER (ORDER BY {order}) AS barnabas_row FROM {table} WHERE {where}) s"
            " WHERE barnabas_row % {size} = 0 ORDER BY barnabas_row"
        ).format(
            texts=sql.SQL(", ").join(sql.SQL("{}::text").format(name) for name in key),
            key=sql.SQL(", ").join(key),
            order=_order(table),
            table=_from(table),
            where=_where(table, gap),
            size=sql.Literal(self._chunk_rows),
        )
        bounds = [tuple(map(str, row)) for row in await (await connection.execute(statement)).fetchall()]
        if bounds and bounds[-1] == gap.upper:
            bounds.pop()
        lowers: list[KeyText | None] = [gap.lower, *bounds]
        uppers: list[KeyText | None] = [*bounds, gap.upper]
        return [Range(lower=lower, upper=upper) for lower, upper in zip(lowers, uppers, strict=True)]

    async def _read(self, connection: Connection, chunk: Chunk) -> None:
        table = chunk.table
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
        statement = sql.SQL("COPY (SELECT {} FROM {} WHERE {} ORDER BY {}) TO STDOUT").format(
            names, _from(table), _where(table, chunk.range), _order(table)
        )
        numbers = [[column.name for column in table.relation.columns].index(name) for name in table.key]
        lower, rows = chunk.range.lower, list[Row]()
        async with connection.cursor() as cursor, cursor.copy(statement) as copy:
            async for row in copy.rows():
                if len(rows) == ROWS_AT_ONCE:
                    upper: KeyText = tuple(str(rows[-1][number]) for number in numbers)
                    await self._put(table, rows, lower, upper)
                    lower, rows = upper, []
                rows.append(row)
        await self._put(table, rows, lower, chunk.range.upper)

    async def _put(self, table: PublishedTable, rows: list[Row], lower: KeyText | None, upper: KeyText | None) -> None:
        await self._queue.put(ReadRows(table=table, rows=rows, range=Range(lower=lower, upper=upper, lsn=self._lsn)))


@asynccontextmanager
async def exported(
    settings: SourceSettings, tables: Sequence[PublishedTable], gaps: Sequence[Sequence[Range]]
) -> AsyncIterator[tuple[SnapshotReaders, int]]:
    """Readers of these gaps of the tables, all in one snapshot of the server, and the LSN up to which it sees transactions.

    Raises TableAlteredError."""
    replication = await ReplicationConnection.open(settings.dsn)
    try:
        snapshot = await replication.export_snapshot(TEMPORARY_SLOT.format(f"{Random().getrandbits(64):x}"))
        logger.info("snapshot begins connector=%s tables=%d lsn=%s", settings.name, len(tables), lsn_text(snapshot.lsn))
        readers = SnapshotReaders(
            settings.dsn,
            snapshot.name,
            snapshot.lsn,
            count=settings.snapshot.readers,
            chunk_rows=settings.snapshot.chunk_rows,
        )
        try:
            await _check_columns(settings, tables)
            await readers.start(tables, gaps)
            yield readers, snapshot.lsn
        finally:
            await readers.close()
    finally:
        await replication.close()


async def _check_table(connection: Connection, table: PublishedTable) -> None:
    """Lock the table until the connection ends. Raises TableAlteredError if the snapshot cannot read it any more."""
    await connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(_from(table)))
    name = sql.Identifier(table.relation.schema, table.relation.name).as_string(connection)
    same = await (await connection.execute(_SAME, (name,))).fetchone()
    if same != (table.relation.oid,):
        raise TableAlteredError(f"another table has the name {table.name} since the snapshot")
    found = await connection.execute(_REWRITTEN, {"table": table.relation.oid})
    if (row := await found.fetchone()) is not None:
        raise TableAlteredError(
            f"table {row[0]} was truncated or rewritten after the snapshot, which has lost its rows"
        )


@contextmanager
def _known(table: PublishedTable) -> Iterator[None]:
    """Raises TableAlteredError for names that are not there any more."""
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidSchemaName) as error:
        raise TableAlteredError(f"table {table.name} was altered after the snapshot: {first_line(error)}") from error


async def _check_columns(settings: SourceSettings, tables: Sequence[PublishedTable]) -> None:
    """A snapshot waits for transactions that are open, and sees what they did: it has columns that the catalog did not have when
    these tables were looked up, and their values would be left out. Raises TableAlteredError."""
    connection = await connect(settings.dsn)
    try:
        known = await published_tables(connection, settings.publication, settings.tables)
    finally:
        await close(connection)
    for table in tables:
        if known.get(table.name) != table:
            raise TableAlteredError(f"table {table.name} was altered while the snapshot was created")


# --- statements ----------------------------------------------------------------------------------------------------------


def _names(table: PublishedTable) -> list[sql.Identifier]:
    return [sql.Identifier(name) for name in table.key]


def _from(table: PublishedTable) -> sql.Composable:
    name = sql.Identifier(table.relation.schema, table.relation.name)
    return name if table.is_partitioned else sql.SQL("ONLY {}").format(name)


def _sorted_as(name: sql.Identifier, type_name: str) -> sql.Composable:
    """What `KeyOrder.sortable` compares: the column itself, or the UTF-8 bytes of its text."""
    return name if type_name in NATIVE else sql.SQL("convert_to({}::text, 'UTF8')").format(name)


def _sorted_literal(text: str, type_name: str) -> sql.Composable:
    literal = sql.Literal(text)
    if type_name in NATIVE:
        return sql.SQL("{}::{}").format(literal, sql.SQL(type_name))
    return sql.SQL("convert_to({}::text, 'UTF8')").format(literal)


def _order(table: PublishedTable) -> sql.Composable:
    named = zip(_names(table), table.key_types, strict=True)
    return sql.SQL(", ").join(_sorted_as(name, type_name) for name, type_name in named)


def _where(table: PublishedTable, found: Range) -> sql.Composable:
    conditions: list[sql.Composable] = [sql.SQL("true")]
    key = sql.SQL("({})").format(_order(table))
    for sign, bound in ((">", found.lower), ("<=", found.upper)):
        if bound is not None:
            literals = [
                _sorted_literal(text, type_name) for text, type_name in zip(bound, table.key_types, strict=True)
            ]
            conditions.append(sql.SQL("{} {} ({})").format(key, sql.SQL(sign), sql.SQL(", ").join(literals)))
    if table.row_filter:
        conditions.append(sql.SQL("({})").format(sql.SQL(table.row_filter)))
    return sql.SQL(" AND ").join(conditions)

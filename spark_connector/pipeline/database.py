"""Relational databases as a sink: PostgreSQL and SQLite. Rows and a ledger of what is written are one transaction."""

import re
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final

from .faults import PipelineFault

ROWS_AT_ONCE: Final = 1_000  # of one round trip; the driver's memory holds no more, however large a batch is
LEDGER: Final = "barnabas_pipelines"
NOTHING_YET: Final = -1  # in the ledger: before the first micro-batch
TRUNCATIONS: Final = "barnabas_pipeline_truncations"
_CREATE_LEDGER: Final = (
    f"CREATE TABLE IF NOT EXISTS {LEDGER} (sink_id VARCHAR(250) PRIMARY KEY, batch_id BIGINT NOT NULL)"
)
_CREATE_TRUNCATIONS: Final = (
    f"CREATE TABLE IF NOT EXISTS {TRUNCATIONS} (sink_id VARCHAR(250) PRIMARY KEY,"
    " generation BIGINT NOT NULL, lsn BIGINT NOT NULL, place BIGINT NOT NULL)"
)
_PLACE: Final = re.compile(r"\?")
_NAMES: Final = re.compile(r'("(?:[^"]|"")*")')
_SQLITE_WAIT_S: Final = 60  # for other writers of the file


class Database:
    """A kind of database: how it is reached, what stands for a value in its SQL, and how writers are kept apart."""

    def __init__(self, address: str, *, ledger: str = LEDGER) -> None:
        """`address` is sqlite:FILE or postgresql:CONNECTION. Raises ValueError."""
        kind, _, self._place = address.partition(":")
        if kind not in ("sqlite", "postgresql") or not self._place:
            raise ValueError(f"{address!r}: write sqlite:FILE or postgresql:CONNECTION")
        self.is_sqlite = kind == "sqlite"
        self._ledger = ledger

    def connect(self) -> Any:
        if self.is_sqlite:
            return sqlite3.connect(self._place, timeout=_SQLITE_WAIT_S, isolation_level=None)
        import psycopg

        from barnabas.net.programs.connect.postgres.server import with_liveness

        return psycopg.connect(with_liveness(self._place), autocommit=True)

    @property
    def file(self) -> Path:
        """Of SQLite."""
        return Path(self._place)

    @property
    def refusals(self) -> type[Exception]:
        """Errors of a statement that the same statement would raise again, not those of a server that is gone."""
        if self.is_sqlite:
            return sqlite3.OperationalError
        import psycopg

        return psycopg.ProgrammingError

    def typed(self, statement: str, columns: Mapping[str, str]) -> str:
        """The statement with a null of its column's type for each value. Text takes the table's type, as psycopg sends it."""
        has_types = not self.is_sqlite
        nulls = iter([f"NULL::{kind}" if has_types and kind != "TEXT" else "NULL" for kind in columns.values()])
        return _with_values(statement, lambda: next(nulls))

    def begin(self, cursor: Any, *, is_locking: bool = True) -> None:
        """Start a transaction that excludes other transactions on the ledger."""
        if self.is_sqlite:
            cursor.execute("BEGIN IMMEDIATE")
            return
        cursor.execute("BEGIN")
        if not is_locking:
            return
        cursor.execute(f"LOCK TABLE {self._ledger} IN EXCLUSIVE MODE")

    def sql(self, statement: str) -> str:
        """Of a statement with `?` for each value. Names may have the letters that psycopg reads as places of values."""
        if self.is_sqlite:
            return statement
        return _with_values(statement.replace("%", "%%"), lambda: "%s")


def _with_values(statement: str, value: Callable[[], str]) -> str:
    """The statement with something else for each `?` that is not part of a name."""
    parts = _NAMES.split(statement)  # names are at the odd places
    return "".join(part if number % 2 else _PLACE.sub(lambda _: value(), part) for number, part in enumerate(parts))


class TableWriter:
    """Writes the rows of micro-batches to one table, each micro-batch once."""

    def __init__(
        self,
        database: Database,
        *,
        table: str,
        columns: Mapping[str, str],
        key: Sequence[str],
        sink_id: str,
        has_changes: bool = False,
    ) -> None:
        """`columns`: the types in the database's SQL, by name. Rows with an equal `key` replace each other. With `has_changes`,
        rows have four more values, the kind of the change and CHANGE_ORDER, and come in this order."""
        self._has_changes = has_changes
        self._key_places = [list(columns).index(name) for name in key]
        self._database = database
        self._columns = columns
        self._key = key
        self._table = ".".join(map(quoted, table.split(".")))  # may have its schema: web.requests
        self._sink_id = sink_id

    def check(self) -> None:
        """Try what `write` does, without rows, and undo it. Raises PipelineFault where the database refuses the rows' columns."""
        if self._database.is_sqlite and not self._database.file.exists():
            return  # connecting would make it
        with closing(self._database.connect()) as connection, closing(connection.cursor()) as cursor:
            self._database.begin(cursor, is_locking=False)
            try:
                cursor.execute(_CREATE_LEDGER)
                cursor.execute(self._create())
                cursor.execute(f"EXPLAIN {self._database.typed(self._insert(), self._columns)}")
            except self._database.refusals as error:
                where = "sink.table: the database refuses rows with the columns"
                columns = ", ".join(f"{name} {kind}" for name, kind in self._columns.items())
                raise PipelineFault(
                    f"{where} {columns}: {' '.join(str(error).split())}: change the last step, or ALTER TABLE {self._table}"
                ) from error
            finally:
                cursor.execute("ROLLBACK")

    def empty_once(self) -> None:
        """Remove all rows, unless this sink id has done that or written something. Readers see both or nothing of it."""
        with closing(self._database.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(_CREATE_LEDGER)
            cursor.execute(self._create())
            self._database.begin(cursor)
            cursor.execute(self._database.sql(f"SELECT batch_id FROM {LEDGER} WHERE sink_id = ?"), (self._sink_id,))
            if cursor.fetchone() is None:
                cursor.execute(f"DELETE FROM {self._table}")
                cursor.execute(self._database.sql(f"INSERT INTO {LEDGER} VALUES (?, ?)"), (self._sink_id, NOTHING_YET))
            cursor.execute("COMMIT")

    def write(self, batch_id: int, rows: Iterator[Sequence[Any]]) -> int:
        """In one transaction; returns the number of rows, 0 if the micro-batch is written already.

        The rows are computed in any case: Spark moves its state and its watermark forward only with what is computed.
        """
        with closing(self._database.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(_CREATE_LEDGER)
            cursor.execute(self._create())
            if self._has_changes:
                cursor.execute(_CREATE_TRUNCATIONS)
            self._database.begin(cursor)
            cursor.execute(self._database.sql(f"SELECT batch_id FROM {LEDGER} WHERE sink_id = ?"), (self._sink_id,))
            reached = cursor.fetchone()
            if reached is not None and batch_id <= reached[0]:
                cursor.execute("ROLLBACK")
                deque(rows, maxlen=0)
                return 0
            count = 0
            while some := list(islice(rows, ROWS_AT_ONCE)):
                if self._has_changes:
                    self._apply(cursor, some)
                else:
                    cursor.executemany(self._database.sql(self._insert()), some)
                count += len(some)
            note = (
                f"INSERT INTO {LEDGER} VALUES (?, ?) ON CONFLICT (sink_id) DO UPDATE SET batch_id = excluded.batch_id"
            )
            cursor.execute(self._database.sql(note), (self._sink_id, batch_id))
            cursor.execute("COMMIT")
            return count

    def _apply(self, cursor: Any, changes: Sequence[Sequence[Any]]) -> None:
        """The last change of each key. Every partition has each truncation: the first one empties the table, and changes
        that other partitions bring from before it are left out."""
        cursor.execute(
            self._database.sql(f"SELECT generation, lsn, place FROM {TRUNCATIONS} WHERE sink_id = ?"), (self._sink_id,)
        )
        before = emptied = tuple(cursor.fetchone() or (0, 0, 0))
        last: dict[tuple[Any, ...], Sequence[Any] | None] = {}
        for *row, op, generation, lsn, place in changes:
            at = (generation, lsn, place)
            if op == "t" and at > emptied:
                last.clear()
                emptied = at
            elif op != "t" and at >= emptied:
                last[tuple(row[number] for number in self._key_places)] = None if op == "d" else row
        if emptied > before:
            cursor.execute(f"DELETE FROM {self._table}")
            note = (
                f"INSERT INTO {TRUNCATIONS} VALUES (?, ?, ?, ?) ON CONFLICT (sink_id) DO UPDATE"
                " SET generation = excluded.generation, lsn = excluded.lsn, place = excluded.place"
            )
            cursor.execute(self._database.sql(note), (self._sink_id, *emptied))
        gone = [key for key, row in last.items() if row is None]
        there = [row for row in last.values() if row is not None]
        if gone:
            condition = " AND ".join(f"{quoted(name)} = ?" for name in self._key)
            cursor.executemany(self._database.sql(f"DELETE FROM {self._table} WHERE {condition}"), gone)
        if there:
            cursor.executemany(self._database.sql(self._insert()), there)

    def _create(self) -> str:
        parts = [f"{quoted(name)} {kind}" for name, kind in self._columns.items()]
        if self._key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, self._key))})")
        return f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join(parts)})"

    def _insert(self) -> str:
        names = ", ".join(map(quoted, self._columns))
        statement = f"INSERT INTO {self._table} ({names}) VALUES ({', '.join('?' * len(self._columns))})"
        if not self._key:
            return statement
        others = [quoted(name) for name in self._columns if name not in self._key]
        change = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
        return f"{statement} ON CONFLICT ({', '.join(map(quoted, self._key))}) DO {change}"


def quoted(name: str) -> str:
    """A name in SQL, whatever letters it has."""
    return '"' + name.replace('"', '""') + '"'

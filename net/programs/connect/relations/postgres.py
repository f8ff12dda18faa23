"""`PostgresRelation`: a table or a query of a PostgreSQL server, and up to which value of a column all of its rows are there.

A row with a smaller number can become visible after one with a larger number: its transaction took the number earlier, and
ended later. So the largest value that is seen counts only when all transactions that could have taken smaller ones have ended.
Those that write to a table hold a lock of it, from before they compute their rows (an INSERT locks first), and those that have
taken a number of its sequence hold a lock of that. A time, such as now(), is that of the transaction's start, so for times, and
for queries and views, all transactions of the database count.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import conninfo

from barnabas.net.base.near_words import did_you_mean

from ..postgres.server import CONNECT_TIMEOUT_S, OPTIONS, first_line, with_liveness
from .relation import (
    ROWS_AT_ONCE,
    Between,
    Place,
    Reached,
    RelationError,
    SqlColumn,
    SqlRelation,
    UnreachableError,
    qualified,
    quoted,
)

APPLICATION: Final = "barnabas pipeline"
MAX_TABLES: Final = 10_000  # in which near names are searched
_TYPES: Final[Mapping[str, str]] = {
    "int2": "smallint", "int4": "int", "int8": "bigint", "float4": "float", "float8": "double", "bool": "boolean",
    "date": "date", "timestamp": "timestamp_ntz", "timestamptz": "timestamp", "bytea": "binary",
    "text": "string", "varchar": "string", "bpchar": "string", "name": "string",
}  # fmt: skip
_PLACES: Final = ("int2", "int4", "int8", "timestamp", "timestamptz")
_MAX_PRECISION: Final = 38
_RELATION: Final = """
    SELECT c.oid::bigint, c.relkind = 'r' AND NOT c.relhassubclass, has_table_privilege(c.oid, 'SELECT')
        AND has_schema_privilege(c.relnamespace, 'USAGE')
    FROM pg_class c WHERE c.oid = to_regclass(%s)"""
_HAS_XMIN: Final = "SELECT FROM pg_class WHERE oid = to_regclass(%s) AND relkind IN ('r', 'p')"
# Ids of rows are the lower half of those of snapshots. Rows that were frozen keep theirs, and after two billion transactions it
# looks like one of the future, whose age is negative.
_IS_SINCE: Final = "age(xmin) BETWEEN 0 AND age((%s::bigint & 4294967295)::text::xid)"
_NAMES: Final = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
        AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%' ORDER BY 1 LIMIT %s"""
# Of the sequence that the column owns, or that its default names.
_CACHE: Final = """
    SELECT max(s.seqcache) FROM pg_sequence s, pg_attribute c
    WHERE c.attrelid = to_regclass(%(table)s) AND c.attname = %(column)s AND s.seqrelid IN (
        SELECT objid FROM pg_depend WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass
            AND refobjid = c.attrelid AND refobjsubid = c.attnum
        UNION SELECT d.refobjid FROM pg_attrdef a JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
            WHERE d.refclassid = 'pg_class'::regclass AND a.adrelid = c.attrelid AND a.adnum = c.attnum)"""
# Also those that have taken a number and insert later: nextval locks the sequence until its transaction ends.
_WRITERS_OF_TABLE: Final = """
    SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted AND relation IN (
        SELECT to_regclass(%(table)s)::oid
        UNION SELECT objid FROM pg_depend
            WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass AND refobjid = to_regclass(%(table)s)
        UNION SELECT d.refobjid FROM pg_attrdef a JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
            WHERE d.refclassid = 'pg_class'::regclass AND a.adrelid = to_regclass(%(table)s))
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid IS DISTINCT FROM pg_backend_pid()
        AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"""
# Processes of the server itself have no user. A transaction that was prepared has no process.
_WRITERS: Final = """
    SELECT l.virtualtransaction FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype IN ('virtualxid', 'transactionid') AND l.granted AND l.mode = 'ExclusiveLock'
        AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND (a.pid IS NULL OR a.usesysid IS NOT NULL AND a.datname = current_database() AND a.application_name <> %s)"""


class PostgresRelation(SqlRelation):
    keeps_connections = True

    def opened(self) -> psycopg.Connection[Any]:
        try:
            given = conninfo.conninfo_to_dict(with_liveness(self.place))
        except psycopg.ProgrammingError as error:
            raise RelationError(
                "database", f"the connection cannot be read: {first_line(error)}: correct it"
            ) from error
        given["options"] = f"{given.get('options') or ''} {OPTIONS}".strip()
        given["application_name"] = APPLICATION
        given.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
        given["client_encoding"] = "utf8"
        try:
            connection = psycopg.connect(conninfo.make_conninfo("", **given))
        except psycopg.Error as error:
            words = "correct host, port, user and dbname, start the server, or put the password into ~/.pgpass"
            raise UnreachableError(f"the server cannot be asked: {first_line(error)}: {words}") from error
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    @contextmanager
    def told_errors(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as error:
            role = connection.info.user
            words = f"the role {role} lacks a right: {first_line(error)}: run GRANT SELECT ON the table TO {role}"
            raise RelationError(self.key, words) from error
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
            raise RelationError(self.key, f"the database refuses it: {first_line(error)}: correct it") from error
        except psycopg.OperationalError as error:  # a limit of time, a shutdown, a lost connection
            words = f"the server has not answered a question: {first_line(error)}: start it, or end what holds it up"
            raise UnreachableError(words) from error

    def is_broken(self, connection: psycopg.Connection[Any]) -> bool:
        return connection.broken or connection.closed

    @property
    def _quoted_table(self) -> str:
        return ".".join(map(quoted, self.table.split(".")))

    def columns(self, connection: psycopg.Connection[Any]) -> tuple[SqlColumn, ...]:
        if self.table:
            self._require_table(connection)
        found = connection.execute(f"SELECT * FROM {self.source} LIMIT 0").description or []
        return tuple(_column(connection, column) for column in found)

    def _require_table(self, connection: psycopg.Connection[Any]) -> None:
        row = connection.execute(_RELATION, (self._quoted_table,)).fetchone()
        if row is None:
            known = [row[0] for row in connection.execute(_NAMES, (MAX_TABLES,))]
            near = did_you_mean(self.table.rpartition(".")[2], known)
            words = f"there is no table {self.table!r} in the database {connection.info.dbname}{near}: correct the name"
            raise RelationError("table", words)
        if not row[2]:
            role, schema = connection.info.user, self.table.rpartition(".")[0]
            usage = f"GRANT USAGE ON SCHEMA {schema} TO {role}; " if schema else ""
            raise RelationError(
                "table",
                f"the role {role} may not read {self.table}: run as its owner: {usage}GRANT SELECT ON {self.table} TO {role}",
            )

    # --- how far it is complete ---------------------------------------------------------------------------------------

    def reached(self, connection: psycopg.Connection[Any], column: SqlColumn) -> Reached:
        """The value first, then the locks: a writer that has ended between them is seen by whoever reads afterwards. So each
        statement must see the newest state, whatever default the role has."""
        _see_the_newest(connection)
        self.require_values(connection, column)
        ((oldest,),) = connection.execute("SELECT txid_snapshot_xmin(txid_current_snapshot())")
        limits = self.limits(connection, column, None)
        return Reached(
            last=None if limits is None else limits[1], writers=self._writers(connection, column), oldest=oldest
        )

    def writers(self, connection: psycopg.Connection[Any], column: SqlColumn) -> frozenset[str]:
        _see_the_newest(connection)
        return self._writers(connection, column)

    def first_since(self, connection: psycopg.Connection[Any], column: SqlColumn, reached: Reached) -> Place | None:
        """Rows of transactions that were no older than the oldest open one, so also of some that had ended before. The rows of a
        query or of a view do not say which transaction has written them: there is none."""
        if not reached.writers or reached.last is None or not self.table:
            return None
        _see_the_newest(connection)
        if connection.execute(_HAS_XMIN, (self._quoted_table,)).fetchone() is None:
            return None
        until = self.condition(Between(column=column.name, after=None, until=reached.last))
        statement = f"SELECT min({qualified(column.name)}) FROM {self.source} WHERE {until} AND {_IS_SINCE}"
        ((found,),) = connection.execute(statement, (reached.oldest,))
        return None if found is None else self._place(column, found)

    def _writers(self, connection: psycopg.Connection[Any], column: SqlColumn) -> frozenset[str]:
        _require_primary(connection)
        is_number = not column.type_name.startswith("timestamp")
        if self.table and is_number and self._is_one_table(connection):
            return frozenset(row[0] for row in connection.execute(_WRITERS_OF_TABLE, {"table": self._quoted_table}))
        return frozenset(row[0] for row in connection.execute(_WRITERS, (APPLICATION,)))

    def _is_one_table(self, connection: psycopg.Connection[Any]) -> bool:
        """Not a view, and without partitions, which are written and locked by their own names."""
        row = connection.execute(_RELATION, (self._quoted_table,)).fetchone()
        return row is not None and bool(row[1])

    def check_growing(self, connection: psycopg.Connection[Any], column: SqlColumn) -> None:
        _require_primary(connection)
        if not self.table or not self._is_one_table(connection):
            return
        ((cached,),) = connection.execute(_CACHE, {"table": self._quoted_table, "column": column.name})
        if cached is not None and cached > 1:
            raise RelationError(
                "increasing",
                f"{column.name} takes its numbers from a sequence with CACHE {cached}: sessions keep small numbers for later. Run"
                f" ALTER SEQUENCE ... CACHE 1, and end the sessions that write",
            )

    def rows(
        self,
        connection: psycopg.Connection[Any],
        columns: Sequence[SqlColumn],
        between: Between | None,
        *,
        is_ordered: bool,
    ) -> Iterator[Sequence[tuple[Any, ...]]]:
        selected = [f"{qualified(column.name)}{'::text' if column.is_text else ''}" for column in columns]
        if is_ordered:  # of a stream, which does not come back for what a standby does not have yet
            _require_primary(connection)
        with connection.cursor(name="barnabas_rows") as cursor:  # the server keeps what has not been fetched
            cursor.execute(self.statement(selected or ["1"], between, is_ordered=is_ordered))
            while some := cursor.fetchmany(ROWS_AT_ONCE):
                yield some


def _require_primary(connection: psycopg.Connection[Any]) -> None:
    """A connection that names several servers may lead to another one each time. Raises RelationError."""
    ((is_standby,),) = connection.execute("SELECT pg_is_in_recovery()")
    if is_standby:
        raise RelationError(
            "database",
            "is a standby, which does not show the writers of the primary: name the primary in the connection, or add"
            " target_session_attrs=primary to one that names several servers",
        )


def _see_the_newest(connection: psycopg.Connection[Any]) -> None:
    """Each statement, whatever the default of the role is."""
    if connection.isolation_level != psycopg.IsolationLevel.READ_COMMITTED:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


def _column(connection: psycopg.Connection[Any], column: psycopg.Column) -> SqlColumn:
    info = connection.adapters.types.get(column.type_code)
    kind = info.name if info is not None and column.type_code == info.oid else ""
    why_not = "use a column of whole numbers (int, bigint) or of times (timestamptz, timestamp)"
    if kind in ("timestamp", "timestamptz") and "(" in column.type_display and "(6)" not in column.type_display:
        why_not = (
            f"its type {column.type_display} is not exact, so rows have equal times: run ALTER TABLE ... TYPE {kind}"
        )
    elif kind in _PLACES:
        why_not = ""
    type_name = _TYPES.get(kind, "")
    if kind == "numeric":
        type_name = _decimal(column.precision, column.scale)
    return SqlColumn(
        name=column.name,
        type_name=type_name or "string",
        is_text=not type_name,
        is_place=not why_not,
        why_not=why_not,
    )


def _decimal(precision: int | None, scale: int | None) -> str:
    """Empty, which is text, if no decimal number of Spark has all of its values."""
    if precision is None or scale is None or not 0 <= scale <= precision <= _MAX_PRECISION:
        return ""
    return f"decimal({precision},{scale})"

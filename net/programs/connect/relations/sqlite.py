"""`SqliteRelation`: a table or a query of a file of SQLite. Types are those that the table declares."""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from barnabas.net.base.near_words import did_you_mean

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
)

_WAIT_S: Final = 60  # for writers of the file
_DECIMAL: Final = re.compile(r"(?:decimal|numeric)\s*\((\d+)(?:\s*,\s*(\d+))?\)", re.IGNORECASE)
# https://www.sqlite.org/datatype3.html, 3.1: what the declared type contains; in this order.
_AFFINITIES: Final[Mapping[str, str]] = {
    "INT": "bigint", "CHAR": "string", "CLOB": "string", "TEXT": "string", "BLOB": "binary", "REAL": "double",
    "FLOA": "double", "DOUB": "double", "BOOL": "boolean", "DATE": "string", "TIME": "string", "JSON": "string",
    "UUID": "string",
}  # fmt: skip
_MAX_PRECISION: Final = 38


class SqliteRelation(SqlRelation):
    keeps_connections = False

    def opened(self) -> sqlite3.Connection:
        file = Path(self.place)
        if not file.is_file():
            raise RelationError("database", f"there is no file {file}: correct the path, or create the database")
        address = f"file:{quote(str(file.absolute()))}?mode=ro"
        connection = sqlite3.connect(address, uri=True, timeout=_WAIT_S, isolation_level=None)
        connection.execute("BEGIN")
        return connection

    @contextmanager
    def told_errors(self, connection: sqlite3.Connection) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                words = f"another program has {self.place} for more than {_WAIT_S} s: {error}: end its transaction"
                raise UnreachableError(words) from error
            raise RelationError(self.key, f"the database refuses it: {error}: correct it") from error
        except sqlite3.DatabaseError as error:
            raise RelationError("database", f"{self.place} cannot be read as a database of SQLite: {error}") from error

    def is_broken(self, connection: sqlite3.Connection) -> bool:
        return False

    def columns(self, connection: sqlite3.Connection) -> tuple[SqlColumn, ...]:
        if self.table:
            self._require_table(connection)
        connection.execute(f"CREATE TEMP VIEW barnabas_columns AS SELECT * FROM {self.source}")
        found = connection.execute("PRAGMA temp.table_info(barnabas_columns)").fetchall()
        connection.execute("DROP VIEW temp.barnabas_columns")
        return tuple(_column(row[1], row[2]) for row in found)

    def _require_table(self, connection: sqlite3.Connection) -> None:
        known = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        if self.table.lower() not in (name.lower() for name in known):
            raise RelationError(
                "table",
                f"there is no table {self.table!r} in {self.place}{did_you_mean(self.table, known)}: correct the name",
            )

    def reached(self, connection: sqlite3.Connection, column: SqlColumn) -> Reached:
        """Writers come one after another, so what a reader sees is complete."""
        self.require_values(connection, column)
        limits = self.limits(connection, column, None)
        return Reached(last=None if limits is None else limits[1])

    def writers(self, connection: sqlite3.Connection, column: SqlColumn) -> frozenset[str]:
        return frozenset()

    def first_since(self, connection: sqlite3.Connection, column: SqlColumn, reached: Reached) -> Place | None:
        return None

    def check_growing(self, connection: sqlite3.Connection, column: SqlColumn) -> None:
        """Every column of whole numbers can be followed."""

    def rows(
        self, connection: sqlite3.Connection, columns: Sequence[SqlColumn], between: Between | None, *, is_ordered: bool
    ) -> Iterator[Sequence[tuple[Any, ...]]]:
        selected = [qualified(column.name) for column in columns]
        cursor = connection.execute(self.statement(selected, between, is_ordered=is_ordered))
        booleans = [number for number, column in enumerate(columns) if column.type_name == "boolean"]
        while some := cursor.fetchmany(ROWS_AT_ONCE):
            yield [_with_booleans(row, booleans) for row in some] if booleans else some


def _with_booleans(row: tuple[Any, ...], places: Sequence[int]) -> tuple[Any, ...]:
    """SQLite keeps them as 0 and 1; other values are left for the check of types."""
    return tuple(
        bool(value) if number in places and value in (0, 1) and value is not None else value
        for number, value in enumerate(row)
    )


def _column(name: str, declared: str) -> SqlColumn:
    kind = _type_name(declared)
    why_not = "use a column that is declared as INTEGER" if kind != "bigint" else ""
    return SqlColumn(name=name, type_name=kind, is_place=kind == "bigint", why_not=why_not)


def _type_name(declared: str) -> str:
    """Empty where the database does not know one."""
    if found := _DECIMAL.fullmatch(declared.strip()):
        precision, scale = int(found[1]), int(found[2] or 0)
        return f"decimal({precision},{scale})" if scale <= precision <= _MAX_PRECISION else "string"
    return next((kind for part, kind in _AFFINITIES.items() if part in declared.upper()), "")

"""`SqlRelation`: a table or a query of a database as a source of rows: its columns, and its rows between two values of a column.

`postgres` and `sqlite` say how that is asked. Connections are synchronous: they are used by Spark's processes, and by checks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from barnabas.net.base.near_words import did_you_mean

Place = int | datetime  # a value of the column by which rows are read
ROWS_AT_ONCE: Final = 5_000  # of a round trip, and of a record batch
SQLITE: Final = "sqlite:"
POSTGRESQL: Final = "postgresql:"
_ROWS: Final = "barnabas_rows"  # what a table or a query is called in a statement
_WHOLE_NUMBERS: Final = ("tinyint", "smallint", "int", "integer", "bigint", "long")


class RelationError(Exception):
    """The file, the table or its rows have to change; `key` is the key of the source that names the cause."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class UnreachableError(Exception):
    """The server does not answer, or does not let this role in. It may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlColumn:
    name: str
    type_name: str  # in Spark's SQL
    is_text: bool = False  # of another type of the database, which its text stands for
    is_place: bool = False  # rows can be read by it
    why_not: str = ""  # why rows cannot be read by it, with the cure


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Rows whose `column` is more than `after` and at most `until`; None has no limit. `with_nulls`: and rows without a value."""

    column: str
    after: Place | None
    until: Place | None
    with_nulls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far a column goes, and which transactions may still bring rows at or before that: they are told apart by a name."""

    last: Place | None
    writers: frozenset[str] = frozenset()
    oldest: int = 0  # no transaction that was open has a lower id, so PostgreSQL finds their rows by it

    def is_complete(self, writers_now: frozenset[str]) -> bool:
        """Whether all rows up to `last` are there. A transaction that was prepared has another name than before."""
        if not self.writers:
            return True
        return not (self.writers & writers_now or any(name.startswith("-1/") for name in writers_now))


class Described(Protocol):
    """The source of a pipeline, as far as a relation is made from it."""

    @property
    def database(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def increasing(self) -> str: ...
    @property
    def partition_by(self) -> str: ...
    def types(self) -> dict[str, str]: ...


class SqlRelation(ABC):
    """Of a table, or of a query: one of them is empty."""

    keeps_connections: ClassVar[bool]  # a server does; a file may be replaced by another one of its name

    def __init__(self, place: str, table: str, query: str) -> None:
        self.place = place
        self.table = table
        self.query = query.strip().rstrip(";").rstrip()

    @property
    def key(self) -> str:
        return "query" if self.query else "table"

    @property
    def source(self) -> str:
        """Behind FROM."""
        inner = f"({self.query}\n)" if self.query else ".".join(map(quoted, self.table.split(".")))
        return f"{inner} AS {_ROWS}"

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """A connection whose transaction sees one state of the database, and writes nothing. Errors of statements are raised as
        RelationError, or as UnreachableError if they may pass."""
        connection = self.opened()
        try:
            with self.told_errors(connection):
                yield connection
        finally:
            connection.close()

    @abstractmethod
    def opened(self) -> Any:
        """A connection as `connected` has it, which the caller closes. Raises RelationError, UnreachableError."""

    @abstractmethod
    def told_errors(self, connection: Any) -> AbstractContextManager[None]:
        """Errors of statements are raised as `connected` says."""

    @abstractmethod
    def is_broken(self, connection: Any) -> bool:
        """Whether the connection has ended by itself."""

    @abstractmethod
    def columns(self, connection: Any) -> tuple[SqlColumn, ...]:
        """Raises RelationError."""

    @abstractmethod
    def reached(self, connection: Any, column: SqlColumn) -> Reached:
        """The largest value, and who may still bring rows at or before it."""

    @abstractmethod
    def writers(self, connection: Any, column: SqlColumn) -> frozenset[str]:
        """The transactions that may bring rows."""

    @abstractmethod
    def first_since(self, connection: Any, column: SqlColumn, reached: Reached) -> Place | None:
        """The least value, at or before the last one of `reached`, of the rows that its writers have brought; they have ended.
        None: there is no such row."""

    @abstractmethod
    def rows(
        self, connection: Any, columns: Sequence[SqlColumn], between: Between | None, *, is_ordered: bool
    ) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Some at a time."""

    @abstractmethod
    def check_growing(self, connection: Any, column: SqlColumn) -> None:
        """Raises RelationError for a column that a stream cannot follow."""

    # --- places -------------------------------------------------------------------------------------------------------

    def limits(self, connection: Any, column: SqlColumn, between: Between | None) -> tuple[Place, Place] | None:
        """The least and the largest value; None without rows."""
        name = qualified(column.name)
        statement = f"SELECT min({name}), max({name}) FROM {self.source}{_where(self.condition(between))}"
        least, most = connection.execute(statement).fetchone()
        return None if least is None else (self._place(column, least), self._place(column, most))

    def end_within(self, connection: Any, column: SqlColumn, between: Between, most_rows: int) -> Place | None:
        """The value of the last of so many rows; rows with an equal value stay together."""
        name = qualified(column.name)
        some = f"SELECT {name} AS place FROM {self.source}{_where(self.condition(between))}"
        statement = f"SELECT max(place) FROM ({some} ORDER BY 1 LIMIT {most_rows}) AS barnabas_places"
        (found,) = connection.execute(statement).fetchone()
        return None if found is None else self._place(column, found)

    def _place(self, column: SqlColumn, found: object) -> Place:
        """Raises RelationError: columns of SQLite can have values of any type."""
        if isinstance(found, int | datetime):
            return found
        raise RelationError(
            self.key, f"column {column.name} has {found!r:.100}, which is no {column.type_name}: correct the row"
        )

    def require_values(self, connection: Any, column: SqlColumn) -> None:
        """A row without a value would never be read. Raises RelationError."""
        statement = f"SELECT 1 FROM {self.source} WHERE {qualified(column.name)} IS NULL LIMIT 1"
        if connection.execute(statement).fetchone() is not None:
            raise RelationError(
                "increasing",
                f"{column.name} is null in a row, which would never be read: give it a value (ALTER COLUMN ... SET NOT NULL), or"
                f' leave it out: query = "SELECT ... WHERE {column.name} IS NOT NULL"',
            )

    def condition(self, between: Between | None) -> str:
        if between is None:
            return ""
        name = qualified(between.column)
        parts = []
        if between.after is not None:
            parts.append(f"{name} > {literal(between.after)}")
        if between.until is not None:
            parts.append(f"{name} <= {literal(between.until)}")
        found = " AND ".join(parts)
        return f"({found} OR {name} IS NULL)" if found and between.with_nulls else found

    def statement(self, selected: Sequence[str], between: Between | None, *, is_ordered: bool) -> str:
        order = f" ORDER BY {qualified(between.column)}" if is_ordered and between is not None else ""
        return f"SELECT {', '.join(selected)} FROM {self.source}{_where(self.condition(between))}{order}"


def open_relation(address: str, base: Path, *, table: str, query: str) -> SqlRelation:
    """`address` is sqlite:FILE, relative to `base`, or postgresql:CONNECTION. Raises ImportError without psycopg."""
    if address.startswith(SQLITE):
        from .sqlite import SqliteRelation

        return SqliteRelation(str(base / address.removeprefix(SQLITE)), table, query)
    from .postgres import PostgresRelation

    return PostgresRelation(address.removeprefix(POSTGRESQL), table, query)


def column_of(columns: Sequence[SqlColumn], key: str, name: str) -> SqlColumn:
    """One by which rows can be read. Raises RelationError."""
    names = [column.name for column in columns]
    if name not in names:
        raise RelationError(
            key, f"there is no column {name!r}{did_you_mean(name, names)}: the columns are {', '.join(names)}"
        )
    column = columns[names.index(name)]
    if not column.is_place:
        raise RelationError(key, f"is {name!r}, by which rows cannot be read: {column.why_not}")
    return column


def described_columns(source: Described, base: Path) -> tuple[SqlColumn, ...]:
    """The columns that a source has, checked. Raises RelationError, UnreachableError, and ImportError without psycopg."""
    relation = open_relation(source.database, base, table=source.table, query=source.query)
    with relation.connected() as connection:
        return checked_columns(
            relation,
            connection,
            types=source.types(),
            increasing=source.increasing,
            partition_by=source.partition_by,
        )


def checked_columns(
    relation: SqlRelation, connection: Any, *, types: Mapping[str, str], increasing: str, partition_by: str
) -> tuple[SqlColumn, ...]:
    """With the types of the file, which has them for SQLite only. Raises RelationError for what cannot be read as it says."""
    found = relation.columns(connection)
    names = [column.name for column in found]
    for name in types:
        if name not in names:
            words = f"there is no such column{did_you_mean(name, names)}: the columns are {', '.join(names)}"
            raise RelationError(f"fields.{name}", words)
    columns = tuple(_typed(column, types) for column in found)
    _check_names(relation, columns)
    for column in columns:
        if not column.type_name:
            raise RelationError(
                relation.key,
                f'SQLite knows no type of the column {column.name!r}: add fields = {{ {column.name} = "bigint" }}',
            )
    if partition_by:
        column_of(columns, "partition_by", partition_by)
    if increasing:
        relation.check_growing(connection, column_of(columns, "increasing", increasing))
    return columns


def _typed(column: SqlColumn, types: Mapping[str, str]) -> SqlColumn:
    if column.name not in types:
        return column
    is_number = types[column.name].lower() in _WHOLE_NUMBERS
    why_not = "" if is_number else "use a column of whole numbers"
    return SqlColumn(name=column.name, type_name=types[column.name], is_place=is_number, why_not=why_not)


def _check_names(relation: SqlRelation, columns: Sequence[SqlColumn]) -> None:
    """Raises RelationError for names that Spark cannot tell apart."""
    seen: set[str] = set()
    for column in columns:
        if column.name.lower() in seen:
            raise RelationError(
                relation.key,
                f"has two columns {column.name!r}, and Spark does not tell upper case from lower case: write a query with names"
                " of their own (AS name)",
            )
        seen.add(column.name.lower())


def ranges_of(column: str, limits: tuple[Place, Place] | None, between: Between | None, count: int) -> list[Between]:
    """Equally long parts of a range. The first has the rows without a value, the last everything that comes later, unless
    `between` says where the range begins and ends. Without rows there is one part."""
    after, until = (None, None) if between is None else (between.after, between.until)
    inner: list[Place] = []
    if limits is not None and limits[0] < limits[1]:  # type: ignore[operator]  # both are of one type
        least, most = limits
        inner = sorted({least + (most - least) * number // count for number in range(1, count)})  # type: ignore[operator]
    edges = [after, *(edge for edge in inner if edge != until), until]
    parts = pairwise(edges)
    return [
        Between(column=column, after=low, until=high, with_nulls=between is None and number == 0)
        for number, (low, high) in enumerate(parts)
    ]


def quoted(name: str) -> str:
    """A name in SQL, whatever letters it has."""
    return '"' + name.replace('"', '""') + '"'


def qualified(column: str) -> str:
    """A column of the rows. Of a name alone in quotes, SQLite makes a string once the table has no such column any more."""
    return f"{_ROWS}.{quoted(column)}"


def literal(place: Place) -> str:
    return str(place) if isinstance(place, int) else f"'{place.isoformat()}'"


def just_before(place: Place) -> Place:
    """The largest value of the type that is less."""
    return place - 1 if isinstance(place, int) else place - timedelta(microseconds=1)


def to_json(place: Place | None) -> int | str | None:
    return place.isoformat() if isinstance(place, datetime) else place


def from_json(found: object) -> Place | None:
    """Raises ValueError."""
    if found is None or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    return datetime.fromisoformat(str(found))


def _where(condition: str) -> str:
    return f" WHERE {condition}" if condition else ""

"""Tables and queries as sources of rows: parts of a range, types of SQLite, and when a stream may go on."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from barnabas.net.programs.connect.relations.relation import (
    Between,
    Place,
    Reached,
    RelationError,
    SqlColumn,
    SqlRelation,
    UnreachableError,
    checked_columns,
    from_json,
    open_relation,
    ranges_of,
    to_json,
)

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def edges(parts: list[Between]) -> list[Place | None]:
    """Each part begins where the one before it ends."""
    assert all(one.until == other.after for one, other in pairwise(parts))
    return [parts[0].after, *(part.until for part in parts)]


@pytest.mark.parametrize(
    ("limits", "between", "count", "expected"),
    [
        ((1, 100), None, 4, [None, 25, 50, 75, None]),
        (None, None, 4, [None, None]),
        ((7, 7), None, 4, [None, None]),
        ((1, 2), None, 4, [None, 1, None]),
        ((-10, 10), None, 2, [None, 0, None]),
        ((11, 20), Between(column="id", after=10, until=20), 2, [10, 15, 20]),
        ((20, 20), Between(column="id", after=10, until=20), 3, [10, 20]),
        ((DAY, DAY + timedelta(days=2)), None, 2, [None, DAY + timedelta(days=1), None]),
    ],
)
def test_parts_have_no_gap_and_no_overlap(
    limits: tuple[Place, Place] | None, between: Between | None, count: int, expected: list[Place | None]
) -> None:
    parts = ranges_of("id", limits, between, count)
    assert edges(parts) == expected
    assert [part.with_nulls for part in parts] == [between is None, *[False] * (len(parts) - 1)]


@pytest.mark.parametrize("place", [None, 0, -5, 1 << 62, DAY, datetime(2026, 1, 1, 2, 3, 4, 567891)])
def test_places_in_a_checkpoint(place: Place | None) -> None:
    assert from_json(to_json(place)) == place


def test_a_value_counts_when_the_writers_that_began_before_it_have_ended() -> None:
    assert Reached(last=5).is_complete(frozenset({"3/9"}))
    reached = Reached(last=5, writers=frozenset({"3/7"}))
    assert not reached.is_complete(frozenset({"3/7", "4/1"})) and reached.is_complete(frozenset({"3/8"}))
    assert not reached.is_complete(frozenset({"-1/741"}))  # 3/7 may have been prepared


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, name VARCHAR(20), price DECIMAL(10, 2), paid BOOL, raw BLOB, x, r REAL)"
        )
    return tmp_path


def columns(relation: SqlRelation, increasing: str = "", **types: str) -> tuple[SqlColumn, ...]:
    with relation.connected() as connection:
        return checked_columns(relation, connection, types=types, increasing=increasing, partition_by="")


def test_types_of_a_table_and_of_a_query(file: Path) -> None:
    table = open_relation("sqlite:shop.db", file, table="orders", query="")
    assert [(column.name, column.type_name) for column in columns(table, x="string")] == [
        ("id", "bigint"), ("name", "string"), ("price", "decimal(10,2)"), ("paid", "boolean"), ("raw", "binary"),
        ("x", "string"), ("r", "double"),
    ]  # fmt: skip
    query = open_relation("sqlite:shop.db", file, table="", query="SELECT id, count(*) AS n FROM orders; ")
    assert [column.type_name for column in columns(query, increasing="n", n="int")] == ["bigint", "int"]


@pytest.mark.parametrize(
    ("table", "query", "increasing", "types", "key", "told"),
    [
        ("order", "", "", {}, "table", r"there is no table 'order' in .*shop.db \(did you mean orders\?\)"),
        ("", "SELECT nam FROM orders", "", {}, "query", "the database refuses it: no such column: nam"),
        ("orders", "", "", {"y": "int"}, "fields.y", "there is no such column: the columns are id, name"),
        ("orders", "", "", {}, "table", r"SQLite knows no type of the column 'x': add fields = \{ x = \"bigint\" \}"),
        ("orders", "", "nam", {"x": "int"}, "increasing", r"there is no column 'nam' \(did you mean name\?\)"),
        ("orders", "", "name", {"x": "int"}, "increasing", "is 'name', by which rows cannot be read: use a column that is"),
    ],
)  # fmt: skip
def test_mistakes(
    file: Path, table: str, query: str, increasing: str, types: dict[str, str], key: str, told: str
) -> None:
    with pytest.raises(RelationError, match=told) as caught:
        columns(open_relation("sqlite:shop.db", file, table=table, query=query), increasing, **types)
    assert caught.value.key == key


def test_files_that_are_none(file: Path) -> None:
    with pytest.raises(RelationError, match="there is no file .*none.db: correct the path"):
        columns(open_relation("sqlite:none.db", file, table="orders", query=""))
    assert not (file / "none.db").exists()
    (file / "text.db").write_text("no database" * 100)
    with pytest.raises(RelationError, match="cannot be read as a database of SQLite"):
        columns(open_relation("sqlite:text.db", file, table="orders", query=""))


def test_a_column_that_is_renamed_meanwhile_is_told(file: Path) -> None:
    """SQLite takes a name in quotes that is no column for a string, so each row would have the name as its value."""
    with closing(sqlite3.connect(file / "shop.db")) as connection, connection:
        connection.execute("INSERT INTO orders (id, name) VALUES (1, 'tea')")
    table = open_relation("sqlite:shop.db", file, table="orders", query="")
    key, name, *_ = columns(table, x="string")
    with closing(sqlite3.connect(file / "shop.db")) as connection, connection:
        connection.execute("ALTER TABLE orders RENAME COLUMN name TO title")
    with table.connected() as connection:
        assert [*table.rows(connection, [key], Between(column="id", after=0, until=1), is_ordered=True)] == [[(1,)]]
    for column, between in ((name, None), (key, Between(column="name", after=0, until=None))):
        told = r"the database refuses it: no such column: barnabas_rows\.name"
        with pytest.raises(RelationError, match=told), table.connected() as connection:
            list(table.rows(connection, [column], between, is_ordered=True))
    with pytest.raises(RelationError, match="no such column"), table.connected() as connection:
        table.reached(connection, name)


def test_columns_of_a_query_have_any_name(file: Path) -> None:
    with closing(sqlite3.connect(file / "shop.db")) as connection, connection:
        connection.execute("INSERT INTO orders (id, name) VALUES (1, 'tea')")
    query = open_relation(
        "sqlite:shop.db", file, table="", query='SELECT count(*), id AS "a ""b"".c", name FROM orders'
    )
    found = columns(query, **{"count(*)": "int", 'a "b".c': "int"})
    with query.connected() as connection:
        assert [*query.rows(connection, found, None, is_ordered=False)] == [[(1, 1, "tea")]]


@pytest.mark.parametrize("value", [2.5, "two"])
def test_a_place_that_is_no_whole_number_is_told(file: Path, value: object) -> None:
    with closing(sqlite3.connect(file / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE loose (id INTEGER)")
        connection.executemany("INSERT INTO loose VALUES (?)", [(1,), (value,)])
    table = open_relation("sqlite:shop.db", file, table="loose", query="")
    (column,) = columns(table)
    told = f"column id has {value!r}, which is no bigint: correct the row"
    with pytest.raises(RelationError, match=told), table.connected() as connection:
        table.reached(connection, column)
    with pytest.raises(RelationError, match=told), table.connected() as connection:
        table.end_within(connection, column, Between(column="id", after=1, until=None), 5)


def test_a_file_that_is_locked_may_pass(tmp_path: Path) -> None:
    relation = open_relation("sqlite:a.db", tmp_path, table="t", query="")
    with closing(sqlite3.connect(tmp_path / "a.db")) as shop, shop:
        shop.execute("CREATE TABLE t (id INTEGER)")
        shop.execute("BEGIN EXCLUSIVE")
        told = "another program has .*a.db .*locked: end its transaction"
        with pytest.raises(UnreachableError, match=told), relation.connected() as connection:
            connection.execute("PRAGMA busy_timeout = 0")
            relation.columns(connection)

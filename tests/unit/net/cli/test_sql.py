"""`barnabas sql`: what a filter makes of a scan, which tables a query names, and JSON values as columns."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow
import pytest

from barnabas.net.cli.frame.exit_codes import CommandError
from barnabas.net.cli.frame.output import Output
from barnabas.net.cli.sql.pushdown import Bounds
from barnabas.net.cli.sql.results import show
from barnabas.net.cli.sql.tables_of import tables_of
from barnabas.net.cli.sql.topic_dataset import TopicDataset
from barnabas.net.cli.sql.views import add_view
from barnabas.net.cli.streams.sql import topic_of
from barnabas.net.client.arrow.tables import SCHEMA

PARTITIONS = range(4)
COUNT = 100


def table(values: list[bytes | None]) -> pyarrow.Table:
    """A topic whose partitions all have these values, a second apart."""
    rows: list[dict[str, object]] = [
        {
            "topic": "t",
            "partition": number,
            "offset": offset,
            "timestamp": datetime.fromtimestamp(offset, UTC),
            "key": b"k%d" % offset,
            "value": value,
            "headers": [],
        }
        for number in PARTITIONS
        for offset, value in enumerate(values)
    ]
    return pyarrow.Table.from_pylist(rows, schema=SCHEMA)


class Topic:
    """Reads all rows whatever is asked for: the filter must be applied to them."""

    def __init__(self, values: list[bytes | None]) -> None:
        self.table = table(values)
        self.read: list[dict[str, Any]] = []
        self.dataset = TopicDataset(PARTITIONS, self._read)

    def _read(self, **asked: Any) -> pyarrow.RecordBatchReader:
        self.read.append(asked)
        return self.table.to_reader()


@pytest.fixture
def connection() -> Iterator[Any]:
    connection = duckdb.connect()
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("condition", "partitions", "start", "end", "start_ms", "count"),
    [
        ("true", (0, 1, 2, 3), 0, None, None, 400),
        ("partition = 2", (2,), 0, None, None, 100),
        ("partition in (1, 3)", (1, 3), 0, None, None, 200),
        ('"offset" >= 10 and "offset" < 20', (0, 1, 2, 3), 10, 20, None, 40),
        ('"offset" = 7 and partition > 2', (3,), 7, 8, None, 1),
        ('"offset" between 5 and 6', (0, 1, 2, 3), 5, 7, None, 8),
        ("timestamp >= '1970-01-01T00:01:30Z'", (0, 1, 2, 3), 0, None, 90_000, 40),
        ("\"offset\" < 95 and timestamp > '1970-01-01T00:01:30Z'", (0, 1, 2, 3), 0, 95, 90_000, 16),
        ("value = '7'", (0, 1, 2, 3), 0, None, None, 4),
        ('"offset" = 7 or partition = 1', (0, 1, 2, 3), 0, None, None, 103),
    ],
)
def test_filters_select_what_is_read(
    connection: Any,
    condition: str,
    partitions: tuple[int, ...],
    start: int,
    end: int | None,
    start_ms: int | None,
    count: int,
) -> None:
    topic = Topic([b"%d" % number for number in range(COUNT)])
    add_view(connection, "t", topic.dataset, "text")
    (row,) = connection.execute(f"select count(*) from t where {condition}").fetchall()
    assert row == (count,)
    assert topic.dataset.scans == [Bounds(partitions=partitions, start_offset=start, end_offset=end, start_ms=start_ms)]
    (asked,) = topic.read
    assert asked["partitions"] == partitions
    assert asked["start"] == (f"@{start_ms}" if start_ms and not start else start)
    assert asked["end"] == ("end" if end is None else end)


def test_fields_of_json_values_are_columns(connection: Any) -> None:
    values = [json.dumps({"user": "a", "n": number, "o": {"x": [number]}, "offset": 5}).encode() for number in range(3)]
    topic = Topic([*values, b"no json", b"\xff", None, b'{"n": -1}', b'{"n": "text"}'])
    add_view(connection, "t", topic.dataset, "json")
    rows = connection.execute(
        'select "offset", "user", n, o.x[1], value_offset, value from t where partition = 0 order by "offset"'
    ).fetchall()
    assert [row[1:5] for row in rows[:3]] == [("a", str(number), number, 5) for number in range(3)]
    assert [row[1:] for row in rows[3:6]] == [
        (None, None, None, None, "no json"),
        (None, None, None, None, None),
        (None, None, None, None, None),
    ]
    assert [row[2] for row in rows[6:]] == ["-1", '"text"']  # Of several types: JSON.


def test_numbers_stay_numbers(connection: Any) -> None:
    topic = Topic([b'{"n": 1, "f": 0.5}', b'{"n": -2, "f": 3}'])
    add_view(connection, "a.b", topic.dataset, "json")
    assert connection.execute('select sum(n), sum(f) from "a.b"').fetchall() == [(-4, 14.0)]


def test_raw_values_are_bytes(connection: Any) -> None:
    add_view(connection, "t", Topic([b"\xff"]).dataset, "raw")
    assert connection.execute("select value from t limit 1").fetchall() == [(b"\xff",)]


def test_the_tables_that_a_query_names(connection: Any) -> None:
    query = (
        'with c as (select * from a) select * from c join "x-y" u using (k) where b in (select 1 from d.e) and a.f = 1'
    )
    assert sorted(tables_of(connection, query)) == ["a", "d.e", "x-y"]


@pytest.mark.parametrize("query", ["selec 1", "delete from t", "select 1; select 2", ""])
def test_what_is_no_single_select_is_refused(connection: Any, query: str) -> None:
    with pytest.raises(CommandError):
        tables_of(connection, query)


def test_a_common_table_expression_may_read_the_topic_of_its_name(connection: Any) -> None:
    assert tables_of(connection, "with a as (select * from a where n > 1) select * from a") == ["a"]
    assert tables_of(connection, "with a as (select 1), b as (select * from a) select * from a, b") == []
    assert tables_of(connection, "with recursive a as (select 1 as x union all select x from a) select * from a") == []


def test_values_that_cannot_be_columns_stay_values(connection: Any) -> None:
    """A single hostile record must not take the topic away from queries."""
    deep = b'{"a":' * 300 + b"1" + b"}" * 300
    values = [b'{"": 1, "b": 2}', b'{"x": {"A": 1, "a": 2}, "l": [{"": 1}]}', deep, b'{"a": 5}', b"[" * 5_000]
    topic = Topic([*values, None, *values])
    add_view(connection, "t", topic.dataset, "json")
    rows = connection.execute('select a, b, x, l from t where partition = 0 order by "offset" limit 4').fetchall()
    assert rows == [
        (None, 2, None, None),
        (None, None, '{"A":1,"a":2}', ['{"":1}']),
        (None, None, None, None),
        (5, None, None, None),
    ]
    assert connection.execute("select count(*), count(value) from t").fetchall() == [(44, 40)]


def shown(connection: Any, query: str, *, kind: str, as_csv: bool = False) -> list[str]:
    told = io.StringIO()
    show(Output(kind, stdout=told), connection.sql(query).to_arrow_reader(100), as_csv=as_csv)
    return told.getvalue().splitlines()


def test_columns_of_the_same_name_are_all_shown(connection: Any) -> None:
    query = "select 1 as a, 2 as a, 3 as a_1, 4 as a"
    assert shown(connection, query, kind="text", as_csv=True) == ["a,a_1,a_1_1,a_2", "1,2,3,4"]
    assert shown(connection, query, kind="json") == ['{"a": 1, "a_1": 2, "a_1_1": 3, "a_2": 4}']
    assert shown(connection, query, kind="text")[1].split() == ["1", "2", "3", "4"]


def test_what_json_does_not_have(connection: Any) -> None:
    query = (
        "select 'nan'::double as n, ['inf'::double, 1] as l, interval '13 months 2 days 500 ms' as i, 'x'::blob as b"
    )
    (line,) = shown(connection, query, kind="json")
    assert json.loads(line) == {"n": None, "l": [None, 1.0], "i": "P13M2DT0.5S", "b": "x"}


def test_names_of_topics_in_other_letters() -> None:
    assert topic_of("Orders", {"orders": 1, "a": 1}) == "orders"
    assert topic_of("Orders", {"orders": 1, "Orders": 1}) == "Orders"
    assert topic_of("ORDERS", {"orders": 1, "Orders": 1}) is None

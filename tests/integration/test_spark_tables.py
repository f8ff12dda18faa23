"""Rows of every type in tables of SQLite and PostgreSQL: a stream that replaces rows, and one that appends, each replayed."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from integration import postgres
from integration.cluster import Cluster
from integration.declared_pipeline import Declared
from pyspark.sql import SparkSession

from barnabas.spark_connector.pipeline.database import Database

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
TEXT = """
name = "typed-{write}"
[source]
files = "in"
max_files = 1
[source.value]
format = "json"
[source.value.fields]
id = "bigint"
small = "smallint"
ratio = "double"
price = "decimal(20,4)"
is_new = "boolean"
day = "date"
at = "timestamp"
tags = "array<string>"
name = "string"
[[steps]]
sql = "SELECT id, small, ratio, price, is_new, day, at, tags, name, cast(name AS binary) AS bytes FROM input"
[sink]
table = "typed_{write}"
database = "{database}"
write = "{write}"
"""
ROW: dict[str, Any] = {
    "id": 1,
    "small": 2,
    "ratio": 0.5,
    "price": "1234567890123456.7891",
    "is_new": True,
    "day": "2026-01-31",
    "at": "2026-01-31T07:00:00.123456Z",
    "tags": ["a", "b"],
    "name": "snow ☃ 'quoted'",
}


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sqlite":
        yield "sqlite:typed.db"
        return
    if postgres.find()[0] is None:
        pytest.skip(postgres.find()[1])
    with postgres.running() as found:
        yield f"postgresql:{found}"


def rows_of(address: str, folder: Path, table: str) -> list[tuple[Any, ...]]:
    database = Database(address.replace("sqlite:", f"sqlite:{folder}/"))
    with closing(database.connect()) as connection:
        names = "id, price, is_new, day, at, tags, name, bytes"
        found = connection.execute(f"SELECT {names} FROM {table} ORDER BY id, name").fetchall()
    return [tuple(bytes(item) if isinstance(item, memoryview) else item for item in row) for row in found]


@pytest.mark.parametrize("write", ["append", "upsert"])
def test_values_survive_and_a_replay_changes_nothing(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, address: str, write: str
) -> None:
    text = TEXT.format(write=write, database=address) + ('key = ["id"]\n' if write == "upsert" else "")
    pipeline = Declared(spark, spark_cluster, tmp_path, text)
    folder = tmp_path / "in"
    folder.mkdir()
    for number, rows in enumerate(([ROW], [{**ROW, "name": "later"}, {"id": 2}])):
        (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pipeline.run()
        pipeline.replay()
    found = rows_of(address, tmp_path, f"typed_{write}")
    assert [(row[0], row[6]) for row in found if row[0] == 1] == (
        [(1, "later")] if write == "upsert" else [(1, "later"), (1, ROW["name"])]
    )
    first, last = found[0], found[-1]
    assert last == (2, *[None] * 7)
    assert str(first[1]) == ROW["price"] and bool(first[2]) and str(first[3]) == ROW["day"]
    assert str(first[4]).replace("T", " ").startswith("2026-01-31 07:00:00.123456")
    assert json.loads(first[5]) == ["a", "b"] and first[7] == b"later"

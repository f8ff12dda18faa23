"""A pipeline whose source is a PostgreSQL server: its rows, then every change of them, without topics between."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from integration import postgres
from pyspark.errors import StreamingQueryException

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
pytest.importorskip("psycopg")

from integration import connect_world as world
from integration.spark_changes import confirmed

from barnabas.net.cli.pipeline.checks import located
from barnabas.net.programs.pipeline.files import read_pipeline
from barnabas.spark_connector.pipeline.faults import PipelineFault, is_final, told_of

pytestmark = pytest.mark.timeout(600)
STREAM = """\
name = "copy"

[source]
postgres = "{dsn}"
publication = "changes"
tables = ["public.items"]
slot = "copying"
value = {{ format = "changes", fields = {{ id = "int", name = "string" }} }}

[[steps]]
sql = "SELECT id, upper(name) AS name, change_op, change_generation, change_lsn, change_order FROM input"

[sink]
table = "items"
database = "sqlite:items.db"
write = "changes"
key = ["id"]
"""
BATCH = """\
name = "rows"
mode = "batch"

[source]
postgres = "{dsn}"
publication = "changes"
tables = ["public.*"]
value = {{ format = "text" }}

[[steps]]
sql = "SELECT record_table, record_key, get_json_object(text, '$.after.name') AS name FROM input"

[sink]
table = "rows"
database = "sqlite:items.db"
"""


def rows(folder: Path, table: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "items.db")) as connection, connection:
        columns = "id, name" if table == "items" else "record_table, record_key, name"
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2").fetchall()


def test_a_table_follows_the_server_and_a_reset_reads_it_again(declared: Any, server: postgres.Server) -> None:
    dsn = world.database(server.address, "piped")
    world.execute(
        dsn, "CREATE TABLE items (id int PRIMARY KEY, name text)", "CREATE PUBLICATION changes FOR ALL TABLES"
    )
    world.execute(dsn, "INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    batch = declared(BATCH.format(dsn=dsn))
    batch.run()
    assert rows(batch.folder, "rows") == [("public.items", '{"id":1}', "a"), ("public.items", '{"id":2}', "b")]

    pipeline = declared(STREAM.format(dsn=dsn))
    pipeline.run()
    assert rows(pipeline.folder, "items") == [(1, "A"), (2, "B")]
    world.execute(dsn, "UPDATE items SET name = 'c' WHERE id = 1", "DELETE FROM items WHERE id = 2")
    world.execute(dsn, "INSERT INTO items VALUES (3, 'd')")
    pipeline.run()
    assert rows(pipeline.folder, "items") == [(1, "C"), (3, "D")]

    (spool,) = (pipeline.state.path / "spool").iterdir()
    shutil.rmtree(spool)
    world.execute(dsn, "INSERT INTO items VALUES (4, 'e')")
    before = confirmed(dsn, "copying")
    with pytest.raises(StreamingQueryException) as caught:
        pipeline.run()
    assert "is not the folder that the checkpoint was written with" in told_of(caught.value)
    assert "`barnabas pipeline reset` makes the new checkpoint" in told_of(caught.value) and is_final(caught.value)
    assert confirmed(dsn, "copying") == before
    pipeline.state.remove()
    pipeline.run()
    assert rows(pipeline.folder, "items") == [(1, "C"), (3, "D"), (4, "E")]


@pytest.mark.parametrize("write", ["changes", "upsert"])
def test_an_emptied_table_equals_the_source_after_a_reset(declared: Any, server: postgres.Server, write: str) -> None:
    """Rows that the source has deleted between the last run and the reset stay in the sink otherwise."""
    dsn = world.database(server.address, f"emptied_{write}")
    world.execute(
        dsn, "CREATE TABLE items (id int PRIMARY KEY, name text)", "CREATE PUBLICATION changes FOR ALL TABLES"
    )
    world.execute(dsn, "INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    text = STREAM.format(dsn=dsn).replace("copying", f"emptied_{write}")
    if write == "upsert":
        text = text.replace('write = "changes"', 'write = "upsert"')
        text = text.replace(", change_op, change_generation, change_lsn, change_order FROM input", " FROM input")
    pipeline = declared(text)
    pipeline.run()
    world.execute(dsn, "DELETE FROM items WHERE id = 2", "INSERT INTO items VALUES (3, 'c')")
    pipeline.state.remove()
    pipeline.run()
    assert rows(pipeline.folder, "items") == [(1, "A"), (2, "B"), (3, "C")], "what `reset` says"

    emptied(pipeline)
    for _ in range(2):  # the second run does not empty it again
        pipeline.run()
        assert rows(pipeline.folder, "items") == [(1, "A"), (3, "C")]
    world.execute(dsn, "DELETE FROM items")
    emptied(pipeline)
    pipeline.run()
    assert rows(pipeline.folder, "items") == [], "also if nothing comes"


def emptied(pipeline: Any) -> None:
    """As `barnabas pipeline reset --empty-sink`."""
    pipeline.state.remove()
    pipeline.state.ask_for_empty_sink()


@pytest.mark.parametrize("change", ["RENAME name TO title", "DROP name"])
def test_a_column_that_goes_while_a_pipeline_runs_ends_it(declared: Any, server: postgres.Server, change: str) -> None:
    """Its values would be nulls in the sink."""
    name = f"gone_{change[:4].lower()}"
    dsn = world.database(server.address, name)
    world.execute(
        dsn, "CREATE TABLE items (id int PRIMARY KEY, name text)", "CREATE PUBLICATION changes FOR ALL TABLES"
    )
    world.execute(dsn, "INSERT INTO items VALUES (1, 'a')")
    pipeline = declared(STREAM.format(dsn=dsn).replace("copying", name))
    pipeline.run()
    world.execute(dsn, f"ALTER TABLE items {change}", "INSERT INTO items VALUES (2)")
    with pytest.raises(StreamingQueryException) as caught:
        pipeline.run()
    assert "table public.items has no column 'name' since a transaction" in told_of(caught.value)
    assert "`barnabas pipeline reset` makes the new checkpoint" in told_of(caught.value) and is_final(caught.value)
    assert rows(pipeline.folder, "items") == [(1, "A")]
    if change.startswith("DROP"):
        return
    text = pipeline.file.read_text().replace('name = "string"', 'title = "string"')
    pipeline.file.write_text(text.replace("upper(name)", "upper(title)"))
    pipeline.state.remove()
    pipeline.run()
    assert rows(pipeline.folder, "items") == [(1, "A"), (2, None)]


def test_a_table_that_does_not_fit_the_result_is_refused_before_anything_runs(
    declared: Any, server: postgres.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    dsn = world.database(server.address, "fitting")
    world.execute(
        dsn, "CREATE TABLE items (id int PRIMARY KEY, name text)", "CREATE PUBLICATION changes FOR ALL TABLES"
    )
    batch = declared(BATCH.format(dsn=dsn).replace("sqlite:items.db", f"postgresql:{dsn}"))
    batch.job().plan()
    assert "sink TableSink" in capsys.readouterr().out
    made = "SELECT relname AS id FROM pg_class WHERE relname IN ('rows', 'barnabas_pipelines')"
    assert world.rows(dsn, f"({made}) AS made") == []
    for columns, told in (
        ("record_table text, name text", 'column "record_key" of relation "rows" does not exist'),
        ("record_table int, record_key bigint, name date", ""),  # text takes the type of the table, if each value fits
    ):
        world.execute(dsn, "DROP TABLE IF EXISTS rows", f"CREATE TABLE rows ({columns})")
        if not told:
            batch.job()
            continue
        with pytest.raises(PipelineFault, match=told) as caught:
            batch.job()
        found = located(read_pipeline(batch.file), told_of(caught.value))
        assert found.startswith(f"{batch.file}:14:1: sink.table: the database refuses rows with the columns"), found
    world.execute(dsn, "CREATE TABLE wrong (change_op bool)")
    with pytest.raises(PipelineFault, match='column "change_op" is of type boolean but expression is of type bigint'):
        text = (
            BATCH.format(dsn=dsn)
            .replace("sqlite:items.db", f"postgresql:{dsn}")
            .replace('table = "rows"', 'table = "wrong"')
        )
        declared(text.replace("SELECT record_table, record_key, get_json", "SELECT 1L AS change_op --")).job()

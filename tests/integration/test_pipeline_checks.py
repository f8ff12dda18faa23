"""`barnabas pipeline validate` against a real PostgreSQL server: what is missing is told at its place, with what to run there.

Each cure is run, and then the problem is gone: a cure that does not help would be worse than none.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration import postgres

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")

from integration import connect_world as world  # noqa: E402 - needs psycopg

from barnabas.net.cli.main import main  # noqa: E402 - as above
from barnabas.net.cli.pipeline.checks import world_problems  # noqa: E402 - as above
from barnabas.net.programs.pipeline.files import read_pipeline  # noqa: E402 - as above

Problems = Callable[[str], list[str]]
TEXT = """\
name = "copy"

[source]
postgres = "{dsn}"
publication = "changes"
tables = ["public.items", "public.orders"]
slot = "{slot}"
value = {{ format = "changes", fields = {{ id = "int", name = "string" }} }}

[sink]
table = "copies"
database = "postgresql:{dsn}"
write = "changes"
key = ["id"]
"""
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text, at timestamptz, tags text[], price numeric)"
ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, name text)"


@pytest.fixture
def problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Problems:
    """Of a file with this text, without its name."""

    def found(text: str) -> list[str]:
        file = tmp_path / "p.toml"
        file.write_text(text)
        code = main(("pipeline", "validate", str(file)))
        err = capsys.readouterr().err
        assert (code == 0) == (err == "")
        return [line.removeprefix(f"barnabas: {file}:") for line in err.splitlines()]

    return found


def cured(problem: str, dsn: str) -> None:
    """Run what the problem says to run."""
    (said,) = re.findall(r"(?:run|superuser:|owner:) ((?:[A-Z]{4,} )+.*)$", problem)
    for statement in said.partition(", or")[0].split("; "):
        world.execute(dsn, statement)


def test_tables_publication_and_columns(server: postgres.Server, problems: Problems) -> None:
    dsn = world.database(server.address, "checked")
    text = TEXT.format(dsn=dsn, slot="checked")
    assert problems(text) == [
        "5:1: source.publication: there is no publication 'changes' in database checked: correct the name, or run CREATE"
        " PUBLICATION changes FOR TABLE name, ..."
    ]
    world.execute(dsn, ITEMS, "CREATE PUBLICATION changes FOR TABLE items")
    assert problems(text.replace("public.items", "public.item")) == [
        "6:11: source.tables[1]: no table of database checked is 'public.item' (did you mean items?): correct the name,"
        " or create the table",
        "6:26: source.tables[2]: no table of database checked is 'public.orders': correct the name, or create the table",
    ]
    world.execute(dsn, ORDERS)
    (missing,) = problems(text)
    assert missing.startswith("6:27: source.tables[2]: the publication changes does not have public.orders: run ALTER")
    cured(missing, dsn)
    assert problems(text) == []
    world.execute(dsn, "CREATE TABLE plain (id int)", "ALTER PUBLICATION changes ADD TABLE plain")
    (keyless,) = problems(text.replace("public.orders", "public.plain"))
    assert keyless.startswith("6:27: source.tables[2]: table public.plain has no primary key")


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ('nam = "string"', "has no column 'nam' that is published (did you mean name?)"),
        ('name = "int"', "is 'int', and the column of public.items is text: write name = \"string\""),
        ('at = "bigint"', "is 'bigint', and the column of public.items is timestamptz: write at = \"timestamp\""),
        (
            'tags = "array<int>"',
            "is 'array<int>', and the column of public.items is text[]: write tags = \"array<string>\"",
        ),
        ('tags = "struct<a: int>"', 'write tags = "array<string>"'),
        ('price = "double"', "is 'double', and the column of public.items is numeric: write price = \"decimal(38,9)\""),
        ('price = "decimal(10, 2)", tags = "array<string>", at = "timestamp"', ""),
    ],
)
def test_fields_and_the_types_of_their_columns(
    server: postgres.Server, problems: Problems, field: str, told: str
) -> None:
    dsn = world.database(server.address, f"typed{abs(hash(field)) % 10**8}")
    world.execute(dsn, ITEMS, "CREATE PUBLICATION changes FOR TABLE items")
    text = TEXT.format(dsn=dsn, slot="typed").replace(', "public.orders"', "").replace('name = "string"', field)
    found = problems(text)
    if not told:
        assert found == []
        return
    assert (
        len(found) == 1
        and found[0].startswith(f"8:54: source.value.fields.{field.split(' ')[0]}: ")
        and told in found[0]
    )


def test_a_role_gets_what_it_lacks_one_by_one(server: postgres.Server, problems: Problems) -> None:
    dsn = world.database(server.address, "granted")
    world.execute(
        dsn,
        ITEMS,
        ORDERS,
        "CREATE PUBLICATION changes FOR ALL TABLES",
        "CREATE ROLE modest LOGIN",
    )
    text = TEXT.format(dsn=dsn.replace("user=test", "user=modest"), slot="granted")
    found = problems(text)
    assert [problem.partition(" the role modest")[0] for problem in found] == [
        "4:1: source.postgres:",
        "6:11: source.tables[1]:",
        "6:27: source.tables[2]:",
        "11:1: sink.table: there is no table copies, and",
    ], found
    for problem in found:
        cured(problem, dsn)
    assert problems(text) == []
    world.execute(dsn, "CREATE TABLE copies (id int, name text)")
    found = problems(text)
    assert found[0].startswith(
        "11:1: sink.table: the role modest lacks INSERT, UPDATE, SELECT, DELETE on copies: run as"
    )
    assert found[1].startswith(
        "14:1: sink.key: the table copies has no unique key of (id): run ALTER TABLE copies ADD UNIQUE"
    )
    for problem in found:
        cured(problem, dsn)
    assert problems(text) == []
    for index in ("UNIQUE (id) INCLUDE (name)", "UNIQUE (id, name)"):  # columns beside a key are none of it
        world.execute(dsn, "DROP TABLE copies", f"CREATE TABLE copies (id int, name text, {index})")
        world.execute(dsn, "GRANT ALL ON copies TO modest")
        is_key = "INCLUDE" in index
        assert (problems(text) == []) is is_key
        assert (problems(text.replace('key = ["id"]', 'key = ["name", "id"]')) == []) is not is_key
    world.execute(dsn, "CREATE UNIQUE INDEX ON copies (id) WHERE name = 'a'", "CREATE UNIQUE INDEX ON copies (abs(id))")
    (partial,) = problems(text)  # neither of them holds for all rows and this column
    assert "has no unique key of (id)" in partial
    (missing,) = problems(text.replace('key = ["id"]', 'key = ["no"]'))
    assert missing == "14:1: sink.key: the table copies has no column 'no': its columns are id, name"
    (schema,) = problems(text.replace('"copies"', '"absent.copies"'))
    assert schema.startswith("11:1: sink.table: there is no schema absent: run CREATE SCHEMA absent")


def test_servers_and_slots(server: postgres.Server, problems: Problems) -> None:
    dsn = world.database(server.address, "slotted")
    world.execute(dsn, ITEMS, ORDERS, "CREATE PUBLICATION changes FOR ALL TABLES")
    text = TEXT.format(dsn=dsn, slot="slotted")
    other = world.database(server.address, "beside")
    world.execute(other, "SELECT pg_create_logical_replication_slot('slotted', 'pgoutput')")
    assert problems(text) == ["7:1: source.slot: the slot slotted is of the database beside: choose another name"]
    world.execute(other, "SELECT pg_drop_replication_slot('slotted')")
    world.execute(dsn, "SELECT pg_create_logical_replication_slot('slotted', 'test_decoding')")
    assert problems(text)[0].startswith("7:1: source.slot: slot slotted is of another kind (logical, test_decoding)")
    world.execute(dsn, "SELECT pg_drop_replication_slot('slotted')")
    assert problems(text) == []
    assert problems(text.replace("dbname=slotted", "dbname=nowhere"))[0].startswith(
        '4:1: source.postgres: the server cannot be asked: connection failed: connection to server at "127.0.0.1"'
    )
    assert "secret" not in "".join(problems(text.replace("dbname=slotted", "dbname=nowhere password=secret")))


def test_a_server_that_does_not_decode_and_has_no_slot_left(problems: Problems) -> None:
    with postgres.server(wal_level="replica", max_replication_slots="0") as plain:
        dsn = plain.address
        world.execute(dsn, ITEMS, ORDERS, "CREATE PUBLICATION changes FOR ALL TABLES")
        level, slots = problems(TEXT.format(dsn=dsn, slot="none"))
        assert level.startswith("4:1: source.postgres: wal_level of the server is replica, and changes need logical")
        assert slots.startswith("7:1: source.slot: the server has 0 slots, and max_replication_slots is 0: drop one")


ROWS = """\
name = "rows"

[source]
database = "postgresql:{dsn}"
table = "public.orders"
increasing = "id"

[sink]
table = "copies"
database = "sqlite:copies.db"
"""


def test_a_table_whose_rows_are_read(server: postgres.Server, problems: Problems) -> None:
    dsn = world.database(server.address, "rows_checked")
    text = ROWS.format(dsn=dsn)
    assert problems(text) == [
        "5:1: source.table: there is no table 'public.orders' in the database rows_checked: correct the name"
    ]
    world.execute(
        dsn,
        "CREATE TABLE orders (id bigserial, name text, at timestamptz(0), day date)",
        "CREATE ROLE rows_reader LOGIN",
    )
    assert problems(text) == []
    assert problems(text.replace("public.orders", "public.order"))[0].endswith(
        "(did you mean orders?): correct the name"
    )
    (role,) = problems(text.replace("user=test", "user=rows_reader"))
    assert role.startswith(
        "5:1: source.table: the role rows_reader may not read public.orders: run as its owner: GRANT"
    )
    for statement in role.partition("owner: ")[2].split("; "):
        world.execute(dsn, statement)
    assert problems(text.replace("user=test", "user=rows_reader")) == []
    for column, told in (
        ("nam", "there is no column 'nam' (did you mean name?): the columns are id, name, at, day"),
        ("name", "is 'name', by which rows cannot be read: use a column of whole numbers (int, bigint) or of times"),
        ("at", "is 'at', by which rows cannot be read: its type timestamptz(0) is not exact, so rows have equal times"),
        ("day", "is 'day', by which rows cannot be read"),
    ):
        (problem,) = problems(text.replace('increasing = "id"', f'increasing = "{column}"'))
        assert problem.startswith(f"6:1: source.increasing: {told}")
    query = text.replace('table = "public.orders"', 'query = "SELECT * FROM orders WHERE nam = 1"')
    assert problems(query) == ['5:1: source.query: the database refuses it: column "nam" does not exist: correct it']
    assert problems(text.replace("dbname=rows_checked", "dbname=nowhere password=secret"))[0].startswith(
        "4:1: source.database: the server cannot be asked: connection failed"
    )
    (twice,) = problems(text.replace('table = "public.orders"', 'query = "SELECT id, id FROM orders"'))
    assert "has two columns 'id', and Spark does not tell upper case from lower case" in twice
    world.execute(dsn, "ALTER SEQUENCE orders_id_seq CACHE 20")
    (cache,) = problems(text)
    assert cache.startswith("6:1: source.increasing: id takes its numbers from a sequence with CACHE 20: sessions keep")


def test_run_asks_the_same_before_it_starts_anything(
    server: postgres.Server, problems: Problems, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dsn = world.database(server.address, "rows_run")
    (told,) = problems(ROWS.format(dsn=dsn))
    file = tmp_path / "p.toml"
    assert main(("pipeline", "run", str(file), "--once")) == 2
    assert capsys.readouterr().err == f"barnabas: {file}:{told}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["p.toml"], "no state, so no driver"


@pytest.mark.timeout(300)
def test_run_begins_where_a_server_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is started again is no reason to end: the driver tries as often as the file says."""
    file = tmp_path / "p.toml"
    nowhere = "host=127.0.0.1 port=1 user=nobody dbname=none"
    file.write_text(ROWS.format(dsn=nowhere).replace("[sink]", "[restarts]\nattempts = 0\n[sink]"))
    assert main(("pipeline", "validate", str(file))) == 2
    told = capsys.readouterr().err
    assert "source.database: the server cannot be asked: connection failed" in told
    assert main(("pipeline", "run", str(file), "--once")) == 1
    assert capsys.readouterr().err.startswith(told), "the same words, before the driver begins"
    assert (tmp_path / "barnabas-pipelines" / "rows" / "driver.log").exists()


async def test_a_table_that_is_locked_may_pass(server: postgres.Server, tmp_path: Path) -> None:
    """A limit of time of the role, or a shutdown in the middle: `validate` tells it, and `run` begins in spite of it."""
    file = tmp_path / "p.toml"
    connector: Any = None  # no topics
    for name, text in (("locked_rows", ROWS), ("locked_changes", TEXT)):
        dsn = world.database(server.address, name)
        world.execute(dsn, ITEMS, ORDERS, "CREATE PUBLICATION changes FOR ALL TABLES")
        file.write_text(text.format(dsn=dsn, slot=name))
        locked = "orders" if text == ROWS else "pg_publication"
        limited = f"ALTER DATABASE {name} SET lock_timeout = '50ms'"
        with psycopg.connect(dsn) as other:
            other.execute(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE")
            world.execute(server.address, limited)
            found = await world_problems(read_pipeline(file), connector, "")
        told = [problem.message for problem in found if problem.may_pass]
        assert told and all(
            "has not answered a question: canceling statement due to lock timeout" in one for one in told
        )
        assert told == [problem.message for problem in found]

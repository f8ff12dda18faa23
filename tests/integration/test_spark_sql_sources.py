"""Tables and queries of PostgreSQL and SQLite as sources: all of their rows, those that come, and lookups beside a stream."""

import json
import sqlite3
import threading
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from integration import postgres, whole_topic
from integration.cluster import Cluster, until
from integration.spark_world import create_topic, send
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from barnabas.net.programs.connect.relations.kept_connection import KeptConnection
from barnabas.net.programs.connect.relations.relation import Between, Reached, RelationError, SqlColumn, open_relation
from barnabas.net.programs.pipeline.files import read_pipeline
from barnabas.spark_connector.pipeline.faults import PipelineFault, is_final
from barnabas.spark_connector.pipeline.sources import table_options
from barnabas.spark_connector.tables.table_source import TableOptions
from barnabas.spark_connector.tables.table_stream_reader import Front, TableStreamReader

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)

from integration import connect_world as world

pytestmark = pytest.mark.timeout(300)
ID = SqlColumn(name="id", type_name="bigint", is_place=True)
BATCH = """
name = "all-rows"
mode = "batch"
[source]
{source}
[[steps]]
sql = "{sql}"
[sink]
parquet = "rows"
"""
STREAM = """
name = "{topic}"
[source]
{source}
[sink]
topic = "{topic}"
key = "id"
"""


def found(declared: Any, source: str, sql: str = "SELECT * FROM input") -> list[dict[str, Any]]:
    """What a batch writes."""
    import pyarrow.parquet as pq

    pipeline = declared(BATCH.format(source=source, sql=sql))
    pipeline.run()
    return sorted(pq.read_table(pipeline.folder / "rows").to_pylist(), key=lambda row: str(row))


def source_of(pipeline: Any) -> Any:
    return read_pipeline(pipeline.file).spec.sources[0]


def values(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    """In the order of the log, of committed records."""
    found = whole_topic.messages(cluster.bootstrap, topic, partitions=1)
    return [json.loads(message.value() or b"") for message in found]


def test_all_rows_and_types_of_a_table_in_several_tasks(declared: Any, server: postgres.Server) -> None:
    dsn = world.database(server.address, "typed_rows")
    world.execute(
        dsn,
        "CREATE TABLE things (id bigint, name text, price numeric(10,2), loose numeric, day date, at timestamptz, plain"
        " timestamp, flag bool, raw bytea, tags text[], doc jsonb, small smallint, ratio float8)",
        "INSERT INTO things SELECT n, 'n%' || n, n / 4.0, n / 3.0, '2026-01-02', '2026-01-02 03:04:05.678901+02', '2026-01-02"
        " 03:04:05', n % 2 = 0, '\\x00ff', ARRAY['a', 'b'], '{\"a\": 1}', 7, 0.5 FROM generate_series(1, 1000) n",
        "INSERT INTO things (name) VALUES ('without')",
    )
    source = f'database = "postgresql:{dsn}"\ntable = "public.things"\npartition_by = "id"\npartitions = 4'
    rows = found(declared, source)
    assert len(rows) == 1001 and sorted(row["id"] or 0 for row in rows) == list(range(1001))
    row = next(row for row in rows if row["id"] == 3)
    at = row.pop("at")
    assert at.isoformat() == "2026-01-02T01:04:05.678901" and row.pop("plain").isoformat() == "2026-01-02T03:04:05"
    assert row == {
        "id": 3, "name": "n%3", "price": Decimal("0.75"), "loose": "1.00000000000000000000", "day": date(2026, 1, 2),
        "flag": False, "raw": b"\x00\xff", "tags": "{a,b}", "doc": '{"a": 1}', "small": 7, "ratio": 0.5,
    }  # fmt: skip


def test_a_query_of_sqlite_and_a_value_of_another_type(declared: Any, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, price DECIMAL(10,2), paid BOOLEAN, note TEXT)")
        shop.execute("INSERT INTO orders VALUES (1, 9.99, 1, 'a'), (2, 5, 0, NULL)")
    query = 'database = "sqlite:shop.db"\nquery = "SELECT *, id * 2 AS twice FROM orders -- all"'
    rows = found(declared, f'{query}\nfields = {{ twice = "int" }}')
    assert rows == [
        {"id": 1, "price": Decimal("9.99"), "paid": True, "note": "a", "twice": 2},
        {"id": 2, "price": Decimal("5.00"), "paid": False, "note": None, "twice": 4},
    ]
    with pytest.raises(
        PipelineFault, match=r"source input\.query: SQLite knows no type of the column 'twice': add fields"
    ):
        declared(BATCH.format(source=query, sql="SELECT * FROM input")).job()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("UPDATE orders SET paid = 'perhaps' WHERE id = 2")
    text = BATCH.format(source='database = "sqlite:shop.db"\ntable = "orders"', sql="SELECT id, paid FROM input")
    pipeline = declared(text.replace("all-rows", "wrong").replace('"rows"', '"other"'))
    with pytest.raises(Exception, match="column paid has 'perhaps', which is no boolean") as caught:
        pipeline.run()
    assert is_final(caught.value)


def test_new_rows_once_in_spite_of_a_late_transaction_and_replays(
    declared: Any, spark_cluster: Cluster, server: postgres.Server
) -> None:
    """A transaction with a smaller number ends after one with a larger number was seen: it is waited for."""
    dsn = world.database(server.address, "growing")
    world.execute(dsn, "CREATE TABLE orders (id bigserial PRIMARY KEY, name text)")
    topic = create_topic(spark_cluster, "growing-rows", partitions=1)
    source = f'database = "postgresql:{dsn}"\ntable = "orders"\nincreasing = "id"\nmax_rows = 2'
    pipeline = declared(STREAM.format(topic=topic, source=source))
    world.execute(dsn, "INSERT INTO orders (name) VALUES ('a'), ('b'), ('c')")
    pipeline.run()
    pipeline.replay()
    assert [row["id"] for row in values(spark_cluster, topic)] == [1, 2, 3]
    late = psycopg.connect(dsn)
    late.execute("INSERT INTO orders (name) VALUES ('late')")
    world.execute(dsn, "INSERT INTO orders (name) VALUES ('early')")
    options = table_options(pipeline.job()._world, source_of(pipeline), source_of(pipeline).origin)
    told = r"virtualtransaction [0-9/]+ in pg_locks\) could still bring earlier rows"
    with closing(Front(options, once_wait_s=0.1)) as front, pytest.raises(RelationError, match=told):
        front.stop_here()
    with closing(Front(options)) as front:
        assert [front.next(3, 0), front.next(3, 0)] == [3, 3]
    ending = threading.Timer(2, late.commit)
    ending.start()
    pipeline.run()
    ending.join()
    late.close()
    assert [(row["id"], row["name"]) for row in values(spark_cluster, topic)][3:] == [(4, "late"), (5, "early")]


@pytest.mark.parametrize(
    ("name", "kind", "sequence"),
    [
        ("owned", "bigserial", "orders_id_seq"),
        ("identity", "bigint GENERATED ALWAYS AS IDENTITY", "orders_id_seq"),
        ("named", "bigint DEFAULT nextval('numbers')", "numbers"),
    ],
)
def test_a_transaction_that_has_taken_a_number_is_waited_for(
    server: postgres.Server, name: str, kind: str, sequence: str
) -> None:
    """SQLAlchemy and Hibernate, for example, may ask for the number first: the table is not locked before the INSERT."""
    dsn = world.database(server.address, name)
    world.execute(dsn, "CREATE SEQUENCE numbers", f"CREATE TABLE orders (id {kind} PRIMARY KEY)")
    world.execute(dsn, "CREATE TABLE others (id bigserial)")
    relation = open_relation(f"postgresql:{dsn}", Path(), table="orders", query="")
    kept = KeptConnection(relation)

    def writers() -> frozenset[str]:
        return kept.ask(lambda connection: relation.writers(connection, ID))

    def reach() -> Reached:
        return kept.ask(lambda connection: relation.reached(connection, ID))

    with closing(kept), psycopg.connect(dsn) as late, psycopg.connect(dsn) as other:
        other.execute("SELECT nextval('others_id_seq')")
        assert reach().writers == frozenset()
        late.execute("SELECT nextval(%s)", (sequence,))
        world.execute(dsn, "INSERT INTO orders DEFAULT VALUES")
        reached = reach()
        assert reached.last == 2
        assert not reached.is_complete(writers())
        late.execute("INSERT INTO orders (id) OVERRIDING SYSTEM VALUE VALUES (1)")
        late.commit()
        assert reached.is_complete(writers())
    with relation.connected() as connection:
        relation.check_growing(connection, ID)
    world.execute(dsn, f"ALTER SEQUENCE {sequence} CACHE 20")
    with pytest.raises(RelationError, match="a sequence with CACHE 20"), relation.connected() as connection:
        relation.check_growing(connection, ID)


def test_the_end_as_the_start_has_the_rows_of_open_transactions(
    declared: Any, spark_cluster: Cluster, server: postgres.Server
) -> None:
    """What is committed after the start is read, also where its number is smaller than others that were there."""
    dsn = world.database(server.address, "from_the_end")
    world.execute(dsn, "CREATE TABLE orders (id bigserial PRIMARY KEY)", *["INSERT INTO orders DEFAULT VALUES"] * 2)
    topic = create_topic(spark_cluster, "rows-from-the-end", partitions=1)
    source = f'database = "postgresql:{dsn}"\ntable = "orders"\nincreasing = "id"\nstart = "latest"'
    pipeline = declared(STREAM.format(topic=topic, source=source))
    with psycopg.connect(dsn) as late:
        with late.transaction():
            late.execute("SAVEPOINT inner_one")  # its rows have an id of their own
            late.execute("INSERT INTO orders DEFAULT VALUES")
            world.execute(dsn, "INSERT INTO orders DEFAULT VALUES")
            options = table_options(pipeline.job()._world, source_of(pipeline), source_of(pipeline).origin)
            reader = TableStreamReader(options, StructType())
            start = reader.initialOffset()
            assert start == reader.initialOffset(), "Spark asks twice"
            waiting = reader.latestOffset(start, ReadAllAvailable())
            assert waiting["start"] == start["start"] and reader.partitions(start, waiting) == []
            assert waiting != start, "a micro-batch without rows, so the checkpoint has the start"
            assert reader.latestOffset(waiting, ReadAllAvailable()) == waiting, "no other one"
        begun = reader.latestOffset(json.loads(json.dumps(waiting)), ReadAllAvailable())
        assert (begun["after"], "start" in begun) == (2, False)
        assert reader.partitions(start, begun) == reader.partitions(waiting, begun) == []
        assert reader.latestOffset(begun, ReadAllAvailable())["after"] == 4
        reader.stop()
        late.execute("INSERT INTO orders DEFAULT VALUES")
        world.execute(dsn, "INSERT INTO orders DEFAULT VALUES")
        ending = threading.Timer(2, late.commit)
        ending.start()
        pipeline.run()
        ending.join()
    pipeline.run()
    assert [row["id"] for row in values(spark_cluster, topic)] in ([], [5, 6]), "the start may be behind the commit"
    world.execute(dsn, "INSERT INTO orders DEFAULT VALUES")
    pipeline.run()
    assert values(spark_cluster, topic)[-1]["id"] == 7


def test_the_end_as_the_start_is_kept_while_transactions_are_open(
    declared: Any, spark_cluster: Cluster, server: postgres.Server
) -> None:
    """Otherwise the next run would begin at a later end, behind the rows that have come between the two."""
    dsn = world.database(server.address, "kept_end")
    world.execute(dsn, "CREATE TABLE orders (id bigserial PRIMARY KEY)", "INSERT INTO orders DEFAULT VALUES")
    topic = create_topic(spark_cluster, "rows-from-a-kept-end", partitions=1)
    source = f'database = "postgresql:{dsn}"\ntable = "orders"\nincreasing = "id"\nstart = "latest"'
    pipeline = declared(STREAM.format(topic=topic, source=source))
    options = table_options(pipeline.job()._world, source_of(pipeline), source_of(pipeline).origin)
    query = TableStreamReader(options, StructType())
    query.prepareForTriggerAvailableNow()
    with psycopg.connect(dsn) as late:
        late.execute("INSERT INTO orders DEFAULT VALUES")
        world.execute(dsn, "INSERT INTO orders DEFAULT VALUES")
        checkpoint = query.latestOffset(query.initialOffset(), ReadAllAvailable())
        query.stop()
        assert checkpoint != query.initialOffset(), "Spark keeps only an end that differs"
    world.execute(dsn, "INSERT INTO orders DEFAULT VALUES")
    query = TableStreamReader(options, StructType())
    query.prepareForTriggerAvailableNow()
    for after in (1, 4):
        checkpoint = query.latestOffset(checkpoint, ReadAllAvailable())
        assert checkpoint["after"] == after
    query.stop()


def test_frozen_rows_are_older_than_a_start() -> None:
    """They keep the id of their transaction, which looks like one of the future after two billion others."""
    with postgres.server(autovacuum="off") as used:
        world.execute(used.address, "CREATE TABLE orders (id bigserial PRIMARY KEY)")
        world.execute(used.address, "INSERT INTO orders DEFAULT VALUES", "VACUUM FREEZE")
        used.skip_transactions(2**31 + 2**20)
        relation = open_relation(f"postgresql:{used.address}", Path(), table="orders", query="")
        with psycopg.connect(used.address) as late:
            late.execute("INSERT INTO orders DEFAULT VALUES")
            world.execute(used.address, "INSERT INTO orders DEFAULT VALUES")
            with relation.connected() as connection:
                start = relation.reached(connection, ID)
        with relation.connected() as connection:
            assert relation.first_since(connection, ID, start) == 2


async def test_a_connection_that_leads_to_a_standby_is_refused() -> None:
    """One that names several servers: a standby shows no writers, and may lack rows that were seen."""
    with postgres.server() as primary, postgres.standby(primary) as second:
        ports = ",".join(server.address.split()[1].removeprefix("port=") for server in (primary, second))
        both = f"host=127.0.0.1,127.0.0.1 port={ports} user=test dbname=postgres"
        world.execute(
            primary.address, "CREATE TABLE orders (id bigserial PRIMARY KEY)", "INSERT INTO orders DEFAULT VALUES"
        )
        with psycopg.connect(second.address, autocommit=True) as follower:
            has = "SELECT FROM pg_class WHERE relname = 'orders'"
            await until(lambda: follower.execute(has).fetchone() is not None, "the standby has the table")
        options = TableOptions(
            database=f"postgresql:{both}", base=".", table="orders", query="", columns=(ID,), increasing="id"
        )
        told = "is a standby, which does not show the writers of the primary.*target_session_attrs=primary"
        with closing(Front(options)) as front:
            assert front.next(None, 0) == 1
            primary.kill()
            with pytest.raises(RelationError, match=told):
                front.next(1, 0)
        relation, rows = options.relation(), Between(column="id", after=None, until=1)
        with pytest.raises(RelationError, match=told), relation.connected() as connection:
            next(relation.rows(connection, [ID], rows, is_ordered=True))


def test_one_connection_looks_again_and_again_until_it_is_lost(server: postgres.Server) -> None:
    dsn = world.database(server.address, "looked_at")
    world.execute(
        dsn,
        "CREATE TABLE orders (id bigserial PRIMARY KEY)",
        "ALTER DATABASE looked_at SET default_transaction_isolation = 'repeatable read'",
    )
    options = TableOptions(
        database=f"postgresql:{dsn}", base=".", table="orders", query="", columns=(ID,), increasing="id"
    )
    front, seen = Front(options), set[tuple[int, str]]()
    with closing(front), psycopg.connect(dsn, autocommit=True) as other:
        for number in range(1, 4):
            other.execute("INSERT INTO orders DEFAULT VALUES")
            assert front.next(None, 0) == number
            looks = "SELECT pid, state FROM pg_stat_activity WHERE application_name = 'barnabas pipeline'"
            seen |= {(row[0], row[1]) for row in other.execute(looks)}
        ((pid, state),) = seen
        assert state == "idle", "no transaction stays open between two looks"
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        other.execute("INSERT INTO orders DEFAULT VALUES")
        assert front.next(None, 0) == 4
        relation = options.relation()
        with relation.connected() as connection:
            relation.reached(connection, ID)
            assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def test_a_time_follows_updates_and_a_lookup_is_read_again(
    declared: Any, spark_cluster: Cluster, server: postgres.Server, tmp_path: Path
) -> None:
    dsn = world.database(server.address, "timed")
    world.execute(
        dsn,
        "CREATE TABLE items (id int, name text, at timestamptz NOT NULL DEFAULT now())",
        "INSERT INTO items VALUES (1, 'a'), (2, 'b')",
    )
    with closing(sqlite3.connect(tmp_path / "names.db")) as names, names:
        names.execute("CREATE TABLE names (name TEXT, full TEXT)")
        names.execute("INSERT INTO names VALUES ('a', 'Anna'), ('b', 'Berta')")
    topic = create_topic(spark_cluster, "timed-rows", partitions=1)
    pipeline = declared(f"""
name = "timed"
[sources.items]
database = "postgresql:{dsn}"
query = "SELECT id, name, at FROM items"
increasing = "at"
[sources.names]
database = "sqlite:names.db"
table = "names"
[[steps]]
sql = "SELECT id, full FROM items JOIN names USING (name)"
[sink]
topic = "{topic}"
key = "id"
""")
    pipeline.run()
    with closing(sqlite3.connect(tmp_path / "names.db")) as names, names:
        names.execute("UPDATE names SET full = 'Bertha' WHERE name = 'b'")
    world.execute(dsn, "UPDATE items SET at = now() WHERE id = 2")
    pipeline.run()
    written = [(row["id"], row["full"]) for row in values(spark_cluster, topic)]
    assert sorted(written[:2]) == [(1, "Anna"), (2, "Berta")] and written[2:] == [(2, "Bertha")]


def test_a_lookup_beside_a_topic_sees_each_change(declared: Any, spark_cluster: Cluster, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "names.db")) as names, names:
        names.execute("CREATE TABLE names (id INTEGER, full TEXT)")
        names.execute("INSERT INTO names VALUES (1, 'Anna')")
    topic, result = (create_topic(spark_cluster, name, partitions=1) for name in ("looked-up", "with-names"))
    pipeline = declared(f"""
name = "looked-up"
[sources.events]
topics = ["{topic}"]
value = {{ format = "json", fields = {{ id = "bigint" }} }}
[sources.names]
database = "sqlite:names.db"
table = "names"
[[steps]]
sql = "SELECT events.id, full FROM events LEFT JOIN names ON events.id = names.id"
[sink]
topic = "{result}"
""")
    changes = iter(["Annette", "Antje"])

    def changed(batch: Any, batch_id: int) -> None:
        write(batch, batch_id)
        with closing(sqlite3.connect(tmp_path / "names.db")) as names, names:
            names.execute("UPDATE names SET full = ?", (next(changes),))

    send(spark_cluster, topic, [b'{"id": 1}', b'{"id": 2}', b'{"id": 1}'])
    pipeline.file.write_text(pipeline.file.read_text().replace("topics =", "max_records = 2\ntopics ="))
    job = pipeline.job()  # one query, whose second micro-batch sees what has changed since the first
    write = job._write
    job._write = changed
    job.run(is_once=True)
    found = [row.get("full") for row in values(spark_cluster, result)]
    assert set(found[:2]) == {"Anna", None}, "a join does not keep the order of a micro-batch"
    assert found[2:] == ["Annette"]


def test_rows_without_a_value_are_told(declared: Any, spark_cluster: Cluster, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as shop, shop:
        shop.execute("CREATE TABLE t (id INTEGER, name TEXT)")
        shop.execute("INSERT INTO t VALUES (1, 'a'), (NULL, 'b')")
    topic = create_topic(spark_cluster, "without-values", partitions=1)
    source = 'database = "sqlite:a.db"\ntable = "t"\nincreasing = "id"'
    pipeline = declared(STREAM.format(topic=topic, source=source))
    with pytest.raises(StreamingQueryException, match="id is null in a row, which would never be read") as caught:
        pipeline.run()
    assert is_final(caught.value)
    with closing(sqlite3.connect(tmp_path / "a.db")) as shop, shop:
        shop.execute("DELETE FROM t WHERE id IS NULL")
        shop.execute("ALTER TABLE t ADD COLUMN number INTEGER")
        shop.execute("UPDATE t SET number = 1")
    pipeline.run()
    pipeline.file.write_text(pipeline.file.read_text().replace('increasing = "id"', 'increasing = "number"'))
    with pytest.raises(StreamingQueryException, match="name that column again, or run `barnabas pipeline reset`"):
        pipeline.run()

"""The connectors of PostgreSQL on real servers: equal tables and every change once, whatever is killed; types; errors."""

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from integration import postgres
from integration.cluster import Cluster, until

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")

from integration import connect_oracle as oracle  # noqa: E402 - needs psycopg
from integration import connect_world as world  # noqa: E402 - as above
from integration.whole_topic import messages  # noqa: E402 - as above

KILLS = int(os.environ.get("BARNABAS_CONNECT_KILLS", "6"))  # about 3 s each
ROUND_S = 1.5  # between a kill and the next
PARTITIONS = '{ partitions = 3, replication_factor = 3, configs = { "min.insync.replicas" = "2" } }'


async def equal(source: str, target: str, tables: list[str], running: list[world.Connector]) -> None:
    def is_equal() -> bool:
        for connector in running:
            connector.check()
        return all(world.texts(source, table) == world.texts(target, table) for table in tables)

    try:
        await until(is_equal, "the tables of the sink are those of the source", timeout_s=90)
    except AssertionError as error:
        for table in tables:
            left, right = set(world.texts(source, table)), set(world.texts(target, table))
            error.add_note(f"{table}: missing {sorted(left - right)[:3]}, superfluous {sorted(right - left)[:3]}")
        raise


@pytest.mark.timeout(120 + KILLS * 20)
async def test_tables_are_equal_and_every_change_is_there_once_after_any_kills(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    rng = Random(14)
    cluster = new_cluster()
    await cluster.ready()
    with ExitStack() as stack:
        server = stack.enter_context(postgres.server(**postgres.LOGICAL))
        target_server = stack.enter_context(postgres.server())
        source, target = server.address, target_server.address
        world.create_tables(source)
        world.create_tables(target)
        oracle.watch(source)
        load = world.Load(source, seed=14)
        load.fill()
        world.execute(source, "CREATE PUBLICATION bank FOR TABLE accounts, history, tags")
        stack.enter_context(load.running())
        small = "{ readers = 2, chunk_rows = 500 }"
        delivery = "{ max_records = 300 }"
        files = (
            world.source_file(tmp_path, source, "bank", topics=PARTITIONS, snapshot=small, delivery=delivery),
            world.sink_file(tmp_path, target, "bank", max_records="200"),
        )
        running = [world.Connector(file, cluster.bootstrap) for file in files]
        for connector in running:
            stack.callback(connector.kill)
        for number in range(KILLS):
            await asyncio.sleep(ROUND_S * rng.random())
            victim = ("source", "source", "broker", "server", "sink", "target")[number % 6]
            if victim in ("source", "sink"):
                connector = running[victim == "sink"]
                connector.check()
                connector.kill()
                connector.start()
            elif victim == "broker":
                node = rng.randrange(3)
                cluster.kill(node)
                cluster.start(node)
            else:
                chosen = server if victim == "server" else target_server
                await asyncio.to_thread(chosen.kill)
                await asyncio.to_thread(chosen.start)
        load.stop()
        assert load.transactions
        await cluster.ready()
        await equal(source, target, list(world.TABLES), running)
        await asyncio.to_thread(world.check_topics, cluster, "bank.", source)
        assert await asyncio.to_thread(oracle.check, cluster, "bank", source, 3) > world.ACCOUNTS


TYPES = """
    id int PRIMARY KEY, big bigint, small smallint, n numeric(20, 5), f float8, g real, flag boolean, t text, v varchar(10),
    c char(3), ts timestamp, tz timestamptz, d date, tm time, iv interval, u uuid, j json, jb jsonb, b bytea, ints int[],
    texts text[], grid int[][], stamps timestamptz[], e mood, es mood[], a amount, ip inet, r int4range
"""
MOODS = ("CREATE TYPE mood AS ENUM ('glad', 'so so')", "CREATE DOMAIN amount AS numeric CHECK (VALUE >= 0)")
FULL = """INSERT INTO things VALUES (1, -9223372036854775808, 5, 12345.67890, 'NaN', 1.5e-7, true, E'a "b" \\\\ \\n ü', 'v', 'c',
    '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.678+05:30', '2026-01-02', '03:04:05', '1 year 2 days 03:04:05.5',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a":  1}', '{"a": [1, null]}', '\\x00ff10', '{1,NULL,3}',
    ARRAY['x', NULL, 'y "z"', 'NULL', '{', ''], '{{1,2},{3,4}}', '{"2026-01-02 03:04:05+00",infinity}', 'so so',
    '{glad,"so so"}', 5.50, '10.0.0.1/8', '[1,5)')"""


async def test_all_core_types_arrive_as_they_are(
    server: postgres.Server, shared_cluster: Cluster, connectors: Callable[[Path], world.Connector], tmp_path: Path
) -> None:
    """In the snapshot and in the stream; a large value that an UPDATE has not touched stays; a new column follows."""
    await shared_cluster.ready()
    source, target = (world.database(server.address, name) for name in ("types", "types_copy"))
    for dsn in (source, target):
        world.execute(dsn, *MOODS, f"CREATE TABLE things ({TYPES})", "ALTER TABLE things ADD COLUMN large text")
    world.execute(source, FULL, "CREATE PUBLICATION types FOR TABLE things")
    settings = {
        "DateStyle": "German",
        "TimeZone": "Asia/Tokyo",
        "bytea_output": "escape",
        "IntervalStyle": "sql_standard",
    }
    world.execute(source, *(f"ALTER DATABASE types SET {key} = '{value}'" for key, value in settings.items()))
    running = [
        connectors(world.source_file(tmp_path, source, "types")),
        connectors(world.sink_file(tmp_path, target, "types")),
    ]
    await equal(source, target, ["things"], running)
    large = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i)"
    world.execute(
        source,
        FULL.replace("(1, -9", "(2, -9"),
        "INSERT INTO things (id, f, large) VALUES (3, 'Infinity', 'x'), (4, '-Infinity', 'y')",
        f"UPDATE things SET large = {large} WHERE id IN (3, 4)",
        "UPDATE things SET small = 7 WHERE id = 3",
        "UPDATE things SET id = 40 WHERE id = 4",
        "UPDATE things SET id = 20 WHERE id = 2",
    )
    for dsn in (target, source):
        world.execute(dsn, "ALTER TABLE things ADD COLUMN later text DEFAULT 'as before'")
    world.execute(source, "INSERT INTO things (id, later) VALUES (5, 'new')", "ALTER TABLE things DROP COLUMN v")
    world.execute(source, "INSERT INTO things (id) VALUES (6)")
    await until(lambda: (6,) in world.ids(target, "things"), "the sink has the last row")
    world.execute(target, "ALTER TABLE things DROP COLUMN v")
    await equal(source, target, ["things"], running)
    first = json.loads(
        next(iter(messages(shared_cluster.bootstrap, "types.public.things", partitions=1))).value() or b""
    )
    after = first["after"]
    assert (first["op"], first["source"]["snapshot"], first["before"]) == ("r", "true", None)
    assert (after["n"], after["f"], after["tz"], after["b"]) == (
        "12345.67890",
        "NaN",
        "2026-01-01T21:34:05.678Z",
        "AP8Q",
    )
    assert (after["grid"], after["es"], after["jb"]) == ([[1, 2], [3, 4]], ["glad", "so so"], '{"a": [1, null]}')
    assert after["big"] == -(2**63) and after["iv"] == "P1Y2DT3H4M5.5S"


async def test_truncates_of_a_topic_with_many_partitions(
    server: postgres.Server, shared_cluster: Cluster, connectors: Callable[[Path], world.Connector], tmp_path: Path
) -> None:
    """Each partition has the truncation; those that are read later bring rows from before it."""
    await shared_cluster.ready()
    source, target = (world.database(server.address, name) for name in ("emptied", "emptied_copy"))
    for dsn in (source, target):
        world.execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    world.execute(source, "CREATE PUBLICATION emptied FOR ALL TABLES")
    first = connectors(world.source_file(tmp_path, source, "emptied", topics="{ partitions = 4 }"))
    with psycopg.connect(source) as connection:
        for round_number in range(6):
            statement = "INSERT INTO t SELECT i, %s FROM generate_series(1, 200) i"
            connection.execute(statement, (f"round {round_number}",))
            if round_number < 5:
                connection.execute("TRUNCATE t")
            connection.commit()
    sinks = [connectors(world.sink_file(tmp_path, target, "emptied", max_records="70")) for _ in range(2)]
    await equal(source, target, ["t"], [first, *sinks])
    world.execute(
        source,
        "CREATE TABLE later (id int PRIMARY KEY)",
        "INSERT INTO later VALUES (1)",
        "DELETE FROM t WHERE id < 100",
    )
    world.execute(target, "CREATE TABLE later (id int PRIMARY KEY)")
    world.execute(source, "INSERT INTO later VALUES (2)")
    await equal(source, target, ["t", "later"], [first, *sinks])
    world.execute(
        source,
        "BEGIN; DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (7, 'x'); COMMIT",
    )
    world.execute(source, "INSERT INTO t VALUES (8, 'y')")
    await equal(source, target, ["t", "later"], [first, *sinks])


async def test_names_that_need_quotes_partitioned_tables_and_parts_of_tables(
    server: postgres.Server, shared_cluster: Cluster, connectors: Callable[[Path], world.Connector], tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source, target = (world.database(server.address, name) for name in ("odd", "odd_copy"))
    strange = 'CREATE TABLE "Strange, %s Name" ("Or der" text, id int, "select" text, PRIMARY KEY ("Or der", id))'
    parted = "CREATE TABLE parted (id int PRIMARY KEY, region text)"
    world.execute(
        source,
        strange,
        "CREATE TABLE pieces (id uuid PRIMARY KEY, shown text, hidden text, two int GENERATED ALWAYS AS (2) STORED)",
    )
    world.execute(target, strange, parted, "CREATE TABLE pieces (id uuid PRIMARY KEY, shown text)")
    world.execute(
        source,
        f"{parted} PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE high PARTITION OF parted FOR VALUES FROM (1000) TO (9000)",
        "INSERT INTO parted SELECT i, 'r' FROM generate_series(500, 1500) i",
        "INSERT INTO pieces SELECT gen_random_uuid(), 'row ' || i, 'secret' FROM generate_series(1, 300) i",
        """INSERT INTO "Strange, %s Name" SELECT 'ä' || i % 3, i, '"' FROM generate_series(1, 300) i""",
        """CREATE PUBLICATION odd FOR TABLE "Strange, %s Name", parted, pieces (id, shown) WHERE (shown <> 'row 7')
            WITH (publish_via_partition_root = true)""",
    )
    small = "{ chunk_rows = 50 }"
    running = [
        connectors(world.source_file(tmp_path, source, "odd", snapshot=small)),
        connectors(world.sink_file(tmp_path, target, "odd")),
    ]
    world.execute(
        source, "UPDATE parted SET id = id + 600 WHERE id BETWEEN 901 AND 950", "DELETE FROM parted WHERE id = 501"
    )
    world.execute(source, """UPDATE "Strange, %s Name" SET "select" = '%s' WHERE id = 5""")
    for query in ('SELECT x::text FROM "Strange, %s Name" x ORDER BY 1', "SELECT x::text FROM parted x ORDER BY 1"):
        await until(lambda query=query: selected(source, query) == selected(target, query), query)  # type: ignore[misc]
    shown = "SELECT id, shown FROM pieces WHERE shown <> 'row 7' ORDER BY 1"
    await until(lambda: selected(source, shown) == selected(target, "SELECT * FROM pieces ORDER BY 1"), shown)
    for connector in running:
        connector.check()


async def test_without_a_snapshot_and_with_rows_that_are_too_large(
    server: postgres.Server, shared_cluster: Cluster, connectors: Callable[[Path], world.Connector], tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "onward")
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'before')")
    world.execute(source, "CREATE PUBLICATION onward FOR TABLE t")
    said = {"snapshot": '{ mode = "never" }', "delivery": "{ max_record_bytes = 20000, linger_ms = 0 }"}
    connector = connectors(world.source_file(tmp_path, source, "onward", **said))
    await until(lambda: "stream begins" in connector.log.read_text(), "the stream begins")
    world.execute(source, "INSERT INTO t VALUES (2, 'after')", "UPDATE t SET v = repeat('x', 30000) WHERE id = 1")
    assert "raise delivery.max_record_bytes" in await world.ended(connector)
    changes = [
        json.loads(message.value() or b"")
        for message in messages(shared_cluster.bootstrap, "onward.public.t", partitions=1)
    ]
    assert [(change["op"], change["after"]["id"]) for change in changes] in ([("c", 2)], [])
    world.source_file(tmp_path, source, "onward", snapshot=said["snapshot"])
    connector.start()

    def seen() -> bool:
        found = [
            json.loads(message.value() or b"")
            for message in messages(shared_cluster.bootstrap, "onward.public.t", partitions=1)
        ]
        return [(change["op"], change["after"]["id"]) for change in found] == [("c", 2), ("u", 1)]

    await until(seen, "both changes, each once")


def selected(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        rows: list[Any] = connection.execute(query).fetchall()
    return rows


async def test_errors_name_the_cure_and_lose_nothing(
    server: postgres.Server, shared_cluster: Cluster, connectors: Callable[[Path], world.Connector], tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source, target = (world.database(server.address, name) for name in ("cures", "cures_copy"))
    world.execute(source, "CREATE TABLE t (id int, v text)", "INSERT INTO t VALUES (1, 'a')")
    file = world.source_file(tmp_path, source, "cures")
    connector = connectors(file)
    assert "CREATE PUBLICATION cures FOR TABLE" in await world.ended(connector)

    world.execute(source, "CREATE PUBLICATION cures FOR ALL TABLES")
    connector.start()
    assert "table public.t has no primary key" in (said := await world.ended(connector)) and "ADD PRIMARY KEY" in said

    world.execute(source, "ALTER TABLE t ADD PRIMARY KEY (id)")
    connector.start()
    sink = connectors(world.sink_file(tmp_path, target, "cures"))
    assert "table public.t, the target of topic cures.public.t, does not exist" in await world.ended(sink)
    world.execute(target, "CREATE TABLE t (id int, v text)")
    sink.start()
    assert "the target table needs a primary key" in await world.ended(sink)
    world.execute(target, "ALTER TABLE t ADD PRIMARY KEY (id)")
    sink.start()
    await equal(source, target, ["t"], [connector, sink])

    world.execute(source, "ALTER TABLE t ADD COLUMN w int", "INSERT INTO t VALUES (2, 'b', 5)")
    assert "ALTER TABLE public.t ADD COLUMN w" in await world.ended(sink)
    assert "table public.t: ALTER TABLE added w" in connector.log.read_text()
    world.execute(target, "ALTER TABLE t ADD COLUMN w int")
    sink.start()
    await equal(source, target, ["t"], [connector, sink])

    world.execute(
        source,
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t ADD PRIMARY KEY (v)",
        "INSERT INTO t VALUES (3, 'c')",
    )
    assert (
        "connect reset FILE --table public.t" in (said := await world.ended(connector)) and "from (id) to (v)" in said
    )
    connector.start()
    assert "connect reset FILE --table public.t" in await world.ended(connector), "it says so again"
    world.execute(target, "ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (v)")
    assert world.command(shared_cluster.bootstrap, "connect", "reset", str(file), "--table", "public.t").returncode == 0
    connector.start()
    world.execute(source, "INSERT INTO t VALUES (4, 'd')")
    await equal(source, target, ["t"], [connector, sink])

    status = world.command(shared_cluster.bootstrap, "connect", "status", str(file), "--format", "json")
    assert json.loads(status.stdout)["is_active"] is True and status.returncode == 0
    connector.kill()
    await until(lambda: world.dropped(source, "cures"), "the server frees the slot of the killed connector")
    world.execute(source, "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (5, 'e')")
    connector.start()
    assert (
        "slot cures does not exist any more" in (said := await world.ended(connector)) and "connect reset FILE" in said
    )
    assert world.command(shared_cluster.bootstrap, "connect", "reset", str(file)).returncode == 0
    connector.start()
    await equal(source, target, ["t"], [connector, sink])

    second = connectors(file)
    assert "another process runs connector cures now" in await world.ended(connector)
    world.execute(source, "INSERT INTO t VALUES (6, 'f')")
    await equal(source, target, ["t"], [second, sink])


async def test_a_server_without_logical_decoding(
    shared_cluster: Cluster, connectors: Callable[[Path], world.Connector], tmp_path: Path
) -> None:
    await shared_cluster.ready()
    with postgres.running() as dsn:
        said = await world.ended(connectors(world.source_file(tmp_path, dsn, "replica")))
    assert "wal_level of the server is replica" in said and "ALTER SYSTEM SET wal_level = logical" in said

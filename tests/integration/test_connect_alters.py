"""ALTER TABLE while a source connector is down, begins, or waits: nothing is lost, and what nobody sends is told."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration import postgres
from integration.cluster import Cluster, until

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")

from integration import connect_world as world  # noqa: E402 - needs psycopg
from integration.whole_topic import messages  # noqa: E402 - as above

from barnabas.net.programs.connect.postgres.catalog import published_tables  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.changes.coverage import Range  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.health import LockWait, lock_waits  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.replication import ReplicationConnection  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.server import close, connect, passes  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.server import named as name_sessions  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.snapshot import SnapshotReaders  # noqa: E402 - as above

Connectors = Callable[[Path], world.Connector]


def rows(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    """What follows each change of the topic."""
    found = messages(cluster.bootstrap, topic, partitions=1)
    return [json.loads(value)["after"] for message in found if (value := message.value()) is not None]


async def until_rows(cluster: Cluster, topic: str, expected: list[dict[str, Any]], connector: world.Connector) -> None:
    found: list[dict[str, Any]] = []

    def has_rows() -> bool:
        connector.check()
        found[:] = rows(cluster, topic)
        return len(found) >= len(expected)

    await until(has_rows, f"{topic} has {len(expected)} changes", timeout_s=60)
    assert found == expected


async def until_logged(connector: world.Connector, words: str) -> None:
    def is_logged() -> bool:
        connector.check()
        return words in connector.log.read_text()

    await until(is_logged, f"the log says {words!r}", timeout_s=60)


async def test_a_table_that_is_altered_while_the_snapshot_is_created(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    """The server waits for the transaction before it exports the snapshot, which sees the new column and its values."""
    await shared_cluster.ready()
    source = world.database(server.address, "early")
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    world.execute(source, "CREATE PUBLICATION early FOR TABLE t")
    with psycopg.connect(source) as other:
        other.execute("ALTER TABLE t ADD COLUMN w int")
        other.execute("UPDATE t SET w = 5")
        connector = connectors(world.source_file(tmp_path, source, "early"))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'walsender'"
        with psycopg.connect(source, autocommit=True) as third:
            await until(lambda: third.execute(waiting).fetchone() == (1,), "the connector waits for the transaction")
        other.commit()
    await until_rows(shared_cluster, "early.public.t", [{"id": 1, "w": 5}], connector)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t RENAME v TO x",
        "DROP TABLE t",
        "ALTER TABLE t RENAME TO other",
        "ALTER TABLE t RENAME TO other; CREATE TABLE t (id int PRIMARY KEY, v text)",
    ],
)
async def test_a_table_that_is_altered_after_the_snapshot_needs_a_newer_one(
    server: postgres.Server, statement: str
) -> None:
    """What fails passes, so the connector starts over."""
    name = f"newer_{sum(statement.encode())}"
    source = world.database(server.address, name)
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY, v text)", f"CREATE PUBLICATION {name} FOR TABLE t")
    connection = await connect(source)
    replication = await ReplicationConnection.open(source)
    try:
        tables = list((await published_tables(connection, name, ["*.*"])).values())
        snapshot = await replication.export_snapshot(f"snapshot_{name}")
        world.execute(source, statement)
        readers = SnapshotReaders(source, snapshot.name, snapshot.lsn, count=1, chunk_rows=20)
        try:
            with pytest.raises(psycopg.OperationalError, match="table public.t|name public.t") as failed:
                await readers.start(tables, [[Range(lower=None, upper=None)]])
                await readers.next(10)
        finally:
            await readers.close()
        assert passes(failed.value)
    finally:
        await close(connection)
        await replication.close()


async def test_many_alterations_between_changes_that_are_still_in_the_log(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "many")
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION many FOR ALL TABLES")
    connector = connectors(world.source_file(tmp_path, source, "many"))
    await until_logged(connector, "stream begins")
    connector.kill()
    world.execute(
        source,
        "INSERT INTO t VALUES (1, '10')",
        "ALTER TABLE t ADD COLUMN w int DEFAULT 7",
        "INSERT INTO t VALUES (2, '20')",
        "ALTER TABLE t ALTER v TYPE int USING v::int",
        "BEGIN; INSERT INTO t VALUES (3, 30); ALTER TABLE t RENAME v TO x; INSERT INTO t VALUES (4, 40, 8);"
        " ALTER TABLE t DROP COLUMN w; ALTER TABLE t ADD COLUMN w text; INSERT INTO t VALUES (5, 50, 'w'); COMMIT",
        "UPDATE t SET x = 11 WHERE id = 1",
    )
    connector.start()
    expected: list[dict[str, Any]] = [
        {"id": 1, "v": "10"},
        {"id": 2, "v": "20", "w": 7},
        {"id": 3, "v": 30, "w": 7},
        {"id": 4, "x": 40, "w": 8},
        {"id": 5, "x": 50, "w": "w"},
        {"id": 1, "x": 11, "w": None},
    ]
    await until_rows(shared_cluster, "many.public.t", expected, connector)


async def test_a_key_that_becomes_bigint_while_the_connector_runs_or_is_down(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "wider")
    world.execute(source, "CREATE TABLE t (id smallint PRIMARY KEY)", "CREATE PUBLICATION wider FOR TABLE t")
    connector = connectors(world.source_file(tmp_path, source, "wider"))
    await until_logged(connector, "stream begins")
    world.execute(source, "INSERT INTO t VALUES (1)", "ALTER TABLE t ALTER id TYPE int", "INSERT INTO t VALUES (2)")
    await until_rows(shared_cluster, "wider.public.t", [{"id": 1}, {"id": 2}], connector)
    connector.kill()
    world.execute(source, "INSERT INTO t VALUES (3)", "ALTER TABLE t ALTER id TYPE bigint")
    world.execute(source, f"INSERT INTO t VALUES ({2**40})")
    connector.start()
    expected = [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 2**40}]
    await until_rows(shared_cluster, "wider.public.t", expected, connector)
    world.execute(source, "ALTER TABLE t ALTER id TYPE text", "INSERT INTO t VALUES ('x')")
    said = await world.ended(connector)
    assert "from (id) of types (int8) to (id) of types (text)" in said and "reset FILE --table public.t" in said
    assert rows(shared_cluster, "wider.public.t") == expected


async def test_values_of_types_that_were_dropped_while_the_connector_was_down(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "typed")
    world.execute(
        source,
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        "CREATE DOMAIN amount AS int",
        "CREATE TABLE t (id int PRIMARY KEY, a amount, m mood, ms mood[], b amount[])",
        "CREATE PUBLICATION typed FOR TABLE t",
    )
    connector = connectors(world.source_file(tmp_path, source, "typed"))
    await until_logged(connector, "stream begins")
    connector.kill()
    world.execute(
        source,
        "INSERT INTO t VALUES (1, 5, 'glad', '{sad,glad}', '{1,2}')",
        "ALTER TABLE t DROP COLUMN a, DROP COLUMN m, DROP COLUMN ms, DROP COLUMN b",
        "DROP TYPE mood",
        "DROP DOMAIN amount",
        "INSERT INTO t VALUES (2)",
    )
    connector.start()
    first = {"id": 1, "a": 5, "m": "glad", "ms": ["sad", "glad"], "b": ["1", "2"]}
    await until_rows(shared_cluster, "typed.public.t", [first, {"id": 2}], connector)
    assert "type amount[] does not exist any more" in connector.log.read_text()


async def test_what_was_altered_while_the_connector_was_down_is_told_at_the_next_change(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "silent")
    world.execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10, 2), c varchar(10))",
        "INSERT INTO t VALUES (1, '10', 1.25, 'c')",
        "CREATE PUBLICATION silent FOR TABLE t",
    )
    connector = connectors(world.source_file(tmp_path, source, "silent"))
    await until_logged(connector, "stream begins")
    connector.kill()
    world.execute(
        source,
        "ALTER TABLE t ALTER v TYPE int USING 1, ALTER n TYPE numeric(10, 0), ALTER c TYPE varchar(20), ADD w int DEFAULT 7",
    )
    connector.start()
    world.execute(source, "UPDATE t SET v = 11")
    await until_logged(connector, "ALTER TABLE changed the type of v, n. Its other rows bring no change")
    await until_logged(connector, "ALTER TABLE added w. A default")
    row = {"id": 1, "n": "1.25", "c": "c", "v": "10"}
    await until_rows(shared_cluster, "silent.public.t", [row, {**row, "v": 11, "n": "1", "w": 7}], connector)


async def test_a_session_that_the_snapshot_waits_for_is_named(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "locked")
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    world.execute(source, "CREATE PUBLICATION locked FOR TABLE t")
    file = world.source_file(tmp_path, source, "locked")
    with psycopg.connect(source, application_name="migration") as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        connector = connectors(file)
        named = f"session {other.info.backend_pid} has it (user test, application 'migration', idle in transaction)"
        await until_logged(connector, named)
        assert "connector=locked waits for a lock of t for " in connector.log.read_text()
        status = world.command(shared_cluster.bootstrap, "connect", "status", str(file))
        assert status.returncode == 3 and named in status.stdout + status.stderr, status
        other.commit()
    await until_rows(shared_cluster, "locked.public.t", [{"id": 1}], connector)
    status = world.command(shared_cluster.bootstrap, "connect", "status", str(file))
    assert "waits for" not in status.stdout + status.stderr


async def test_what_a_lock_wait_says(server: postgres.Server) -> None:
    """A session that waits for a table itself; others with the same name are no news, and neither are other programs."""
    source = world.database(server.address, "waits")
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY)")
    dsn = name_sessions(source, "mine")
    reader = await connect(dsn)
    watcher = await connect(source)
    try:
        with psycopg.connect(source) as other:
            other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            reading = asyncio.create_task(reader.execute("SELECT * FROM t"))
            found: list[LockWait] = []
            while not found:
                found = await lock_waits(watcher, dsn)
            assert [(wait.tables, wait.pid) for wait in found] == [("t", other.info.backend_pid)]
            assert await lock_waits(watcher, name_sessions(source, "other")) == []
            other.commit()
        await reading
        assert await lock_waits(watcher, dsn) == []
    finally:
        await close(reader)
        await close(watcher)

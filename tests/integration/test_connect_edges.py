"""Source connectors of PostgreSQL where the log and the catalog disagree, and where transactions are larger than they may be."""

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import nullcontext
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
from barnabas.net.programs.connect.postgres.replication import ReplicationConnection  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.server import close, connect  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.snapshot import SnapshotReaders  # noqa: E402 - as above

Connectors = Callable[[Path], world.Connector]


def changes(cluster: Cluster, topic: str, partitions: int = 1) -> list[dict[str, Any]]:
    found = messages(cluster.bootstrap, topic, partitions=partitions)
    return [json.loads(value) for message in found if (value := message.value()) is not None]


async def until_row(cluster: Cluster, topic: str, key: int, connector: world.Connector) -> list[dict[str, Any]]:
    """Until the topic has a row with this id; returns all of its changes."""

    def has_row() -> bool:
        connector.check()
        return any((change["after"] or {}).get("id") == key for change in changes(cluster, topic))

    await until(has_row, f"{topic} has row {key}", timeout_s=60)
    return changes(cluster, topic)


async def test_changes_of_tables_that_do_not_exist_any_more(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    """The log has them, the catalog does not: there is nothing to read, and the stream goes on."""
    await shared_cluster.ready()
    source = world.database(server.address, "gone")
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION gone FOR ALL TABLES")
    connector = connectors(world.source_file(tmp_path, source, "gone"))
    await until(lambda: "stream begins" in connector.log.read_text(), "the stream begins")
    connector.kill()
    world.execute(
        source,
        "CREATE TABLE brief (id int PRIMARY KEY)",
        "INSERT INTO brief VALUES (1)",
        "DROP TABLE brief",
        "CREATE TABLE named (id int PRIMARY KEY)",
        "INSERT INTO named VALUES (1)",
        "ALTER TABLE named RENAME TO renamed",
        "INSERT INTO renamed VALUES (2)",
        "INSERT INTO t VALUES (7)",
    )
    connector.start()
    await until_row(shared_cluster, "gone.public.t", 7, connector)
    assert [change["after"]["id"] for change in changes(shared_cluster, "gone.public.renamed")] == [1, 2]
    assert connector.log.read_text().count("starting over") < 4, connector.log.read_text()


async def test_columns_that_the_index_of_the_primary_key_only_includes(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "included")
    world.execute(
        source,
        "CREATE TABLE t (v text, id int, PRIMARY KEY (id) INCLUDE (v))",
        "INSERT INTO t VALUES ('a', 1)",
        "CREATE PUBLICATION included FOR TABLE t",
    )
    connector = connectors(world.source_file(tmp_path, source, "included"))
    await until(lambda: "stream begins" in connector.log.read_text(), "the stream begins")
    world.execute(source, "UPDATE t SET v = 'b' WHERE id = 1", "INSERT INTO t VALUES ('c', 2)")
    found = await until_row(shared_cluster, "included.public.t", 2, connector)
    assert [(change["op"], change["after"]["v"]) for change in found] == [("r", "a"), ("u", "b"), ("c", "c")]


async def test_a_table_that_was_left_out_for_a_while(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "pause")
    world.execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION pause FOR TABLE t, u",
    )
    connector = connectors(world.source_file(tmp_path, source, "pause"))
    await until_row(shared_cluster, "pause.public.t", 1, connector)
    connector.kill()
    world.execute(source, "INSERT INTO t VALUES (2)")
    world.source_file(tmp_path, source, "pause", tables='["public.u"]')
    connector.start()
    world.execute(source, "INSERT INTO t VALUES (3)", "INSERT INTO u VALUES (3)")
    await until_row(shared_cluster, "pause.public.u", 3, connector)
    connector.kill()
    world.source_file(tmp_path, source, "pause")
    connector.start()
    world.execute(source, "INSERT INTO t VALUES (4)")
    found = await until_row(shared_cluster, "pause.public.t", 4, connector)
    assert [(change["op"], (change["after"] or {}).get("id")) for change in found] in (
        [("r", 1), ("t", None), ("r", 1), ("r", 2), ("r", 3), ("c", 4)],
        [("r", 1), ("t", None), ("r", 1), ("r", 2), ("r", 3), ("r", 4)],
    )


async def test_a_slot_that_another_program_holds(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "held")
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION held FOR TABLE t")
    connector = connectors(world.source_file(tmp_path, source, "held"))
    await until(lambda: "stream begins" in connector.log.read_text(), "the stream begins")
    connector.kill()
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'held'"
    with psycopg.connect(source, autocommit=True) as connection:
        await until(lambda: connection.execute(active).fetchone() == (False,), "the killed connector lets the slot go")
    programs, _ = postgres.find()
    assert programs is not None
    other = await asyncio.create_subprocess_exec(
        str(programs / "pg_recvlogical"), "-d", source, "-S", "held", "--start", "-f", "/dev/null",
        "-o", "proto_version=1", "-o", "publication_names=held", "--no-loop",
    )  # fmt: skip
    try:
        with psycopg.connect(source, autocommit=True) as connection:
            await until(lambda: connection.execute(active).fetchone() == (True,), "the other program holds the slot")
        connector.start()
        await until(lambda: "another program has the slot" in connector.log.read_text(), "the log names the fault")
        world.execute(source, "INSERT INTO t VALUES (1)")
        assert connector.process.poll() is None
    finally:
        other.kill()
        await other.wait()
    await until_row(shared_cluster, "held.public.t", 1, connector)


async def test_a_transaction_that_is_larger_than_one_of_ours_is_written_once_in_parts(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    """With kills between the parts. The parts are also those of a connector that the machine stops for longer than a transaction
    may be open."""
    await shared_cluster.ready()
    source = world.database(server.address, "parts")
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE PUBLICATION parts FOR TABLE t")
    delivery = "{ max_records = 100, max_transaction_records = 2000, transaction_timeout_ms = 3000 }"
    connector = connectors(world.source_file(tmp_path, source, "parts", delivery=delivery))
    await until(lambda: "stream begins" in connector.log.read_text(), "the stream begins")
    world.execute(
        source,
        "BEGIN; INSERT INTO t SELECT i, 0 FROM generate_series(1, 100000) i;"
        " UPDATE t SET v = 1; DELETE FROM t WHERE id > 50000; COMMIT",
        "INSERT INTO t VALUES (500000, 7)",
    )
    for number in range(4):
        part = "committed in parts connector=parts records=2000"
        seen = connector.log.read_text().count(part)
        await until(lambda seen=seen, part=part: connector.log.read_text().count(part) > seen, "another part")  # type: ignore[misc]
        if number == 1:
            connector.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(5)  # longer than transaction_timeout_ms: nothing tells when the brokers have ended it
            connector.process.send_signal(signal.SIGCONT)
        else:
            connector.kill()
            connector.start()
    found = await until_row(shared_cluster, "parts.public.t", 500000, connector)
    places = [(change["source"]["commit_lsn"], change["transaction"]["total_order"]) for change in found]
    assert places == [(places[0][0], order) for order in range(1, 250_001)] + [places[-1]]
    assert {change["op"] for change in found} == {"c", "u", "d"}


async def test_the_server_keeps_what_is_not_committed_in_the_topics(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    """The connector has the change, and the brokers do not answer: if the slot moved, a kill now would lose the change."""
    await shared_cluster.ready()
    source = world.database(server.address, "kept")
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION kept FOR TABLE t")
    connector = connectors(world.source_file(tmp_path, source, "kept"))
    await until(lambda: "stream begins" in connector.log.read_text(), "the stream begins")
    world.execute(source, "INSERT INTO t VALUES (1)")
    await until_row(shared_cluster, "kept.public.t", 1, connector)
    sent = """SELECT sent_lsn >= %s::pg_lsn, r.reply_time::text FROM pg_stat_replication r
        JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = 'kept'"""
    with psycopg.connect(source, autocommit=True) as connection:
        for node in shared_cluster.nodes:
            node.signal(signal.SIGSTOP)
        try:
            connection.execute("INSERT INTO t VALUES (2)")
            (end,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
            await until(
                lambda: (connection.execute(sent, (end,)).fetchone() or [0])[0], "the server has sent the change"
            )
            (_, told) = connection.execute(sent, (end,)).fetchone() or ("", "")
            await until(
                lambda: (connection.execute(sent, (end,)).fetchone() or ["", told])[1] != told, "a status after it"
            )
            kept = "SELECT confirmed_flush_lsn < %s::pg_lsn FROM pg_replication_slots WHERE slot_name = 'kept'"
            assert connection.execute(kept, (end,)).fetchone() == (True,)
            connector.kill()
        finally:
            for node in shared_cluster.nodes:
                node.signal(signal.SIGCONT)
    connector.start()
    found = await until_row(shared_cluster, "kept.public.t", 2, connector)
    assert [change["after"]["id"] for change in found] == [1, 2]


async def test_privileges_that_the_role_lacks(
    server: postgres.Server, shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source = world.database(server.address, "weak")
    world.execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION weak FOR TABLE t",
        "CREATE ROLE weak LOGIN",
    )
    connector = connectors(world.source_file(tmp_path, source.replace("user=test", "user=weak"), "weak"))
    assert "ALTER ROLE name REPLICATION" in await world.ended(connector)
    world.execute(source, "ALTER ROLE weak REPLICATION")
    connector.start()
    assert "permission denied for table t" in (said := await world.ended(connector)) and "GRANT SELECT" in said
    world.execute(source, "GRANT SELECT ON t TO weak")
    connector.start()
    assert [change["op"] for change in await until_row(shared_cluster, "weak.public.t", 1, connector)] == ["r"]


async def test_log_that_the_server_has_discarded(
    shared_cluster: Cluster, connectors: Connectors, tmp_path: Path
) -> None:
    """While the connector does not answer. It stops when it does, and reads all tables again after the cure."""
    await shared_cluster.ready()
    limits = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}
    with postgres.server(**postgres.LOGICAL, **limits) as server:
        source = server.address
        world.execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION lost FOR TABLE t")
        file = world.source_file(tmp_path, source, "lost")
        connector = connectors(file)
        await until(lambda: "stream begins" in connector.log.read_text(), "the stream begins")
        world.execute(source, "INSERT INTO t VALUES (1)")
        await until_row(shared_cluster, "lost.public.t", 1, connector)
        connector.process.send_signal(signal.SIGSTOP)
        world.execute(source, "INSERT INTO t VALUES (2)")

        def is_lost() -> bool:
            world.execute(source, "SELECT pg_switch_wal()", "INSERT INTO t SELECT max(id) + 1 FROM t", "CHECKPOINT")
            with psycopg.connect(source) as connection:
                found = connection.execute("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'lost'")
                return bool(found.fetchone() == ("lost",))

        await until(is_lost, "the server discards the log", timeout_s=60)
        connector.process.send_signal(signal.SIGCONT)
        said = await world.ended(connector)
        assert "exceeded max_slot_wal_keep_size" in said and "barnabas connect reset FILE" in said
        status = world.command(shared_cluster.bootstrap, "connect", "status", str(file))
        assert status.returncode == 3 and "drop the slot" in status.stdout + status.stderr
        assert world.dropped(source, "lost")
        assert world.command(shared_cluster.bootstrap, "connect", "reset", str(file)).returncode == 0
        connector.start()
        world.execute(source, "INSERT INTO t VALUES (100000)")
        found = await until_row(shared_cluster, "lost.public.t", 100000, connector)
        ops = [change["op"] for change in found]
        with psycopg.connect(source) as connection:
            rows = {row[0] for row in connection.execute("SELECT id FROM t").fetchall()}
        assert {change["after"]["id"] for change in found[ops.index("t") + 1 :]} == rows


@pytest.mark.parametrize("statement", ["ALTER TABLE t ALTER COLUMN v TYPE bigint", "TRUNCATE t", "TRUNCATE t_2"])
async def test_a_table_that_is_rewritten_after_the_snapshot_is_not_read_as_empty(
    server: postgres.Server, statement: str
) -> None:
    """For a snapshot from before, the server shows such a table without rows: they would be missing in the topic."""
    name = f"rewritten_{len(statement)}"
    source = world.database(server.address, name)
    world.execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (50)",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (50) TO (1000)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 100) i",
        f"CREATE PUBLICATION {name} FOR TABLE t WITH (publish_via_partition_root = true)",
    )
    connection = await connect(source)
    replication = await ReplicationConnection.open(source)
    try:
        tables = list((await published_tables(connection, name, ["*.*"])).values())
        for is_late in (False, True):
            snapshot = await replication.export_snapshot(f"snapshot_{name}_{is_late}".lower())
            readers = SnapshotReaders(source, snapshot.name, snapshot.lsn, count=1, chunk_rows=20)
            try:
                if is_late:
                    world.execute(source, statement)
                with pytest.raises(psycopg.OperationalError, match="rewritten") if is_late else nullcontext():
                    await readers.start(tables, [[Range(lower=None, upper=None)]])
                    rows = 0
                    while (found := await readers.next(10)) is not None:
                        rows += len(found.rows)
                    assert rows == 100
            finally:
                await readers.close()
    finally:
        await close(connection)
        await replication.close()

"""A standby of the source is promoted, with the slot that Patroni, pg_failover_slots or PostgreSQL 17 keep there."""

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
from integration.test_connect_edges import changes  # noqa: E402 - as above


def one(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        ((found,),) = connection.execute(query)
        return found


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_standby_goes_on_unless_it_lacks_what_was_read(
    shared_cluster: Cluster, connectors: Callable[[Path], world.Connector], tmp_path: Path, is_behind: bool
) -> None:
    """Otherwise its changes up to the connector's position would be taken for known ones."""
    await shared_cluster.ready()
    name = f"failover_{is_behind}".lower()
    topic = f"{name}.public.t"

    def ids() -> list[int | None]:
        """None: a truncation."""
        return [change["after"] and change["after"]["id"] for change in changes(shared_cluster, topic)]

    with postgres.server(**postgres.LOGICAL) as primary:
        source = world.database(primary.address, name)
        world.execute(source, "CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {name} FOR TABLE t")
        connector = connectors(world.source_file(tmp_path, source, name))
        await until(lambda: "stream begins" in connector.log.read_text(), "the stream begins")
        with postgres.standby(primary, **postgres.LOGICAL) as second:
            world.execute(source, "INSERT INTO t VALUES (1)")
            await until(lambda: ids() == [1], "the first change")
            world.execute(source, "CHECKPOINT")
            end = one(source, "SELECT pg_current_wal_lsn()::text")
            await until(
                lambda: one(second.address, f"SELECT pg_last_wal_replay_lsn() >= '{end}'"), "the standby has it"
            )
            second.kill()
            second.copy_slot(name)
            if is_behind:
                world.execute(source, "INSERT INTO t VALUES (2)")
                await until(lambda: ids() == [1, 2], "a change that the standby does not have")
            connector.kill()
            primary.kill()
            second.start()
            promoted = source.replace(primary.address.split()[1], second.address.split()[1])
            assert one(promoted, "SELECT pg_promote()")
            world.execute(promoted, "INSERT INTO t VALUES (3)", "SELECT pg_switch_wal()", "INSERT INTO t VALUES (4)")
            connector = connectors(world.source_file(tmp_path, promoted, name))
            if is_behind:
                said = await world.ended(connector)
                assert "the server was promoted or restored: its log is of timeline 2, and timeline 1" in said, said
                assert "ended there at 0/" in said and "run `barnabas connect reset FILE`" in said
                assert ids() == [1, 2]
                command = ("connect", "reset", str(connector.file))
                assert world.command(shared_cluster.bootstrap, *command).returncode == 0
                connector.start()
            expected = [1, 2, None, 1, 3, 4] if is_behind else [1, 3, 4]
            await until(lambda: ids() == expected, "the changes of the new primary")
            connector.kill()
            second.kill()
            primary.start()  # which goes on with the first timeline, as if there had been no failover
            world.execute(
                source, "INSERT INTO t VALUES (5)", *["SELECT pg_switch_wal()", "UPDATE t SET id = 6 WHERE id >= 5"] * 3
            )
            connector = connectors(world.source_file(tmp_path, source, name))
            said = await world.ended(connector)
            assert "its log is of timeline 1, and timeline 2" in said and "is not of its history" in said, said
            assert ids() == expected

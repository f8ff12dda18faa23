"""The slot of a connector that runs: in /metrics and in `barnabas doctor`; and what a slot that is dropped under it does."""

import re
import urllib.request
from pathlib import Path

import pytest
from integration import postgres
from integration.cluster import Cluster, until

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")

from integration import connect_world as world  # noqa: E402 - needs psycopg
from integration.test_connect_edges import changes  # noqa: E402 - as above

DROP = (
    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'told'",
    "SELECT pg_drop_replication_slot('told')",
)


def metrics(connector: world.Connector) -> str:
    found = re.search(r"metrics on port (\d+)", connector.log.read_text())
    if found is None:
        return ""
    with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


async def test_a_slot_that_is_dropped_under_its_connector_ends_it_with_the_cure(
    server: postgres.Server, shared_cluster: Cluster, tmp_path: Path
) -> None:
    await shared_cluster.ready()
    source, bootstrap = world.database(server.address, "told"), shared_cluster.bootstrap
    world.execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION told FOR TABLE t")
    connector = world.Connector(world.source_file(tmp_path, source, "told"), bootstrap, "--metrics", "127.0.0.1:0")
    try:
        await harm_and_cure(shared_cluster, connector, source)
    finally:
        connector.kill()


async def harm_and_cure(shared_cluster: Cluster, connector: world.Connector, source: str) -> None:
    bootstrap = shared_cluster.bootstrap
    await until(lambda: "stream begins" in connector.log.read_text(), "the stream begins")
    labels = '{program="connector told",slot="told"}'
    await until(lambda: f"barnabas_postgres_slot_active{labels} 1" in metrics(connector), "the slot is in the metrics")
    assert f"barnabas_postgres_slot_lost{labels} 0" in metrics(connector)

    def drop() -> bool:
        try:
            world.execute(source, *DROP)
        except psycopg.errors.ObjectInUse:  # the connector was faster
            return False
        return True

    await until(drop, "the slot is dropped")
    world.execute(source, "INSERT INTO t VALUES (1)")
    said = await world.ended(connector)
    assert "slot told" in said and "barnabas connect reset" in said, said
    assert changes(shared_cluster, "told.public.t") == []
    doctor = world.command(bootstrap, "doctor")
    assert "slot told of connector told (PostgreSQL, 127.0.0.1:" in doctor.stdout
    assert "/told) does not exist any more" in doctor.stdout and "barnabas connect reset FILE" in doctor.stdout

    assert world.command(bootstrap, "connect", "reset", str(connector.file)).returncode == 0
    connector.start()
    await until(
        lambda: any((item["after"] or {}).get("id") == 1 for item in changes(shared_cluster, "told.public.t")),
        "the row",
    )
    await until(
        lambda: "does not exist any more" not in world.command(bootstrap, "doctor").stdout, "the doctor is content"
    )

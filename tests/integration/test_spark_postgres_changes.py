"""The format "postgres-changes": rows in batches, changes as a stream, and each change once after kill -9 of the driver."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from integration import postgres
from integration.cluster import Cluster, clean_environment, until
from integration.spark_world import create_topic
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tidy.source_tree import ROOT

from barnabas.spark_connector.postgres.change_options import NAMES

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")

from integration import connect_world as world  # noqa: E402 - needs psycopg
from integration.spark_changes import DEADLINE_S, FORMAT, Query, confirmed  # noqa: E402 - as above

pytestmark = pytest.mark.timeout(600)
KILLS = 1  # of the server, of a broker, and two of the driver


@pytest.fixture
def shop(server: postgres.Server, request: pytest.FixtureRequest) -> str:
    dsn = world.database(server.address, f"d{abs(hash(request.node.name)) % 10**8}")
    world.execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION changes FOR ALL TABLES")
    world.execute(dsn, "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    return dsn


def test_spark_finds_the_package_without_being_told() -> None:
    """Also where the working folder is another one."""
    script = "import pyspark_barnabas_postgres as found; print(found.__file__); print(found.DefaultSource.name())"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.endswith(f"pyspark_barnabas_postgres/__init__.py\n{FORMAT}\n")


def test_a_batch_has_the_rows_of_one_snapshot(spark: SparkSession, shop: str) -> None:
    world.execute(shop, "INSERT INTO t SELECT i, 'row ' || i FROM generate_series(3, 12000) i")
    options = {"dsn": shop, "publication": "changes", "tables": "public.t", "snapshotChunkRows": "1000"}
    rows = spark.read.format(FORMAT).options(**options).load()
    assert rows.selectExpr("count(*)", "count(DISTINCT key)", "min(op)", "max(op)").first() == (
        12_000,
        12_000,
        "r",
        "r",
    )
    found = rows.where("key = '{\"id\":7}'").select("table", "before", "after").collect()
    assert found == [("public.t", None, '{"id":7,"v":"row 7"}')]
    with psycopg.connect(shop) as connection:
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"

        def are_gone() -> bool:  # a moment after their connection
            return bool(connection.execute(slots).fetchone() == (0,))

        asyncio.run(until(are_gone, "a batch leaves no slot behind"))


def test_a_stream_has_the_rows_and_then_every_change(spark: SparkSession, shop: str, tmp_path: Path) -> None:
    query = Query(spark, shop, tmp_path)
    query.run()
    assert query.told() == [("public.t", "r", "a"), ("public.t", "r", "b")]
    world.execute(shop, "UPDATE t SET v = 'c' WHERE id = 1", "DELETE FROM t WHERE id = 2", "TRUNCATE t")
    world.execute(shop, "CREATE TABLE later (id int PRIMARY KEY, v text)", "INSERT INTO later VALUES (1, 'x')")
    query.batches.clear()
    query.run()
    changes = [told for told in query.told() if told[0] == "public.t"]
    assert changes == [("public.t", "u", "c"), ("public.t", "d", None), ("public.t", "t", None)]
    assert [told for told in query.told() if told[0] == "public.later"] == [("public.later", "r", "x")]
    assert [row.key for row in query.rows if row.op == "t"] == [None]
    query.batches.clear()
    query.run()
    assert not query.rows


def test_the_server_keeps_its_log_until_the_micro_batch_is_committed(
    spark: SparkSession, shop: str, tmp_path: Path
) -> None:
    query = Query(spark, shop, tmp_path)
    query.run()
    world.execute(shop, "INSERT INTO t VALUES (3, 'c')")
    with psycopg.connect(shop) as connection:
        (end,) = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").fetchone() or (0,)
    query.is_broken = True
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        query.run()
    assert ("public.t", "c", "c") in query.told() and confirmed(shop, query.options["slot"]) < end
    again = query.batches[max(query.batches)]
    query.is_broken = False
    query.batches.clear()
    query.run()
    assert query.rows == again, "the same micro-batch with the same changes"
    world.execute(shop, "INSERT INTO t VALUES (4, 'd')")
    query.run()
    query.run()
    asyncio.run(until(lambda: confirmed(shop, query.options["slot"]) >= end, "the position is confirmed"))


def test_limits_of_a_micro_batch_and_of_the_folder(spark: SparkSession, shop: str, tmp_path: Path) -> None:
    """The folder has room for about one segment: capturing waits for the query."""
    world.execute(shop, "INSERT INTO t SELECT i, 'row ' || i FROM generate_series(3, 25000) i")
    query = Query(spark, shop, tmp_path, maxChangesPerTrigger=10_000, maxSpoolBytes=1_000)
    query.run()
    assert sorted(json.loads(row.key)["id"] for row in query.rows) == list(range(1, 25_001))
    assert len(query.batches) >= 3 and max(map(len, query.batches.values())) <= 11_000


def test_errors_name_the_cure(spark: SparkSession, shop: str, tmp_path: Path) -> None:
    def refused(query: Query, *words: str) -> None:
        with pytest.raises(Exception) as caught:
            query.run()
        for word in words:
            assert word in str(caught.value), str(caught.value)

    refused(Query(spark, shop, tmp_path, publicaton="x"), "publicaton", "did you mean publication")
    refused(Query(spark, shop, tmp_path, publication="none"), "publication none does not exist", "CREATE PUBLICATION")
    refused(Query(spark, shop, tmp_path, spoolLocation="here"), "spoolLocation is 'here'", "absolute path")
    query = Query(spark, shop, tmp_path / "one")
    query.run()
    world.execute(shop, "INSERT INTO t VALUES (3, 'c')")
    query.run()
    other = Query(spark, shop, tmp_path / "two", spoolLocation=query.options["spoolLocation"], slot="other")
    world.execute(shop, "INSERT INTO t VALUES (4, 'd')")
    query.run()
    refused(other, "was read by a query with another checkpoint", "a spoolLocation and a slot of its own")
    moved = Query(spark, shop, tmp_path / "one", spoolLocation=str(tmp_path / "empty"), slot="moved")
    refused(moved, "is not the folder that the checkpoint was written with")
    asyncio.run(until(lambda: world.dropped(shop, str(query.options["slot"])), "the slot is free"))
    refused(query, "does not exist any more", "a new spoolLocation and a new checkpointLocation")


def test_the_code_on_the_page_runs_and_its_table_has_the_options(
    server: postgres.Server, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/connect.md").read_text(encoding="utf-8")
    dsn = world.database(server.address, "paged")
    world.execute(dsn, *re.findall(r"^```sql shop\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0].split(";\n"))
    (code,) = re.findall(r"^```python spark changes\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    code = code.replace("host=localhost dbname=shop user=barnabas", dsn).replace("/var/lib/shop", str(tmp_path))
    exec(code, {"__name__": "page"})
    told = capsys.readouterr().out
    assert '{"id":1,"name":"Anna","balance":"5.50"' in told and told.endswith("2\n"), told
    section = page.partition("## Into Spark")[2].partition("\n## ")[0]
    for name in NAMES:
        assert f"`{name}`" in section, f"{name} is not on the page"


@contextmanager
def driver(arguments: dict[str, Any], log: Path) -> Iterator[int]:
    """Its process group has the JVM and the workers, too."""
    environment = {**clean_environment(), "PYTHONPATH": str(ROOT / "tests")}
    words = [sys.executable, "-P", "-m", "integration.spark_changes_driver", json.dumps(arguments)]
    with log.open("ab") as file:
        process = subprocess.Popen(words, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process.pid
        assert process.poll() is None, log.read_text(errors="replace")[-3_000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_each_change_is_in_its_topic_once_after_kills_of_driver_broker_and_server(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Brokers and the server are killed while a driver runs, which goes on, or is started again where Spark gives up."""
    cluster = new_cluster()
    asyncio.run(cluster.ready())
    with postgres.server(**postgres.LOGICAL) as server:
        source = server.address
        world.create_tables(source)
        world.execute(source, "CREATE PUBLICATION driven FOR TABLE accounts, history")
        load = world.Load(source, seed=5)
        load.fill()
        for table in ("accounts", "history"):
            create_topic(cluster, f"public.{table}", partitions=3)
        arguments = {
            "source": {
                "dsn": source,
                "publication": "driven",
                "slot": "driven",
                "spoolLocation": str(tmp_path / "spool"),
            },
            "sink": {"bootstrap.servers": cluster.bootstrap, "delivery": "effectively_once"},
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        commits, log = tmp_path / "checkpoint" / "commits", tmp_path / "driver.log"

        def done() -> int:
            return max((int(item.name) for item in commits.glob("[0-9]*")), default=-1)

        def follow(further: int) -> None:
            wanted = done() + further
            wait(lambda: done() >= wanted, f"micro-batch {wanted}", log)

        with load.running():
            for _ in range(KILLS):
                with driver(arguments, log):
                    follow(2)
                    server.kill()
                    server.start()
                    follow(2)
                with driver(arguments, log):
                    follow(1)
                    node = done() % 3
                    cluster.kill(node)
                    cluster.start(node)
                    follow(2)
        with driver(arguments, log):
            wait(lambda: is_complete(cluster, source), "all changes in the topics", log)
        world.check_topics(cluster, "", source)


def wait(is_so: Callable[[], bool], what: str, log: Path, *, timeout_s: float = DEADLINE_S) -> None:
    try:
        asyncio.run(until(is_so, what, timeout_s=timeout_s))
    except AssertionError as error:
        raise AssertionError(f"{error}: {log.read_text(errors='replace')[-3_000:]}") from error


def is_complete(cluster: Cluster, source: str) -> bool:
    try:
        world.check_topics(cluster, "", source)
    except (AssertionError, KeyError):
        return False
    return True

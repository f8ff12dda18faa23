"""The format "postgres-changes" where tables, transactions, the slot or the folder are not as one wishes.

Each change is there once, or there is an error that names the cure, and nothing is lost meanwhile.
"""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from integration import postgres
from integration.cluster import until
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")

from integration import connect_world as world  # noqa: E402 - needs psycopg
from integration.spark_changes import Query, confirmed  # noqa: E402 - as above

from barnabas.net.programs.connect.postgres.changes.faults import SchemaConflictError, SlotInUseError  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.replication import ReplicationConnection  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.segment import segment_file  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.source import run_source  # noqa: E402 - as above
from barnabas.net.programs.connect.postgres.spool import Spool  # noqa: E402 - as above
from barnabas.spark_connector.postgres.change_options import parse_change_options  # noqa: E402 - as above

pytestmark = pytest.mark.timeout(600)
LARGE = 3_000_000  # characters of a value
LARGE_ROWS = 12  # more than a record batch takes


def shop(server: postgres.Server, name: str) -> str:
    dsn = world.database(server.address, name)
    world.execute(
        dsn, "CREATE TABLE t (id int PRIMARY KEY, n int, v text)", "CREATE PUBLICATION changes FOR ALL TABLES"
    )
    world.execute(dsn, "ALTER TABLE t ALTER v SET STORAGE EXTERNAL", "INSERT INTO t VALUES (1, 0, 'a')")
    return dsn


def test_large_rows_changed_tables_moved_keys_and_transactions_in_parts(
    server: postgres.Server, spark: SparkSession, tmp_path: Path
) -> None:
    dsn = shop(server, "wild")
    world.execute(dsn, f"INSERT INTO t SELECT i, 0, repeat('x', {LARGE}) FROM generate_series(2, {LARGE_ROWS}) i")
    query = Query(spark, dsn, tmp_path, slot="wild", maxTransactionChanges=1_000)
    query.run()
    sizes = {json.loads(row.after)["id"]: len(json.loads(row.after)["v"]) for row in query.rows}
    assert sizes == {1: 1} | dict.fromkeys(range(2, LARGE_ROWS + 1), LARGE)
    query.batches.clear()
    world.execute(
        dsn,
        "UPDATE t SET n = 1 WHERE id = 2",
        "UPDATE t SET id = 100 WHERE id = 1",
        "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
        "INSERT INTO t VALUES (101, 0, 'b', 8)",
        "ALTER TABLE t DROP COLUMN n",
        "ALTER TABLE t ALTER more TYPE text",
        "INSERT INTO t VALUES (102, 'c', 'text')",
        "INSERT INTO t SELECT i, 'many' FROM generate_series(1000, 6000) i",
        "TRUNCATE t",
        "INSERT INTO t VALUES (1, 'last')",
    )
    query.run()
    changes = [
        (row.op, row.key and json.loads(row.key)["id"], row.after and json.loads(row.after)) for row in query.rows
    ]
    unchanged, *others = changes
    assert unchanged == ("u", 2, {"id": 2, "n": 1, "v": "__debezium_unavailable_value"})
    assert sorted(others[:2]) == [("c", 100, {"id": 100, "n": 0, "v": "a"}), ("d", 1, None)]
    assert others[2:4] == [
        ("c", 101, {"id": 101, "n": 0, "v": "b", "more": 8}),
        ("c", 102, {"id": 102, "v": "c", "more": "text"}),
    ]
    assert [key for _, key, _ in others[4:-2]] == list(range(1000, 6001)), (
        "each once, over the parts of the transaction"
    )
    assert others[-2:] == [("t", None, None), ("c", 1, {"id": 1, "v": "last", "more": "7"})]


def test_a_folder_that_is_gone_or_damaged_and_a_slot_that_has_moved(
    server: postgres.Server, spark: SparkSession, tmp_path: Path
) -> None:
    dsn = shop(server, "harmed")
    query = Query(spark, dsn, tmp_path, slot="harmed")
    query.run()
    spool = tmp_path / "spool"

    def refused(*words: str) -> None:
        before = confirmed(dsn, "harmed")
        for _ in range(2):  # what the first start leaves behind must not satisfy the second one
            with pytest.raises(StreamingQueryException) as caught:
                query.run()
            for word in words:
                assert word in str(caught.value), str(caught.value)
        assert confirmed(dsn, "harmed") == before, "the right folder still needs the log from here"

    query.is_broken = True
    world.execute(dsn, "INSERT INTO t VALUES (2, 0, 'b')")
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        query.run()
    planned = query.batches[max(query.batches)]
    query.is_broken = False
    query.batches.clear()
    world.execute(dsn, "INSERT INTO t VALUES (3, 0, 'c')")

    shutil.move(spool, tmp_path / "elsewhere")
    refused("is not the folder that the checkpoint was written with", "give spoolLocation that folder")
    assert not query.batches and not list(spool.glob("0*")), "nothing was captured into the wrong folder"
    shutil.rmtree(spool)
    shutil.move(tmp_path / "elsewhere", spool)

    file = segment_file(spool, 2)
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    refused("is damaged (the checksum of its records is wrong)", "begin again with a new folder")
    assert not query.batches
    file.write_bytes(whole)

    query.run()
    assert query.batches[min(query.batches)] == planned, "the micro-batch that was planned before"
    assert [json.loads(row.key)["id"] for row in query.rows] == [2, 3]

    def has_moved() -> bool:
        try:
            world.execute(dsn, "SELECT pg_replication_slot_advance('harmed', pg_current_wal_lsn())")
        except psycopg.errors.ObjectInUse:
            return False
        return True

    world.execute(dsn, "INSERT INTO t VALUES (4, 0, 'd')")
    asyncio.run(until(has_moved, "the slot is free"))
    refused("another program has used the slot", "a new spoolLocation and a new checkpointLocation")


async def test_a_slot_that_another_query_has_is_an_error_before_anything_is_read(
    server: postgres.Server, tmp_path: Path
) -> None:
    dsn = shop(server, "twice")
    given = {"dsn": dsn, "publication": "changes", "slot": "twice", "spoolLocation": str(tmp_path)}
    options = parse_change_options(given, is_stream=True)
    other = await ReplicationConnection.open(dsn)
    lsn = await other.create_slot("twice")
    stream = await other.start("twice", "changes", lsn, confirmed_lsn=0)
    spool = Spool(options.spool, max_bytes=options.max_spool_bytes)
    await spool.open()
    try:
        with pytest.raises(
            SlotInUseError, match="another program has the slot .*give each connector a slot of its own"
        ):
            await run_source(options.settings, lambda: spool, slot_patience_s=0.5)
        assert spool.newest == 0
    finally:
        await spool.shut()
        await stream.close()


async def test_a_required_column_that_a_table_lacks_is_an_error_before_anything_is_read(
    server: postgres.Server, tmp_path: Path
) -> None:
    dsn = shop(server, "lacking")
    given = {"dsn": dsn, "publication": "changes", "slot": "lacking", "spoolLocation": str(tmp_path)}
    options = parse_change_options({**given, "requiredColumns": '["id", "nane"]'}, is_stream=True)
    spool = Spool(options.spool, max_bytes=options.max_spool_bytes)
    await spool.open()
    try:
        with pytest.raises(SchemaConflictError, match=r"public.t has no column 'nane' that is published.*are id, "):
            async with asyncio.timeout(30):
                await run_source(options.settings, lambda: spool, required=options.required_columns)
        assert spool.newest == 0
    finally:
        await spool.shut()

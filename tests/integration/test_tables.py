"""Tables of topics on real brokers: read while a broker is killed, taken by other libraries without a copy."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import polars
import pyarrow
import pytest
from integration.cluster import Cluster, until

from barnabas import sync
from barnabas.net.client.arrow.tables import SCHEMA
from barnabas.net.client.consumer.read_table import read_table
from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
COUNT = 200_000
PADDING = b"x" * 500  # So that a scan has many chunks.


async def spread(cluster: Cluster, topic: str, values: list[bytes | None], *, partitions: int) -> None:
    async with Producer(cluster.bootstrap) as producer:
        for number in range(partitions):
            await (await producer.send_many(topic, values[number::partitions], partition=number))


async def test_all_records_exactly_once_while_a_leader_is_killed(new_cluster: Maker) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=6, replication_factor=3)
    values: list[bytes | None] = [b"%d %s" % (number, PADDING) for number in range(COUNT)]
    await spread(cluster, "t", values, partitions=6)

    def read() -> list[pyarrow.RecordBatch]:
        reader = read_table("t", bootstrap=cluster.bootstrap, stream=True)
        found = [reader.read_next_batch()]
        cluster.kill(2)  # Chunks are in flight and ahead; the broker leads a third of the partitions.
        found += reader
        return found

    table = pyarrow.Table.from_batches(await asyncio.to_thread(read))
    numbers = Counter(int(value.as_py().split(b" ")[0]) for value in table["value"])
    assert len(numbers) == COUNT
    assert set(numbers.values()) == {1}
    places = table.select(["partition", "offset"]).group_by(["partition", "offset"]).aggregate([])
    assert places.num_rows == COUNT


async def test_polars_pandas_and_duckdb_take_a_table(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("taken", partitions=3, replication_factor=3)
    await spread(shared_cluster, "taken", [b"%d" % number for number in range(1_000)], partitions=3)
    bootstrap = shared_cluster.bootstrap

    def take() -> None:
        table = read_table("taken", bootstrap=bootstrap)
        assert table.schema.equals(SCHEMA)
        assert table["partition"].to_pylist() == sorted(table["partition"].to_pylist())
        frame = polars.DataFrame(table)
        assert frame.shape == (1_000, 7)
        assert frame["value"].cast(polars.String).cast(polars.Int64).sum() == 499_500
        assert len(table.to_pandas()) == 1_000
        reader = read_table("taken", bootstrap=bootstrap, stream=True, columns=["value"])
        (row,) = duckdb.from_arrow(reader).aggregate("count(*), sum(decode(value)::int)").fetchall()
        assert row == (1_000, 499_500)
        with sync.Consumer("taken", bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
            rows = 0
            while rows < 1_000:
                rows += polars.DataFrame(consumer.poll_arrow()).height
        assert rows == 1_000

    await asyncio.to_thread(take)


async def rows_of(cluster: Cluster, topic: str) -> list[dict[str, object]]:
    columns = ["partition", "timestamp", "key", "value", "headers"]
    table = await asyncio.to_thread(read_table, topic, bootstrap=cluster.bootstrap, columns=columns)
    found: list[dict[str, object]] = table.to_pylist()
    return found


def command(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-P", "-m", "barnabas", *arguments, "--bootstrap", cluster.bootstrap]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("kind", ["parquet", "csv", "ndjson"])
async def test_an_export_that_is_imported_is_the_same(shared_cluster: Cluster, tmp_path: Path, kind: str) -> None:
    await shared_cluster.ready()
    source, target = f"source-{kind}", f"target-{kind}"
    async with shared_cluster.admin() as admin:
        for topic in (source, target):
            await admin.create_topic(topic, partitions=2, replication_factor=3)
    now_ms = time.time_ns() // 1_000_000
    values = [b"plain", None, b"", b"\xff\x00", 'quote " comma , line\nnext \\ ü'.encode(), b"null", b"1"]
    async with Producer(shared_cluster.bootstrap) as producer:
        for number, value in enumerate(values * 50):
            headers = [("h", b"\xfe"), ("h", None), ("ü", b"")] if number % 3 == 0 else None
            key = None if number % 4 == 0 else b"key-%d" % (number % 9)
            await producer.send(
                source, value, key=key, headers=headers, timestamp_ms=now_ms - 1_000 * number, partition=number % 2
            )
        await producer.flush()
    path = str(tmp_path / f"records.{kind}")
    exported = await asyncio.to_thread(command, shared_cluster, "topic", "export", source, path)
    assert (exported.returncode, exported.stderr) == (0, f"exported 350 records to {path}\n")
    imported = await asyncio.to_thread(command, shared_cluster, "topic", "import", path, target, "--keep-partitions")
    assert (imported.returncode, imported.stderr) == (0, "acknowledged 350 records\n")
    assert await rows_of(shared_cluster, target) == await rows_of(shared_cluster, source)


async def test_sql_over_topics(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("orders", partitions=3, replication_factor=3)
    orders: list[bytes | None] = [b'{"user": "u%d", "amount": %d}' % (number % 3, number) for number in range(300)]
    await spread(shared_cluster, "orders", orders, partitions=3)

    async def sql(query: str, *options: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command, shared_cluster, "sql", query, *options)

    found = await sql('select "user", count(*) as n, sum(amount) as total from orders group by all order by 1', "--csv")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == ["user,n,total", "u0,100,14850", "u1,100,14950", "u2,100,15050"]
    query = 'select partition, "offset", amount from orders where partition = 1 and "offset" >= 98 order by 2'
    found = await sql(query, "-f", "json")
    assert found.stdout.splitlines() == [
        '{"partition": 1, "offset": 98, "amount": 295}',
        '{"partition": 1, "offset": 99, "amount": 298}',
    ]
    assert "USER" in (await sql('select "user" from orders limit 1')).stdout
    found = await sql("select * from ordrs")
    assert (found.returncode, found.stderr) == (1, "barnabas: there is no topic 'ordrs'; near names: orders\n")
    found = await sql("select nothing from orders")
    assert found.returncode == 1
    assert "barnabas: the query failed: Binder Error:" in found.stderr


async def test_sql_follows_running_windows(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("clicks", partitions=2, replication_factor=3)
    query = "select page, count(*) as n from clicks group by page order by page"
    words = ["sql", "--follow", "--every", "100ms", "-f", "json", query, "--bootstrap", shared_cluster.bootstrap]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "barnabas", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(90):
            assert b"waiting for records of clicks" in await process.stderr.readline()

            async def seen(wanted: Mapping[str, int]) -> None:
                """Each printed row is one that has changed; the last of each page counts."""
                found: dict[str, int] = {}
                while found != wanted:
                    row = json.loads(await process.stdout.readline())  # type: ignore[union-attr]
                    assert found.get(row["page"], 0) < row["n"], "a row that has not changed"
                    found[row["page"]] = row["n"]

            async with Producer(shared_cluster.bootstrap) as producer, shared_cluster.admin() as admin:
                for number in range(6):
                    await producer.send("clicks", b'{"page": "/%d"}' % (number % 2), partition=number % 2)
                await producer.flush()
                await seen({"/0": 3, "/1": 3})
                await admin.add_partitions("clicks", 3)
                old = int(time.time() * 1_000) - 2 * 3_600_000  # two hours: not within --keep
                await producer.send("clicks", b'{"page": "/0"}', partition=0, timestamp_ms=old)

                async def sent() -> bool:
                    async with Producer(shared_cluster.bootstrap) as other:
                        await (await other.send("clicks", b'{"page": "/2"}', partition=2))
                    return True

                await until(sent, "the new partition")
                await seen({"/2": 1})
    finally:
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")


async def test_a_stream_that_is_dropped_closes_its_connections(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("dropped", partitions=3, replication_factor=3)
    await spread(shared_cluster, "dropped", [b"x"] * 3, partitions=3)

    def drop() -> None:
        reader = read_table("dropped", bootstrap=shared_cluster.bootstrap, stream=True)
        reader.read_next_batch()
        del reader

    await asyncio.to_thread(drop)  # Tasks and connections that stay open fail the test as warnings.

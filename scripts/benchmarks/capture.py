"""`scripts/benchmark capture`: how fast `barnabas connect` reads the rows of a table and follows its changes.

A PostgreSQL server (Debian's programs), three brokers and the connector are processes of this machine. The rows have 100 bytes,
the topic has factor 3. With --debezium, Debezium on Kafka Connect does the same afterwards, while nothing else runs. The stream
is written before it is read: its rate is that of the connector, not of the database's writers.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusters import Cluster

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # the server of tests

from debezium import TOPIC as DEBEZIUM_TOPIC  # noqa: E402 - needs the path
from debezium import Debezium, MissingError  # noqa: E402 - needs the path
from integration import postgres  # noqa: E402 - as above

from barnabas import Admin, Consumer, TopicPartition  # noqa: E402 - as above
from barnabas.log.vocabulary.errors import UnknownTopicOrPartitionError  # noqa: E402 - as above

Process = subprocess.Popen[bytes]
TOPIC = "rate.public.t"
FILE = """connector = "postgres-source"
name = "rate"
dsn = "{dsn}"
publication = "rate"
slot = "rate"
prefix = "rate"
topics = {{ partitions = 3, replication_factor = 3 }}
"""
WAIT_S = 600.0
POLL_S = 0.1


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark capture", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table, for the snapshot")
    parser.add_argument("--changes", type=int, default=300_000, help="of each stream")
    parser.add_argument("--seconds", type=int, default=10, help="of single transactions, for their delay")
    parser.add_argument("--debezium", action="store_true", help="then the same with Debezium, which mvn fetches")
    options = parser.parse_args(arguments)
    if postgres.find()[0] is None:
        sys.exit(postgres.find()[1])
    with (
        postgres.server(**postgres.LOGICAL, synchronous_commit="off") as server,
        Cluster(3) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            asyncio.run(_measure(options, server.address, cluster.bootstrap, Path(folder)))
        except MissingError as error:
            sys.exit(f"--debezium: {error}")
    return 0


async def _measure(options: argparse.Namespace, dsn: str, bootstrap: str, folder: Path) -> None:
    import psycopg

    debezium = (
        Debezium(folder, bootstrap) if options.debezium else None
    )  # before anything is measured: it fetches programs
    file = folder / "rate.toml"
    file.write_text(FILE.format(dsn=dsn))
    with psycopg.connect(dsn, autocommit=True) as database:
        _fill(database, options.rows)
        connector = _start(file, bootstrap)
        try:
            await _rates("barnabas connect", options, database, connector, bootstrap, TOPIC)
            await _delays(options.seconds, database, bootstrap)
        finally:
            connector.kill()
            connector.wait()
        if debezium is not None:
            _fill(database, options.rows)  # the same table as before, not one that was updated
            worker = await debezium.start(dsn, "rate")
            try:
                await _rates("Debezium", options, database, worker, bootstrap, DEBEZIUM_TOPIC)
            finally:
                worker.kill()
                worker.wait()


def _fill(database: Any, rows: int) -> None:
    """A new table, and no slot of a connector before."""
    database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
    database.execute("DROP TABLE IF EXISTS t")
    database.execute("DROP PUBLICATION IF EXISTS rate")
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, number int, text text, at timestamptz DEFAULT now())")
    database.execute("INSERT INTO t SELECT i, 0, md5(i::text) || md5(i::text) FROM generate_series(1, %s) i", (rows,))
    database.execute("CREATE PUBLICATION rate FOR TABLE t")
    database.execute("CHECKPOINT")


async def _rates(
    name: str, options: argparse.Namespace, database: Any, connector: Process, bootstrap: str, topic: str
) -> None:
    """A snapshot from the first record that is in the topic, then two streams that wait when the connector goes on."""
    before = await _until_more(connector, bootstrap, topic, 0)
    began = time.perf_counter()
    await _until_more(connector, bootstrap, topic, options.rows - 1)
    _print(f"{name}: snapshot", options.rows - before, time.perf_counter() - began)
    await _until_streams(database)
    statement = "UPDATE t SET number = number + 1 WHERE id BETWEEN {} AND {}"
    for label, size in (("stream, transactions of 1 change", 1), ("stream, transactions of 100 changes", 100)):
        connector.send_signal(signal.SIGSTOP)
        with database.pipeline():
            for first in range(1, options.changes, size):
                database.execute(statement.format(first, first + size - 1))
        before = await _records(bootstrap, topic)
        connector.send_signal(signal.SIGCONT)
        began = time.perf_counter()
        await _until_more(connector, bootstrap, topic, before + options.changes - 1)
        _print(f"{name}: {label}", options.changes, time.perf_counter() - began)


async def _until_more(connector: Process, bootstrap: str, topic: str, count: int) -> int:
    ends_s = time.perf_counter() + WAIT_S
    while (found := await _records(bootstrap, topic)) <= count:
        assert connector.poll() is None, "the connector has ended"
        assert time.perf_counter() < ends_s, f"{found} of {count} records"
        await asyncio.sleep(POLL_S)
    return found


async def _until_streams(database: Any) -> None:
    """A slot that stays is in use: the snapshot is over."""
    ends_s = time.perf_counter() + WAIT_S
    query = "SELECT count(*) FROM pg_replication_slots WHERE active AND NOT temporary"
    while database.execute(query).fetchone()[0] == 0:
        assert time.perf_counter() < ends_s
        await asyncio.sleep(POLL_S)


def _start(file: Path, bootstrap: str) -> Process:
    command = [sys.executable, "-m", "barnabas", "connect", "run", str(file), "--bootstrap", bootstrap]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ)


async def _records(bootstrap: str, topic: str) -> int:
    """Offsets of the topic, 0 before there is one; the markers of transactions are few."""
    async with Admin(bootstrap) as admin:
        try:
            return sum(found.offset for found in (await admin.list_offsets(topic)).values())
        except UnknownTopicOrPartitionError:
            return 0


async def _delays(seconds: int, database: Any, bootstrap: str) -> None:
    """From the commit of one small transaction to a reader of committed records, one after the other."""
    delays_ms: list[float] = []
    partitions = [TopicPartition(TOPIC, number) for number in range(3)]
    database.execute("SET synchronous_commit = on")  # or else the server's log waits up to 200 ms for its writer
    async with Consumer(bootstrap=bootstrap, isolation_level="read_committed", auto_offset_reset="latest") as consumer:
        consumer.assign(partitions)
        for partition in partitions:
            await consumer.position(partition)
        ends_s = time.perf_counter() + seconds
        number = 10_000_000
        while time.perf_counter() < ends_s:
            number += 1
            database.execute(f"INSERT INTO t VALUES ({number}, 0, 'x')")
            began = time.perf_counter()
            while not _has(await consumer.poll(timeout_ms=1_000), number):
                assert time.perf_counter() - began < WAIT_S
            delays_ms.append((time.perf_counter() - began) * 1_000)
    delays_ms.sort()
    p50, p99 = (delays_ms[int(len(delays_ms) * share)] for share in (0.5, 0.99))
    print(f"from commit to reader, linger_ms 50: p50 {p50:.0f} ms, p99 {p99:.0f} ms ({len(delays_ms)} transactions)")


def _has(found: Any, number: int) -> bool:
    return any(json.loads(record.value)["after"]["id"] == number for records in found.values() for record in records)


def _print(label: str, count: int, seconds: float) -> None:
    print(f"{label}: {count} in {seconds:.1f} s, {count / seconds:,.0f} /s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

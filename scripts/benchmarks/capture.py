"""`scripts/benchmark capture`: how fast `barnabas connect` reads the rows of a table and follows its changes.

A PostgreSQL server (Debian's programs), three brokers and the connector are processes of this machine. The rows have 100 bytes,
the topic has factor 3. The stream is written before it is read: its rate is that of the connector, not of the database's writers.
"""

import argparse
import asyncio
import json
import os
import re
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

from integration import postgres  # noqa: E402 - needs the path

from barnabas import Admin, Consumer, TopicPartition  # noqa: E402 - as above

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


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark capture", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table, for the snapshot")
    parser.add_argument("--changes", type=int, default=300_000, help="of each stream")
    parser.add_argument("--seconds", type=int, default=10, help="of single transactions, for their delay")
    options = parser.parse_args(arguments)
    if postgres.find()[0] is None:
        sys.exit(postgres.find()[1])
    with (
        postgres.server(**postgres.LOGICAL, synchronous_commit="off") as server,
        Cluster(3) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        asyncio.run(_measure(options, server.address, cluster.bootstrap, Path(folder)))
    return 0


async def _measure(options: argparse.Namespace, dsn: str, bootstrap: str, folder: Path) -> None:
    import psycopg

    file = folder / "rate.toml"
    file.write_text(FILE.format(dsn=dsn))
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY, number int, text text, at timestamptz DEFAULT now())")
        database.execute(
            "INSERT INTO t SELECT i, 0, md5(i::text) || md5(i::text) FROM generate_series(1, %s) i", (options.rows,)
        )
        database.execute("CREATE PUBLICATION rate FOR TABLE t")
        connector = _start(file, bootstrap)
        try:
            took = await _said(connector, r"snapshot ends connector=rate rows=(\d+) seconds=([\d.]+)")
            _print("snapshot", int(took[1]), float(took[2]))
            await _said(connector, "stream begins")
            statement = "UPDATE t SET number = number + 1 WHERE id BETWEEN {} AND {}"
            for label, size in (("stream, transactions of 1 change", 1), ("stream, transactions of 100 changes", 100)):
                connector.send_signal(signal.SIGSTOP)
                first = 1
                with database.pipeline():
                    for first in range(1, options.changes, size):
                        database.execute(statement.format(first, first + size - 1))
                before = await _records(bootstrap)
                connector.send_signal(signal.SIGCONT)
                began = time.perf_counter()
                while await _records(bootstrap) < before + options.changes:
                    assert time.perf_counter() - began < WAIT_S
                    await asyncio.sleep(0.1)
                _print(label, options.changes, time.perf_counter() - began)
            await _delays(options.seconds, database, bootstrap)
        finally:
            connector.kill()


def _start(file: Path, bootstrap: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "barnabas", "connect", "run", str(file), "--bootstrap", bootstrap]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)


async def _said(connector: "subprocess.Popen[str]", pattern: str) -> "re.Match[str]":
    assert connector.stderr is not None
    while line := await asyncio.to_thread(connector.stderr.readline):
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"the connector has ended with {connector.wait()}")


async def _records(bootstrap: str) -> int:
    """Offsets of the topic; the markers of transactions are few."""
    async with Admin(bootstrap) as admin:
        return sum(found.offset for found in (await admin.list_offsets(TOPIC)).values())


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

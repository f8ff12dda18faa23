"""PostgreSQL under `pgbench`, and kill -9 of drivers, connectors, brokers and the server: the copies equal the tables, row for
row, and each change is there once, in the order of the commits of its key.

`barnabas connect` captures pgbench's own tables. One pipeline keeps a table equal to pgbench_accounts, another writes each change
of pgbench_tellers into a topic, and a connector keeps copies of all tables. pgbench_history has no key, which is required, so it
gets a column; pgbench names the columns that it inserts, and does not see it.
"""

import asyncio
import itertools
import json
import os
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from integration import postgres
from integration.cluster import Cluster, until
from integration.whole_topic import messages

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pyspark")

from integration import connect_oracle as oracle  # noqa: E402 - needs psycopg
from integration import connect_world as world  # noqa: E402 - as above
from integration.spark_world import create_topic  # noqa: E402 - needs pyspark
from integration.test_connect_postgres import equal  # noqa: E402 - needs psycopg
from integration.test_spark_pipeline_kills import Command  # noqa: E402 - needs pyspark

KILLS = int(os.environ.get("BARNABAS_PGBENCH_KILLS", "0"))  # 20 took 25 minutes beside other work on two cores
pytestmark = [
    pytest.mark.timeout(900 + KILLS * 90),
    pytest.mark.skipif(not KILLS, reason="takes minutes: scripts/test.sh long sets BARNABAS_PGBENCH_KILLS"),
]
DEADLINE_S = 400
IS_LONG = KILLS > 3  # three cover a driver, a broker and the server, in as little time as they need
ACCOUNTS = 3_000 if IS_LONG else 500  # pgbench fills in 100,000, the snapshot's work and not that of the kills
CLIENTS = 3
TRANSACTIONS_PER_S = 60 if IS_LONG else 30  # so that the pipelines follow on busy machines
PARTITIONS = 3
KEYS = {
    "pgbench_accounts": ("aid",),
    "pgbench_branches": ("bid",),
    "pgbench_tellers": ("tid",),
    "pgbench_history": ("number",),
}
# As the script that is built into pgbench, for the accounts that are left.
SCRIPT = f"""
\\set aid random(1, {ACCOUNTS})
\\set bid 1
\\set tid random(1, 10)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
"""
COLUMNS = {
    "pgbench_accounts": "aid int PRIMARY KEY, bid int, abalance int, filler char(84)",
    "pgbench_branches": "bid int PRIMARY KEY, bbalance int, filler char(88)",
    "pgbench_tellers": "tid int PRIMARY KEY, bid int, tbalance int, filler char(84)",
    "pgbench_history": "tid int, bid int, aid int, delta int, mtime timestamp, filler char(22), number bigint PRIMARY KEY",
}
ORDER = "change_op, change_generation, change_lsn, change_order"
COPY = """
name = "accounts"
[source]
topics = ["bench.public.pgbench_accounts"]
max_records = 2000
value = {{ format = "changes", fields = {{ aid = "int", bid = "int", abalance = "int", filler = "string" }} }}
[[steps]]
sql = "SELECT aid, bid, abalance, filler, {order} FROM input"
[sink]
table = "accounts"
database = "postgresql:{target}"
write = "changes"
key = ["aid"]
[restarts]
attempts = 30
max_ms = 2000
"""
TOLD = """
name = "tellers"
[source]
topics = ["bench.public.pgbench_tellers"]
max_records = 5000
value = {{ format = "changes", fields = {{ tid = "int", tbalance = "int" }} }}
[[steps]]
sql = "SELECT tid, tbalance, {order} FROM input"
[sink]
topic = "tellers"
key = "tid"
[restarts]
attempts = 30
max_ms = 2000
"""


def pgbench(dsn: str, *words: str) -> "subprocess.Popen[bytes]":
    programs, reason = postgres.find()
    assert programs is not None, reason
    return subprocess.Popen([programs / "pgbench", *words, dsn], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class Bench:
    """`pgbench`, which ends when the server dies, and is started again."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._script = folder / "transaction.sql"
        self._script.write_text(SCRIPT)
        self._is_over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def fill(self) -> None:
        made = pgbench(self._dsn, "-i", "-q", "-s", "1")
        out, _ = made.communicate(timeout=DEADLINE_S)
        assert made.returncode == 0, out
        world.execute(
            self._dsn,
            f"DELETE FROM pgbench_accounts WHERE aid > {ACCOUNTS}",
            "ALTER TABLE pgbench_history ADD COLUMN number bigserial PRIMARY KEY",
            "VACUUM FULL pgbench_accounts",
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join()

    def stop(self) -> None:
        self._is_over.set()
        if self._process is not None:
            self._process.kill()

    def _run(self) -> None:
        words = ("-n", "-c", str(CLIENTS), "-R", str(TRANSACTIONS_PER_S), "-T", "100000", "-f", str(self._script))
        while not self._is_over.is_set():
            self._process = pgbench(self._dsn, *words)
            self.starts += 1
            if self._is_over.is_set():
                self._process.kill()
            self._process.communicate()
            self._is_over.wait(0.1)


class Victims:
    """What is killed, one after the other. Each has worked since it was killed before."""

    def __init__(self, pipelines: list[Command], connectors: list[world.Connector]) -> None:
        self._pipelines = pipelines
        self._connectors = connectors
        self.kills: dict[str, int] = defaultdict(int)

    def driver(self, number: int) -> None:
        pipeline = self._pipelines[number % 2]
        pipeline.until_batches(pipeline.state.read_progress().batches + 2)
        pipeline.kill_driver()
        self.kills["driver"] += 1

    def connector(self, number: int) -> None:
        victim = self._connectors[number % 2]
        victim.check()
        victim.kill()
        victim.start()
        self.kills["connector"] += 1

    def broker(self, cluster: Cluster, number: int) -> None:
        cluster.kill(number % 3)
        cluster.start(number % 3)
        asyncio.run(cluster.ready())
        self.kills["broker"] += 1

    def server(self, server: postgres.Server) -> None:
        server.kill()
        server.start()
        self.kills["server"] += 1


def test_copies_are_equal_and_each_change_is_there_once_after_kills_under_pgbench(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster()
    asyncio.run(cluster.ready())
    with ExitStack() as stack:
        server, target_server = (stack.enter_context(postgres.server(**postgres.LOGICAL)) for _ in range(2))
        source, target = server.address, target_server.address
        bench = Bench(source, tmp_path)
        bench.fill()
        oracle.watch(source, KEYS)
        world.execute(source, f"CREATE PUBLICATION bench FOR TABLE {', '.join(KEYS)}")
        world.execute(target, *(f"CREATE TABLE {name} ({columns})" for name, columns in COLUMNS.items()))
        create_topic(cluster, "tellers", partitions=PARTITIONS)
        topics = f'{{ partitions = {PARTITIONS}, replication_factor = 3, configs = {{ "min.insync.replicas" = "2" }} }}'
        connectors = [
            world.Connector(world.source_file(tmp_path, source, "bench", topics=topics), cluster.bootstrap),
            world.Connector(world.sink_file(tmp_path, target, "bench"), cluster.bootstrap),
        ]
        for connector in connectors:
            stack.callback(connector.kill)
        asyncio.run(has_topics(cluster))
        pipelines = []
        for name, text in (("copy", COPY), ("told", TOLD)):
            folder = tmp_path / name
            folder.mkdir()
            pipelines.append(Command(cluster, folder, text.format(target=target, order=ORDER)))
        with bench.running():
            running = [pipeline.start("run") for pipeline in pipelines]
            for pipeline, process in zip(pipelines, running, strict=True):
                stack.callback(pipeline.kill, process)
            victims = Victims(pipelines, connectors)
            for number in range(KILLS):
                turn = number // 3
                match number % 3:
                    case 0:
                        victims.driver(turn)
                    case 1:
                        victims.broker(cluster, turn) if turn % 2 == 0 else victims.connector(turn // 2)
                    case 2:
                        victims.server(server)
            for pipeline in pipelines:  # all are at work behind the last kill, too
                pipeline.until_batches(pipeline.state.read_progress().batches + 2)
        assert sum(victims.kills.values()) == KILLS
        assert bench.starts > victims.kills["server"], "pgbench was started again after each kill of the server"
        asyncio.run(equal(source, target, list(KEYS), connectors))
        assert oracle.check(cluster, "bench", source, PARTITIONS, KEYS) > ACCOUNTS
        accounts = "SELECT aid, bid, abalance, rtrim(filler) FROM {} ORDER BY aid"
        expected = rows(source, accounts.format("pgbench_accounts"))
        pipelines[0].until(
            lambda: rows(target, accounts.format("accounts")) == expected, "the accounts of the pipeline"
        )
        changes = told(cluster, "bench.public.pgbench_tellers", captured)
        pipelines[1].until(lambda: told(cluster, "tellers", piped) == changes, "each change of a teller in the topic")
        for pipeline, process in zip(pipelines, running, strict=True):
            pipeline.run_to_end("stop")
            pipeline.ended(process)
        assert told(cluster, "tellers", piped) == changes and max(map(len, changes.values())) > 10


async def has_topics(cluster: Cluster) -> None:
    """The connector creates one for each table."""
    wanted = {f"bench.public.{name}" for name in KEYS}
    async with cluster.admin() as admin:

        async def are_there() -> bool:
            return wanted <= set(await admin.list_topics())

        await until(are_there, "the topics of all tables", timeout_s=DEADLINE_S)


def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return list(connection.execute(query).fetchall())


# its place in the order of the commits, which is three numbers; the balance after it
Change = tuple[int, int, int, int]


def captured(value: Any) -> tuple[int, Change]:
    source, after = value["source"], value["after"]
    order = value["transaction"]["total_order"]
    return after["tid"], (source["generation"], source["commit_lsn"], order, after["tbalance"])


def piped(value: Any) -> tuple[int, Change]:
    order = value["change_generation"], value["change_lsn"], value["change_order"]
    return value["tid"], (*order, value["tbalance"])


def told(cluster: Cluster, topic: str, change_of: Callable[[Any], tuple[int, Change]]) -> dict[int, list[Change]]:
    """The changes of each teller, in the order of the topic."""
    found: dict[int, list[Change]] = defaultdict(list)
    for message in messages(cluster.bootstrap, topic, partitions=PARTITIONS):
        teller, change = change_of(json.loads(message.value() or b""))
        found[teller].append(change)
    for teller, changes in found.items():
        assert all(left < right for left, right in itertools.pairwise(changes)), f"teller {teller}: {changes}"
    return found

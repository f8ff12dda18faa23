"""Connectors of PostgreSQL as processes, a load on the source, and the two judgements: equal tables, every change once."""

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from integration.cluster import Cluster, clean_environment, until
from integration.whole_topic import messages

from barnabas.net.programs.connect.postgres.server import OPTIONS

ACCOUNTS = 40
WRITERS = 3
TABLES = {
    "accounts": "id int PRIMARY KEY, version int NOT NULL, note text, amount numeric",
    "history": "id bigserial PRIMARY KEY, account int, delta int, at timestamptz DEFAULT clock_timestamp()",
    "tags": "name text, number int, payload jsonb, PRIMARY KEY (name, number)",
}


class Connector:
    """`barnabas connect run FILE`, which can be killed and started again."""

    def __init__(self, file: Path, bootstrap: str, *options: str) -> None:
        self.file = file
        self.log = file.with_suffix(".log")
        self._bootstrap = bootstrap
        self._options = options
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "barnabas", "connect", "run", str(self.file), "--bootstrap", self._bootstrap,
                 *self._options],
                stdout=log, stderr=log, env=clean_environment(),
            )  # fmt: skip

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def check(self) -> None:
        assert self.process.poll() is None, self.log.read_text()


def command(bootstrap: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "barnabas", *arguments, "--bootstrap", bootstrap],
        capture_output=True, text=True, timeout=60, env=clean_environment(),
    )  # fmt: skip


def source_file(folder: Path, dsn: str, name: str, **more: str) -> Path:
    """`more`: TOML of further keys and tables."""
    said = {"connector": '"postgres-source"', "name": f'"{name}"', "dsn": f'"{dsn}"', "publication": f'"{name}"'}
    said |= {"slot": f'"{name}"', "prefix": f'"{name}"', "tables": '["public.*"]', **more}
    return _write(folder / f"{name}-source.toml", said)


def sink_file(folder: Path, dsn: str, name: str, **more: str) -> Path:
    said = {"connector": '"postgres-sink"', "name": f'"{name}-copy"', "dsn": f'"{dsn}"'}
    return _write(folder / f"{name}-sink.toml", {**said, "pattern": f"'{name}\\.public\\..*'", **more})


def _write(path: Path, said: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key} = {value}\n" for key, value in said.items()), encoding="utf-8")
    return path


def create_tables(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")


def database(dsn: str, name: str) -> str:
    """A new database of the server; returns its address."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return dsn.replace("dbname=postgres", f"dbname={name}")


def rows(dsn: str, table: str) -> list[Any]:
    key = {"tags": "name, number"}.get(table, "id")
    with psycopg.connect(dsn) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY {key}").fetchall()


def texts(dsn: str, table: str) -> list[Any]:
    """The rows as the server writes them, in one style, also what Python has no value for."""
    with psycopg.connect(dsn, options=OPTIONS) as connection:
        return connection.execute(f"SELECT x::text FROM {table} x ORDER BY 1").fetchall()


def ids(dsn: str, table: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(f"SELECT id FROM {table}").fetchall()


class Load:
    """Transactions like those of pgbench: accounts count their versions, so that a topic shows what is missing or doubled."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._rng = Random(seed)
        self._stop = threading.Event()
        self.transactions = 0  # that were committed

    def fill(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            connection.execute("INSERT INTO accounts SELECT i, 0, 'new', 0 FROM generate_series(1, %s) i", (ACCOUNTS,))
            connection.execute("INSERT INTO history (account, delta) SELECT 0, i FROM generate_series(1, 3000) i")
            connection.execute("INSERT INTO tags SELECT 'tag ' || i % 7, i, '{}' FROM generate_series(1, 300) i")

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(Random(self._rng.random()),)) for _ in range(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop()
            for thread in threads:
                thread.join()

    def stop(self) -> None:
        self._stop.set()

    def _run(self, rng: Random) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn) as connection:
                    while not self._stop.is_set():
                        with connection.transaction():
                            self._transaction(connection, rng)
                        self.transactions += 1
            except (psycopg.OperationalError, psycopg.IntegrityError):
                self._stop.wait(0.05)  # the server was killed, or two writers had the same rows

    def _transaction(self, connection: "psycopg.Connection[Any]", rng: Random) -> None:
        account, delta, roll = rng.randint(1, ACCOUNTS), rng.randint(-99, 99), rng.random()
        connection.execute(
            "UPDATE accounts SET version = version + 1, amount = amount + %s, note = %s WHERE id = %s",
            (delta, f"note {delta}", account),
        )
        connection.execute("INSERT INTO history (account, delta) VALUES (%s, %s)", (account, delta))
        tag, number = f"tag {account % 7}", rng.randint(1, 400)
        if roll < 0.3:
            upsert = "INSERT INTO tags VALUES (%s, %s, %s) ON CONFLICT (name, number) DO UPDATE SET payload = EXCLUDED.payload"
            connection.execute(upsert, (tag, number, json.dumps({"delta": delta})))
        elif roll < 0.4:
            connection.execute("DELETE FROM tags WHERE name = %s AND number < %s", (tag, number // 8))
        elif roll < 0.45:
            connection.execute("UPDATE tags SET number = number + 10000 WHERE name = %s AND number = %s", (tag, number))
        elif roll < 0.452:
            connection.execute("TRUNCATE tags")
        self._stop.wait(0.002)


def check_topics(cluster: Cluster, prefix: str, source: str) -> None:
    """Each change of an account, and each row of the history, is in its topic once, in the order of the commits."""
    versions: dict[int, list[int]] = defaultdict(list)
    for message in messages(cluster.bootstrap, f"{prefix}public.accounts", partitions=3):
        after = json.loads(message.value() or b"")["after"]
        versions[after["id"]].append(after["version"])
    last = {account: version for account, version, *_ in rows(source, "accounts")}
    for account, seen in versions.items():
        assert seen == list(range(seen[0], last[account] + 1)), f"account {account}"
    assert versions.keys() == last.keys()
    inserted = [
        json.loads(message.value() or b"")["after"]["id"]
        for message in messages(cluster.bootstrap, f"{prefix}public.history", partitions=3)
    ]
    assert sorted(inserted) == [row[0] for row in rows(source, "history")]


def execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def dropped(dsn: str, slot: str) -> bool:
    """Drop a slot that no connection uses any more."""
    try:
        execute(dsn, f"SELECT pg_drop_replication_slot('{slot}')")
    except psycopg.errors.ObjectInUse:
        return False
    return True


async def ended(connector: Connector) -> str:
    """The last line of a connector that stops by itself."""
    await until(lambda: connector.process.poll() is not None, f"{connector.file.name} ends")
    return connector.log.read_text().splitlines()[-1]

"""Debezium's PostgreSQL connector on Kafka Connect, both unchanged: after kills, its topics replay to the tables."""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from integration import connect_world, copied_lines, java_client, postgres
from integration.cluster import Cluster, until
from integration.harm import Harm
from integration.whole_topic import messages

from barnabas.net.client.consumer.consumer import Consumer

CONNECT = "4.3.1"
DEBEZIUM = "3.6.1.Final"
NAME = "shop"
HISTORY = f"{NAME}.public.history"
TOPICS = tuple(f"{NAME}.public.{table}" for table in connect_world.TABLES)
FILLED = 3000  # rows of the history before the load
JSON = "org.apache.kafka.connect.json.JsonConverter"
START_LIMIT_S = 120.0
END_LIMIT_S = 120.0
LIMIT_S = 420.0
WORKER = {
    "key.converter": JSON,
    "value.converter": JSON,
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}

if java_client.find():
    pytest.skip(java_client.find(), allow_module_level=True)
if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)


def connector(dsn: str) -> dict[str, object]:
    said = dict(item.split("=") for item in dsn.split())
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": 1,
        "database.hostname": said["host"],
        "database.port": said["port"],
        "database.user": said["user"],
        "database.password": "none",
        "database.dbname": said["dbname"],
        "topic.prefix": NAME,
        "plugin.name": "pgoutput",
        "slot.name": NAME,
        "publication.name": NAME,
        "decimal.handling.mode": "string",
        "skipped.operations": "none",  # by default, truncations are left out
        "exactly.once.support": "required",
        "topic.creation.default.partitions": 3,
        "topic.creation.default.replication.factor": 3,
    }


class _Rows:
    """The rows of the history whose insertion can be read from the topic."""

    def __init__(self, bootstrap: str) -> None:
        self.ids: set[int] = set()
        self._bootstrap = bootstrap

    async def run(self) -> None:
        async with Consumer(
            HISTORY, bootstrap=self._bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            async for record in consumer:
                assert record.value is not None
                self.ids.add(json.loads(record.value)["after"]["id"])


@pytest.mark.timeout(LIMIT_S)
async def test_topics_of_debezium_replay_to_the_tables_though_workers_and_brokers_are_killed(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    libraries = java_client.fetch(tmp_path / "libraries", CONNECT, "connect.xml")
    plugin = java_client.fetch(tmp_path / "plugins", DEBEZIUM, "debezium.xml", of="debezium")
    if libraries is None or plugin is None:
        pytest.skip("Maven Central is out of reach")
    cluster = await new_cluster().ready()
    more = {**WORKER, "plugin.path": plugin.parent}
    workers = copied_lines.Workers(tmp_path, libraries, cluster.bootstrap, more)
    with postgres.running(**postgres.LOGICAL) as source:
        connect_world.create_tables(source)
        load = connect_world.Load(source, seed=1)
        load.fill()
        try:
            await _capture(cluster, workers, source, load)
        except BaseException as error:
            error.add_note("\n".join(program.printed()[-3000:] for program in workers.programs))
            raise
        finally:
            for program in workers.programs:
                program.kill()
        connect_world.check_topics(cluster, f"{NAME}.", source)


async def _capture(cluster: Cluster, workers: copied_lines.Workers, source: str, load: connect_world.Load) -> None:
    """Snapshot and stream under harm, until the topics have what the tables have."""
    for program in workers.programs:
        program.start()
    await until(lambda: workers.ask("GET", "/"), "Connect answers", timeout_s=START_LIMIT_S)
    await copied_lines.made(workers, NAME, connector(source))
    await until(lambda: workers.is_running(NAME), "the connector runs", timeout_s=START_LIMIT_S)
    async with cluster.admin() as admin:

        async def exist() -> bool:
            return set(TOPICS) <= set(await admin.list_topics())

        await until(exist, "the topics of the tables", timeout_s=START_LIMIT_S)
    rows = _Rows(cluster.bootstrap)
    topics = (*TOPICS, copied_lines.CONFIGS, copied_lines.OFFSETS, copied_lines.STATUS)
    harm = Harm(
        cluster,
        workers.programs,
        topics,
        done=lambda: len(rows.ids),
        given=lambda: FILLED + load.transactions,
    )
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(rows.run())
        await until(lambda: len(rows.ids) >= FILLED or None, "the snapshot", timeout_s=START_LIMIT_S)
        with load.running():
            await harm.recovered()
            await harm.program(await workers.of_task(NAME))
            await harm.leader(HISTORY, 0)
            await harm.transaction_coordinator(copied_lines.transactional_id(NAME))
            await harm.program(await workers.of_task(NAME))
        await until(lambda: _is_replayed(cluster, source) or None, "topics and tables are equal", timeout_s=END_LIMIT_S)
        reading.cancel()


def _is_replayed(cluster: Cluster, source: str) -> bool:
    return all(_replayed(cluster, table) == _stored(source, table) for table in connect_world.TABLES)


def _stored(source: str, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(str(value) for value in row) for row in connect_world.rows(source, table))


def _replayed(cluster: Cluster, table: str) -> list[tuple[Any, ...]]:
    """The rows that the changes of a topic leave. By position in the server's log: a truncation is in one partition only."""
    changes = [
        (json.loads(message.key()) if message.key() else None, json.loads(message.value()))
        for message in messages(cluster.bootstrap, f"{NAME}.public.{table}")
        if message.value()
    ]
    rows: dict[str, tuple[Any, ...]] = {}
    for key, change in sorted(changes, key=lambda item: item[1]["source"]["lsn"]):
        if change["op"] == "t":
            rows.clear()
        elif change["op"] == "d":
            rows.pop(json.dumps(key), None)
        else:
            rows[json.dumps(key)] = tuple(_text(name, value) for name, value in change["after"].items())
    return sorted(rows.values())


def _text(column: str, value: Any) -> str:
    """As Python writes what psycopg reads."""
    if column == "at":
        return str(datetime.fromisoformat(value))
    return str(json.loads(value)) if column == "payload" else str(value)

"""A client writes and reads while the leader of a partition is killed by -9 and comes back; then the log is looked at."""

import asyncio
import os
import subprocess
from pathlib import Path

from integration import java_client, programs
from integration.cluster import Cluster, partitions_of
from integration.load import read_all

TOPIC = "round-trip"
PAUSE_MS = 100  # between hundreds of records, so that there is time to do harm
AWAY_S = 8.0  # longer than the session of a broker: the others elect a leader
LIMIT_S = 280.0
JAVA_VERSION = os.environ.get("KAFKA_CLIENTS", "4.1.1")
FRANZ_GO = "github.com/twmb/franz-go@v1.22.2"
KAFKAJS = "kafkajs@2.2.4"


def java(folder: Path, records: int) -> list[str]:
    folder.mkdir(parents=True)
    libraries = java_client.fetch(folder, JAVA_VERSION)
    assert libraries is not None, "Maven Central is out of reach"
    return java_client.round_trip(
        libraries, "{bootstrap}", TOPIC, count=records, pause_ms=PAUSE_MS, codecs="lz4", protocols="classic,consumer"
    )


def franz_go(folder: Path, records: int) -> list[str]:
    command = programs.built_by_go(folder, java_client.SOURCES / "go", FRANZ_GO)
    assert command is not None, "modules of Go are out of reach"
    return [*command, "{bootstrap}", TOPIC, str(records), str(PAUSE_MS)]


def kafkajs(folder: Path, records: int) -> list[str]:
    made = programs.installed_by_npm(folder, java_client.SOURCES / "node", KAFKAJS)
    assert made is not None, "the registry of npm is out of reach"
    return ["node", str(made / "round_trip.js"), "{bootstrap}", TOPIC, str(records), str(PAUSE_MS)]


async def run(cluster: Cluster, command: list[str], records: int) -> int:
    """Return 0 where the client is content and the log has each of its records once."""
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
        leader = (await partitions_of(admin, TOPIC))[0].leader
    command = [item.replace("{bootstrap}", cluster.bootstrap) for item in command]
    client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert client.stdout is not None
    comeback: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(LIMIT_S):
            async for line in client.stdout:
                print(line.decode().rstrip(), flush=True)
                if line.strip() == b"QUARTER":
                    cluster.kill(leader)
                    comeback = asyncio.create_task(_come_back(cluster, leader))
            code = await client.wait()
    finally:
        if client.returncode is None:
            client.kill()
            await client.wait()
    assert comeback is not None, "the client ended before its leader was killed"
    await comeback
    await cluster.ready()
    stored = await read_all(cluster.bootstrap, TOPIC)
    values = [value for found in stored.values() for value in found.values()]
    print(f"exit code {code}; {len(values)} records, {len(set(values))} different ones, of {records}")
    return 0 if code == 0 and len(values) == len(set(values)) == records else 1


async def _come_back(cluster: Cluster, node_id: int) -> None:
    await asyncio.sleep(AWAY_S)
    cluster.start(node_id)

"""Kafka's own Java client against three real brokers: idempotent producer, every codec, both group protocols, a killed leader."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from integration import java_client, whole_topic
from integration.cluster import Cluster, partitions_of
from integration.load import read_all

VERSION = "4.1.1"
FIRST_PROTOCOL = "3.9.1"  # the newest client without the second version of transactions
COUNT = 2_000
TRANSACTIONS = 10
PAUSE_MS = 50  # between hundreds, so that the leader dies among them
CODECS = "lz4,none,gzip,snappy,zstd"
LIMIT_S = 150.0
AT_ONCE_MS = 10_000  # two seconds where nothing else runs; max.block.ms is a minute

if java_client.find():
    pytest.skip(java_client.find(), allow_module_level=True)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = java_client.fetch(tmp_path_factory.mktemp("java"), VERSION)
    if found is None:
        pytest.skip("Maven Central is out of reach")
    return found


@pytest.mark.timeout(LIMIT_S + 30)
async def test_what_java_writes_it_reads_once_though_a_leader_is_killed(
    new_cluster: Callable[..., Cluster], libraries: Path
) -> None:
    cluster = await new_cluster().ready()
    async with cluster.admin() as admin:
        await admin.create_topic("java", partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
        leader = (await partitions_of(admin, "java"))[0].leader
    command = java_client.round_trip(
        libraries,
        cluster.bootstrap,
        "java",
        count=COUNT,
        pause_ms=PAUSE_MS,
        codecs=CODECS,
        protocols="classic,consumer",
    )
    client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert client.stdout is not None and client.stderr is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(LIMIT_S):
            async for line in client.stdout:
                said.append(line.decode().strip())
                if said[-1] == "QUARTER":
                    cluster.kill(leader)
                if said[-1] == "WRITTEN lz4":
                    cluster.start(leader)
            errors = (await client.stderr.read()).decode()
            assert await client.wait() == 0, errors[-2_000:]
    finally:
        if client.returncode is None:
            client.kill()
            await client.wait()
    assert said[-2:] == ["READ classic", "READ consumer"]
    await cluster.ready()
    values = [value for records in (await read_all(cluster.bootstrap, "java")).values() for value in records.values()]
    assert len(values) == len(set(values)) == COUNT * len(CODECS.split(","))


@pytest.mark.timeout(2 * LIMIT_S)  # with what it fetches
@pytest.mark.parametrize("version", [VERSION, FIRST_PROTOCOL])
async def test_java_transactions_are_all_or_nothing(
    new_cluster: Callable[..., Cluster], version: str, tmp_path: Path
) -> None:
    """By the second version of the protocol (KIP-890), which Java 4 uses where transaction.version is 2, and by the first one."""
    libraries = java_client.fetch(tmp_path, version)
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    cluster = await new_cluster().ready()
    async with cluster.admin() as admin:
        await admin.create_topic("tx", partitions=3, replication_factor=3)
    command = java_client.transactions(libraries, cluster.bootstrap, "tx", count=TRANSACTIONS)
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert ended.stdout.splitlines() == [f"ENDED {TRANSACTIONS}", "FENCED ProducerFencedException"], ended.stderr
    kept = sorted([f"kept-{number}" for number in range(0, TRANSACTIONS, 2)] * 3)
    assert await asyncio.to_thread(whole_topic.values, cluster.bootstrap, "tx") == kept


@pytest.mark.timeout(LIMIT_S)
async def test_what_is_not_there_ends_a_java_client_at_once(
    new_cluster: Callable[..., Cluster], libraries: Path
) -> None:
    cluster = await new_cluster(1).ready()
    command = java_client.refusals(libraries, cluster.bootstrap)
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=LIMIT_S / 2, check=True
    )
    told = {
        what: (int(took_ms), error)
        for what, took_ms, error in (line.split(" ", 2) for line in ended.stdout.splitlines())
    }
    assert "UnsupportedSaslMechanismException" in told["SASL"][1] and "mechanisms are []" in told["SASL"][1]
    assert max(took_ms for took_ms, _ in told.values()) < AT_ONCE_MS

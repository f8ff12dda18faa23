"""Clients in Go and JavaScript, unchanged: transactions that copy with offsets, aborts, fencing, committed reads in groups."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from integration import programs, whole_topic
from integration.cluster import Cluster
from integration.java_client import SOURCES
from integration.load import send

FRANZ_GO = "github.com/twmb/franz-go@v1.22.2"
SARAMA = "github.com/IBM/sarama@v1.61.1"
KAFKAJS = "kafkajs@2.2.4"
COUNT = 300
PARTITIONS = 3
RUN_S = 150.0
pytestmark = pytest.mark.timeout(900.0)  # a first build in Go compiles the client

Make = Callable[[Path], list[str]]


def _go(source: str, module: str) -> Make:
    def make(folder: Path) -> list[str]:
        return programs.go_client(folder, SOURCES / source, module)

    return make


def _node(folder: Path) -> list[str]:
    return ["node", str(programs.node_client(folder, SOURCES / "node", KAFKAJS) / "transactions.js")]


@pytest.mark.parametrize(
    "make",
    [pytest.param(_go("franz_go", FRANZ_GO), id="franz-go"), pytest.param(_go("sarama", SARAMA), id="sarama"),
     pytest.param(_node, id="kafkajs")],
)  # fmt: skip
async def test_what_is_copied_in_transactions_is_there_once(
    shared_cluster: Cluster, make: Make, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    command = make(tmp_path / "client")
    await shared_cluster.ready()
    name = request.node.callspec.id
    given, copied = f"given-{name}", f"copied-{name}"
    async with shared_cluster.admin() as admin:
        for topic in (given, copied):
            await admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    for partition in range(PARTITIONS):
        values = [b"%d" % number for number in range(partition, COUNT, PARTITIONS)]
        await send(shared_cluster.bootstrap, given, values, partition=partition)
    lines = await programs.lines_of([*command, shared_cluster.bootstrap, given, copied, str(COUNT)], timeout_s=RUN_S)
    assert lines[:2] == [f"COPIED {COUNT}", f"READ {COUNT}"] and lines[2].startswith("FENCED"), lines
    once = sorted(["kept", *(f"done-{number}" for number in range(COUNT))])
    assert await asyncio.to_thread(whole_topic.values, shared_cluster.bootstrap, copied) == once
    stored = await asyncio.to_thread(whole_topic.values, shared_cluster.bootstrap, copied, isolation="read_uncommitted")
    assert set(stored) == {"lost", *once} and len(stored) > len(once) + 1, "transactions were aborted"

"""Kafka's own tools for share groups against real brokers: kafka-console-share-consumer and kafka-share-groups."""

from collections.abc import Iterator

import pytest
from integration import java_client
from integration.cluster import Cluster
from integration.java_tools import ToolRunner, Tools, tool_runner

from barnabas.net.client.admin.admin import GROUP
from barnabas.net.client.producer.producer import Producer

VERSION = "4.3.1"
LIMIT_S = 300.0  # tools run one after another
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"

if java_client.find():
    pytest.skip(java_client.find(), allow_module_level=True)
pytestmark = pytest.mark.timeout(LIMIT_S)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolRunner]:
    found = java_client.fetch(tmp_path_factory.mktemp("tools"), VERSION, "tools.xml")
    if found is None:
        pytest.skip("Maven Central is out of reach")
    with tool_runner(found) as started:
        yield started


async def test_the_console_reads_a_queue_and_the_admin_tool_resets_it(
    shared_cluster: Cluster, runner: ToolRunner
) -> None:
    tools = Tools(runner, (await shared_cluster.ready()).bootstrap)
    async with shared_cluster.admin() as admin, Producer(shared_cluster.bootstrap) as producer:
        await admin.create_topic("console", partitions=1, replication_factor=3)
        await admin.alter_config("desk", {"share.auto.offset.reset": "earliest"}, resource_type=GROUP)
        for value in range(5):
            await producer.send("console", f"value-{value}".encode())
        await producer.flush()

        read = "--topic console --group desk --max-messages 5 --timeout-ms 20000"
        said = await tools.run(CONSOLE, read)
        assert all(f"value-{value}" in said for value in range(5)), said

        assert "desk" in await tools.run(GROUPS, "--list")
        said = await tools.run(GROUPS, "--describe --group desk --offsets")
        assert _lag(said) == "0", said
        for value in range(3):
            await producer.send("console", f"later-{value}".encode())
        await producer.flush()
        assert _lag(said := await tools.run(GROUPS, "--describe --group desk --offsets")) == "3", said
        said = await tools.run(GROUPS, "--reset-offsets --group desk --topic console --to-earliest --execute")
        assert "console" in said, said
        said = await tools.run(CONSOLE, read)
        assert all(f"value-{value}" in said for value in range(5)), said

        await tools.run(GROUPS, "--delete-offsets --group desk --topic console")
        assert not await admin.group_offsets("desk")
        await tools.run(GROUPS, "--delete --group desk")
        assert "desk" not in {group.group_id for group in await admin.list_groups()}


def _lag(said: str) -> str:
    """The column LAG of the row of the topic."""
    lines = [line.split() for line in said.splitlines()]
    names = next(line for line in lines if "LAG" in line)
    return next(line for line in lines if "console" in line)[names.index("LAG")]

"""Kafka's own tools and its Admin, in Java, log in by SCRAM over TLS from PEM files, and manage users, permissions and quotas."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration import java_client, programs
from integration.cluster import SESSION, Cluster, until
from integration.java_tools import TOOL_LIMIT_S, ToolRunner, tool_runner

from barnabas.log.vocabulary.access.acls import Operation
from barnabas.net.base.local.secure_layout import CLIENT_PROPERTIES
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.security import SecurityOptions

VERSION = "4.1.1"

if java_client.find():
    pytest.skip(java_client.find(), allow_module_level=True)
pytestmark = pytest.mark.timeout(240.0)  # a JVM starts, and its tools one after another


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = java_client.fetch(tmp_path_factory.mktemp("tools"), VERSION, "tools.xml")
    if found is None:
        pytest.skip("Maven Central is out of reach")
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("java") / "c", 1, overrides=SESSION, secure=True) as started:
        yield started


@pytest.fixture(scope="module")
def runner(libraries: Path) -> Iterator[ToolRunner]:
    with tool_runner(libraries) as started:
        yield started


async def run(
    runner: ToolRunner, cluster: Cluster, main_class: str, *arguments: str, config: Path | None = None
) -> str:
    """What a tool prints, complaints included."""
    file = str(config or cluster.folder / CLIENT_PROPERTIES)
    return await runner.run(main_class, "--bootstrap-server", cluster.logins, "--command-config", file, *arguments)


async def test_the_file_that_up_has_written_serves_javas_tools(runner: ToolRunner, cluster: Cluster) -> None:
    await cluster.ready()
    topic = "org.apache.kafka.tools.TopicCommand"
    assert "Created topic by-java" in await run(runner, cluster, topic, "--create", "--topic", "by-java")
    assert "by-java" in await run(runner, cluster, topic, "--list")
    wrong = (cluster.folder / CLIENT_PROPERTIES).read_text(encoding="utf-8")
    wrong = wrong.replace(cluster.login["sasl_plain_password"], "wrong")
    path = cluster.folder / "wrong.properties"
    path.write_text(wrong, encoding="utf-8")
    assert "invalid credentials" in await run(runner, cluster, topic, "--list", config=path)


async def test_kafka_configs_manages_users(runner: ToolRunner, cluster: Cluster) -> None:
    await cluster.ready()
    who = ("kafka.admin.ConfigCommand", "--entity-type", "users", "--entity-name", "ann")
    made = await run(runner, cluster, *who, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=x-y]")
    assert "Completed updating config for user ann" in made, made
    shown = await run(runner, cluster, *who, "--describe")
    assert "SCRAM-SHA-512=iterations=8192" in shown, shown
    options = SecurityOptions(**cluster.login)
    options["sasl_mechanism"] = "SCRAM-SHA-512"
    options["sasl_plain_username"], options["sasl_plain_password"] = "ann", "x-y"

    async def can_log_in() -> bool:
        async with Admin(cluster.logins, **options):
            return True

    await until(can_log_in, "ann can log in")
    gone = await run(runner, cluster, *who, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert "Completed updating" in gone, gone


async def test_javas_admin_manages_users_permissions_and_quotas(libraries: Path, cluster: Cluster) -> None:
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic("by-admin", partitions=1, replication_factor=1)
    command = java_client.access_admin(libraries, cluster.folder / CLIENT_PROPERTIES, "by-admin")
    lines = await programs.lines_of(command, timeout_s=3 * TOOL_LIMIT_S)
    parts = ("users", "permissions", "quotas", "others", "secrets")
    assert [line for line in lines if line.startswith("DONE")] == [f"DONE {part}" for part in parts]
    async with cluster.admin() as admin:
        (left,) = await admin.acls.find()
        assert (left.principal, left.name, left.operation) == ("User:alice", "by-admin", Operation.WRITE)
        assert "of=alice" not in cluster.nodes[0].log()

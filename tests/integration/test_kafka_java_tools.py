"""Kafka's own command-line tools, in Java, against three real brokers: dynamic configurations, features, transactions."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration import java_client
from integration.cluster import Cluster, full_isr, until
from integration.java_tools import ToolRunner, Tools, tool_runner

from barnabas.log.format.record_batch import patch
from barnabas.log.format.record_codec import ProducerFields, encode_batch
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import LATEST

VERSION = "4.1.1"
LIMIT_S = 240.0  # of a test: a dozen tools, one after another

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


class ConfigTools(Tools):
    async def configs(self, *arguments: str) -> str:
        return await self.run("kafka.admin.ConfigCommand", *arguments)

    async def until_described(self, words: str, *arguments: str, is_gone: bool = False) -> None:
        """The broker that is asked may learn a moment later what the controller has confirmed."""
        said = ""

        async def is_so() -> bool:
            nonlocal said
            said = await self.configs("--describe", *arguments)
            return (words in said) != is_gone

        try:
            await until(is_so, f"{words} {'is gone' if is_gone else 'is described'}")
        except AssertionError as error:
            error.add_note(said)
            raise


@pytest.fixture
async def tools(shared_cluster: Cluster, runner: ToolRunner) -> ConfigTools:
    return ConfigTools(runner, (await shared_cluster.ready()).bootstrap)


async def test_kafka_configs_changes_brokers_while_they_run(shared_cluster: Cluster, tools: ConfigTools) -> None:
    brokers = "--entity-type brokers"
    async with shared_cluster.admin() as admin:
        await admin.create_topic("dynamic", partitions=1, replication_factor=3)
    for where in ("--entity-default", "--entity-name 1"):
        altered = await tools.configs("--alter", brokers, where, "--add-config log.retention.ms=123456789")
        assert "Completed updating" in altered, altered
        await tools.until_described("log.retention.ms=123456789", brokers, where)
    topic = "--entity-type topics --entity-name dynamic --all"
    await tools.until_described("DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=123456789", topic)
    assert " retention.ms=123456789" in await tools.configs("--describe", topic)
    for where in ("--entity-default", "--entity-name 1"):
        assert "Completed updating" in await tools.configs(
            "--alter", brokers, where, "--delete-config log.retention.ms"
        )
        await tools.until_described("log.retention.ms", brokers, where, is_gone=True)
    for wrong in ("controlled.shutdown.timeout.ms=3", "log.cleaner.threads=2", "log.retention.ms=soon"):
        refused = await tools.configs("--alter", brokers, "--entity-default --add-config", wrong)
        assert "InvalidConfigurationException" in refused and wrong.partition("=")[0] in refused


async def test_kafka_configs_changes_groups(tools: ConfigTools) -> None:
    group = "--entity-type groups --entity-name by-tool"
    altered = await tools.configs("--alter", group, "--add-config consumer.heartbeat.interval.ms=1500")
    assert "Completed updating config for group by-tool" in altered, altered
    for described in (group, "--entity-type groups"):
        await tools.until_described("consumer.heartbeat.interval.ms=1500", described)
    refused = await tools.configs("--alter", group, "--add-config streams.session.timeout.ms=45000")
    assert "InvalidConfigurationException" in refused and "streams groups are not supported" in refused
    removed = await tools.configs("--alter", group, "--delete-config consumer.heartbeat.interval.ms")
    assert "Completed updating" in removed, removed


async def test_kafka_configs_changes_levels_of_loggers_of_one_broker(tools: ConfigTools) -> None:
    loggers = "--entity-type broker-loggers --entity-name 1"
    altered = await tools.configs("--alter", loggers, "--add-config barnabas.metadata=DEBUG")
    assert "Completed updating config for broker-logger 1" in altered, altered
    assert "barnabas.metadata=DEBUG" in await tools.configs("--describe", loggers)
    other = await tools.configs("--describe --entity-type broker-loggers --entity-name 2")
    assert "barnabas.metadata=INFO" in other, other
    assert "InvalidConfigurationException" in await tools.configs(
        "--alter", loggers, "--add-config barnabas.metadata=LOUD"
    )


async def test_kafka_configs_sets_and_removes_quotas(tools: ConfigTools) -> None:
    both = "--entity-type users --entity-name u --entity-type clients --entity-default"
    altered = await tools.configs("--alter", both, "--add-config producer_byte_rate=1024,request_percentage=2.5")
    assert "Completed updating config" in altered, altered
    for words in ("producer_byte_rate=1024.0", "request_percentage=2.5"):
        await tools.until_described(words, both)
    hosts = "--entity-type ips --entity-name 10.0.0.1"
    assert "Completed updating" in await tools.configs("--alter", hosts, "--add-config connection_creation_rate=5")
    removed = await tools.configs("--alter", both, "--delete-config producer_byte_rate,request_percentage")
    assert "Completed updating" in removed, removed
    await tools.until_described("producer_byte_rate", both, is_gone=True)


async def test_kafka_features_shows_what_is_served(tools: ConfigTools) -> None:
    found = await tools.run("org.apache.kafka.tools.FeatureCommand", "describe")
    levels = {line.split()[1]: line.split() for line in found.splitlines() if line.startswith("Feature:")}
    assert {name: words[words.index("FinalizedVersionLevel:") + 1] for name, words in levels.items()} == {
        "group.version": "1",
        "kraft.version": "0",
        "metadata.version": "4.0-IV3",
        "share.version": "1",
        "transaction.version": "2",
    }


async def test_kafka_transactions_finds_none_and_ends(tools: ConfigTools) -> None:
    """Every broker is asked for the partitions that it leads, those of __consumer_offsets too. A call has a limit of its own."""
    main_class = "org.apache.kafka.tools.TransactionsCommand"
    for verb in ("list", "find-hanging --broker-id 0", "find-hanging --broker-id 1"):
        found = await tools.run(main_class, verb)
        heads = [line for line in found.splitlines() if line.startswith(("TransactionalId", "Topic"))]
        assert len(heads) == 1 and found.strip().endswith(heads[0].strip()), found


TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


def write_stray_transaction(data: Path, topic: str) -> None:
    """A transactional batch that no coordinator knows, as another program may have left it in the log of a stopped broker."""
    producer = ProducerFields(producer_id=4711, producer_epoch=3, base_sequence=0, is_transactional=True)
    a_day_ago_ms = int(time.time() * 1000) - 86_400_000  # find-hanging looks for what is older than 15 minutes
    batch = bytearray(encode_batch([b"stray"], timestamps_ms=a_day_ago_ms, producer=producer))
    patch(batch, 0, base_offset=0, leader_epoch=0)
    (log,) = data.glob(f"**/{topic}-0/{0:020d}.log")
    assert log.stat().st_size == 0
    log.write_bytes(batch)


async def test_kafka_transactions_finds_and_aborts_what_hangs(tmp_path: Path, runner: ToolRunner) -> None:
    with Cluster(tmp_path, 1) as cluster:
        await cluster.ready()
        async with cluster.admin() as admin:
            await admin.create_topic("stray", partitions=1, replication_factor=1)
        (node,) = cluster.nodes
        cluster.kill(0)
        write_stray_transaction(node.data, "stray")
        cluster.start(0)
        await cluster.ready()
        async with cluster.admin() as admin:
            await full_isr(admin, ["stray"])  # tools look for transactions of partitions with a leader
        tools = Tools(runner, cluster.bootstrap)
        place = "--topic stray --partition 0"
        found = await tools.run(TRANSACTIONS, "find-hanging --broker-id 0")
        assert "stray" in found and "4711" in found, found
        described = await tools.run(TRANSACTIONS, "describe-producers", place)
        assert "4711" in described, described
        async with cluster.admin() as admin:
            (hanging,) = await admin.transactions.hanging()
            assert (hanging.topic, hanging.producer_id, hanging.first_offset) == ("stray", 4711, 0)
        aborted = await tools.run(TRANSACTIONS, "abort", place, "--start-offset 0")
        assert "Exception" not in aborted and "Error" not in aborted, aborted
        async with cluster.admin() as admin:
            assert await admin.transactions.hanging() == []
            place_of = TopicPartition("stray", 0)
            ends = await admin.find_offsets({place_of: LATEST}, isolation_level="read_committed")
            assert ends[place_of].offset == 2
        again = await tools.run(TRANSACTIONS, "abort", place, "--start-offset 0")
        assert "Could not find any open transactions" in again, again

"""Kafka Streams, unchanged, with exactly_once_v2: counts are exact though instances and brokers are killed by -9."""

from collections.abc import Callable
from pathlib import Path

import pytest
from integration import java_client, programs, word_counts
from integration.cluster import Cluster, until
from integration.harm import Harm

VERSION = "4.1.1"
LIMIT_S = 300.0
ENDS_S = 60.0  # of an application that is refused

if reason := programs.missing("java", "javac", "mvn"):
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.timeout(LIMIT_S)


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("streams")
    libraries = java_client.fetch(folder, VERSION, "streams.xml")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    return java_client.compiled(folder, libraries, "WordCount")


async def test_counts_are_exact_though_an_instance_and_coordinators_are_killed(
    new_cluster: Callable[..., Cluster], class_path: str, tmp_path: Path
) -> None:
    cluster = await new_cluster(log_cleaner_backoff_ms="500").ready()

    async def steps(harm: Harm) -> None:
        await harm.program(0)
        await harm.transaction_coordinator(word_counts.transactional_id(tmp_path, "b"))

    await word_counts.under_harm(tmp_path, cluster, class_path, steps, seed=1)
    cleaned = f"event=cleaned partition={word_counts.CHANGELOG}"
    await until(lambda: any(cleaned in node.log() for node in cluster.nodes), "a changelog is compacted")


async def test_the_streams_group_protocol_is_refused_at_once(
    new_cluster: Callable[..., Cluster], class_path: str, tmp_path: Path
) -> None:
    """KIP-1071 is not served; the application is to learn that, not to wait."""
    cluster = await new_cluster(1).ready()
    async with cluster.admin() as admin:
        for topic in (word_counts.INPUT, word_counts.OUTPUT):
            await admin.create_topic(topic, partitions=1, replication_factor=1)
    settings = ("group.protocol=streams", "replication.factor=1")
    program = word_counts.application(tmp_path, class_path, cluster.bootstrap, "refused", settings)
    program.start()
    try:
        await until(lambda: not program.is_running, "the application ends", timeout_s=ENDS_S)
    finally:
        program.kill()
    assert "UnsupportedVersionException: The cluster does not support the STREAMS group protocol" in program.printed()

"""Kafka Connect, unchanged: two workers with exactly-once source, though a worker and a coordinator are killed by -9."""

from collections.abc import Callable
from pathlib import Path

import pytest
from integration import copied_lines, java_client
from integration.cluster import Cluster
from integration.harm import Harm

VERSION = "4.1.1"
LIMIT_S = 360.0

if java_client.find():
    pytest.skip(java_client.find(), allow_module_level=True)


@pytest.mark.timeout(LIMIT_S)
async def test_each_line_is_copied_once_though_a_worker_and_a_coordinator_are_killed(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    libraries = java_client.fetch(tmp_path / "libraries", VERSION, "connect.xml")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    cluster = await new_cluster().ready()

    async def steps(harm: Harm) -> None:
        await harm.program(0)
        await harm.transaction_coordinator(copied_lines.transactional_id(copied_lines.SOURCES[0]))

    await copied_lines.under_harm(tmp_path, cluster, libraries, steps)

"""Silent crowds on the ports that are not for clients: the descriptors that logs, voters and clients need stay free."""

from pathlib import Path

import pytest
from hostile.attack import Attack
from hostile.idle_connections import SILENT_ONES
from hostile.suite import run

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: scripts/setup.sh")


@pytest.mark.parametrize("attack", SILENT_ONES, ids=lambda attack: attack.name)
async def test_a_silent_crowd_uses_up_no_descriptors(tmp_path: Path, attack: Attack) -> None:
    """A broker that runs out of descriptors logs a traceback for each connection that it cannot accept."""
    assert (await run(tmp_path, attack)).violations == []

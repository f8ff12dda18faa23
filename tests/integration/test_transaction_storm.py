"""`transaction_storm`, trimmed. BARNABAS_STORM_SECONDS makes it longer, BARNABAS_STORM_SEED another one."""

import logging
import os
import re
from collections.abc import Callable

import pytest
from integration.transaction_storm import CONFIG, TransactionStorm

from barnabas.net.testing.cluster import Cluster

SECONDS = float(os.environ.get("BARNABAS_STORM_SECONDS", "6"))
SEED = int(os.environ.get("BARNABAS_STORM_SEED", "1"))


@pytest.mark.timeout(120 + 2 * SECONDS)
async def test_members_that_come_and_go_beside_dying_coordinators_leave_nothing_behind(
    caplog: pytest.LogCaptureFixture, report_line: Callable[[str], None]
) -> None:
    caplog.set_level(logging.INFO, logger="barnabas.consumer")
    async with Cluster(3, backend="processes", config=CONFIG) as cluster:
        storm = TransactionStorm(cluster, seed=SEED, seconds=SECONDS)
        await storm.run()
        unconfirmed = set(re.findall(r"leave not confirmed .*member=(\S+)", caplog.text))
        await storm.check_left_behind(unconfirmed=unconfirmed)
        await storm.settle()
    report_line(f"transaction storm: seed {SEED}: {dict(storm.counts)}")
    assert storm.counts["transactions"]

"""A job from topic to topic has each record once, whenever its Spark driver and brokers are killed (kill -9)."""

import os
from pathlib import Path

import pytest
from spark_kills.campaign import run

from barnabas.spark_connector.java import JavaMissingError, require_java

KILLS = int(os.environ.get("BARNABAS_SPARK_KILLS", "2"))  # the second one also kills a broker


@pytest.mark.timeout(1_000 + KILLS * 100)
def test_drivers_and_a_broker_are_killed(tmp_path: Path) -> None:
    try:
        require_java()
    except JavaMissingError as error:
        pytest.skip(str(error))
    outcome = run(tmp_path, delivery="effectively_once", kills=KILLS, seed=1)
    print(outcome.line())
    assert outcome.driver_kills == KILLS and outcome.broker_kills >= 1
    assert outcome.records > 1_000
    assert not outcome.violations()

"""A selection of `scripts/hostile` on one cluster: attacks one after the other, with honest clients beside all of them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile.catalogue import ATTACKS, IN_CI
from hostile.suite import run, run_all
from hostile.verdict import HEAD, Measured, row
from hostile.watch import Processor

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: scripts/setup.sh")
Report = Callable[[str], None]


@pytest.mark.timeout(300)
async def test_honest_clients_survive_the_attacks(tmp_path: Path, report_line: Report) -> None:
    report_line(HEAD)
    measured = await run_all(tmp_path, [ATTACKS[name] for name in IN_CI], lambda one: report_line(row(one)))
    violations = {one.attack: one.violations for one in measured if one.violations}
    assert not violations, violations
    assert min(one.acknowledged for one in measured) > 0


@pytest.mark.timeout(300)
async def test_honest_clients_survive_bombs_beside_a_hung_disk(tmp_path: Path, report_line: Report) -> None:
    try:
        measured = await run(tmp_path, ATTACKS["hung disk and bombs"])
    except LookupError as error:
        pytest.skip(str(error))
    report_line(row(measured))
    assert not measured.violations


def test_a_loop_that_computes_is_told_from_one_without_a_processor() -> None:
    before, until_s = Processor.of_loop(os.getpid()), time.thread_time() + 0.2
    while time.thread_time() < until_s:
        pass
    computed = Processor.of_loop(os.getpid()).since(before)
    if not Path(f"/proc/{os.getpid()}/schedstat").exists():
        pytest.skip("the kernel has no schedstat")
    assert 0.15 < computed.busy_s < 0.3
    starved = Measured(attack="one", stall_s=[0.6], starved_s=[0.5], busy_s=[0.1])
    assert not starved.violations
    assert "stall of broker 0" in starved.verdict and "computing" not in starved.verdict
    assert Measured(attack="one", stall_s=[1.2], starved_s=[0.0], busy_s=[1.2]).violations

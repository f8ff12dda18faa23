"""A selection of `scripts/hostile` on one cluster: attacks one after the other, with honest clients beside all of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hostile.catalogue import ATTACKS, IN_CI
from hostile.suite import run, run_all
from hostile.verdict import HEAD, row

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

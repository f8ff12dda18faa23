"""The trimmed form of `scripts/groups`: members of a group are killed -9 under load, one every two seconds."""

from collections.abc import Callable
from pathlib import Path

import pytest
from integration.group_churn import churn


@pytest.mark.timeout(300)
async def test_members_killed_under_load_lose_nothing(tmp_path: Path, report_line: Callable[[str], None]) -> None:
    report = await churn(tmp_path, members=6, partitions=18, seconds=15.0, every_s=2.0, session_ms=3_000, seed=1)
    for line in str(report).splitlines():
        report_line(f"group churn: {line}")
    assert report.acknowledged > 1_000
    assert len(report.kills) >= 5
    assert not report.missing
    assert not report.adoptions_together
    # A newcomer takes its share from the others, who keep the rest: a third of all would be far more than that.
    moved = sorted(kill.moved for kill in report.kills)
    assert moved[len(moved) // 2] <= report.partitions // 3

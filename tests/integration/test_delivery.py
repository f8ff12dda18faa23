"""Each delivery semantics loses and repeats what it promises, no more, when its workers and brokers are killed (kill -9)."""

from pathlib import Path

import pytest
from delivery.campaign import run
from integration import postgres

KILLS = 10  # scripts/delivery makes a hundred


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("semantics", "database"),
    [
        ("at-most-once", "none"),
        ("at-least-once", "none"),
        ("effectively-once", "sqlite"),
        ("effectively-once", "postgresql"),
    ],
)
def test_ten_kills(semantics: str, database: str, tmp_path: Path) -> None:
    programs, reason = postgres.find()
    if database == "postgresql" and programs is None:
        pytest.skip(reason)
    outcome = run(tmp_path, semantics=semantics, kills=KILLS, seed=4, database=database)
    print(outcome.line())
    assert outcome.worker_kills + outcome.broker_kills == KILLS and outcome.worker_kills >= KILLS // 2
    assert outcome.records > 100
    assert not outcome.violations()

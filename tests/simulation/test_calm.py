"""In a calm cluster, replication is quick (`fetch_bugs` shows that the proof can fail)."""

import os

import pytest

from .calm_history import run_calm_history

SEEDS = int(os.environ.get("BARNABAS_CALM_SEEDS", "10"))


@pytest.mark.timeout(300)
def test_nothing_waits_for_a_look_at_everything() -> None:
    waits = 0
    for seed in range(SEEDS):
        result = run_calm_history(seed)
        assert not result.failure, f"seed {seed}: {result.failure}; scripts/simulate --calm --seed {seed} --trace"
        assert result.counts["acked"] > 20
        waits += result.counts["calm_waits"]
    assert waits > 50 * SEEDS


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_calm_history(3).trace_hash == run_calm_history(3).trace_hash

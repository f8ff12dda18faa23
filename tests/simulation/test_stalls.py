"""A loop or a disk that stands still costs the cluster a few seconds at most (`stall_bugs` shows that the proof can fail)."""

import os

import pytest

from .stall_history import run_stall_history

SEEDS = int(os.environ.get("BARNABAS_STALL_SEEDS", "4"))


@pytest.mark.timeout(300)
def test_acknowledgements_go_on_while_a_loop_or_a_disk_stands_still() -> None:
    for seed in range(SEEDS):
        result = run_stall_history(seed)
        assert not result.failure, f"seed {seed}: {result.failure}"
        assert result.counts["acked"] > 20


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_stall_history(1).trace_hash == run_stall_history(1).trace_hash

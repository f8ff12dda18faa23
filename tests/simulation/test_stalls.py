"""A loop or a disk that stands still costs the cluster a few seconds at most; and the proof can fail."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from .stall_history import a_silent_loop_is_not_noticed, high_watermarks_are_written_on_the_loop, run_stall_history

SEEDS = int(os.environ.get("BARNABAS_STALL_SEEDS", "4"))
MOST_SEEDS_FOR_A_BUG = 6


@pytest.mark.timeout(300)
def test_acknowledgements_go_on_while_a_loop_or_a_disk_stands_still() -> None:
    for seed in range(SEEDS):
        result = run_stall_history(seed)
        assert not result.failure, f"seed {seed}: {result.failure}"
        assert result.counts["acked"] > 20


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_stall_history(1).trace_hash == run_stall_history(1).trace_hash


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (a_silent_loop_is_not_noticed, "takes no records"),
        (high_watermarks_are_written_on_the_loop, "waits for its disk"),
    ],
)
@pytest.mark.timeout(300)
def test_planted_bugs_are_found(plant: Callable[[], AbstractContextManager[None]], told: str) -> None:
    with plant():
        for seed in range(MOST_SEEDS_FOR_A_BUG):
            failure = run_stall_history(seed).failure
            if failure:
                assert told in failure
                return
    pytest.fail(f"it survived {MOST_SEEDS_FOR_A_BUG} seeds")

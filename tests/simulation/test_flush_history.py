"""flush.messages=1 under the loss of all power, with whole brokers: no acknowledged record is lost; and the proof can fail."""

import os

import pytest

from .flush_history import acknowledges_before_the_flush, run_flush_history

SEEDS = int(os.environ.get("BARNABAS_FLUSH_SEEDS", "8"))
MOST_SEEDS_FOR_A_BUG = 40


@pytest.mark.timeout(300)
def test_what_is_flushed_first_survives_the_loss_of_all_power() -> None:
    acknowledged, flushes = 0, 0
    for seed in range(SEEDS):
        result = run_flush_history(seed)
        assert not result.failure, f"seed {seed}: {result.failure}"
        acknowledged += result.counts["acked"]
        flushes += result.counts["flushes"]
    # The setting was in force. One flush covers what comes in the meantime, and each acknowledgement has two at least.
    assert flushes > acknowledged > 20 * SEEDS


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_flush_history(3).trace_hash == run_flush_history(3).trace_hash != run_flush_history(5).trace_hash


@pytest.mark.timeout(300)
def test_an_acknowledgement_before_the_flush_is_found() -> None:
    with acknowledges_before_the_flush():
        for seed in range(MOST_SEEDS_FOR_A_BUG):
            if run_flush_history(seed).failure:
                return
    pytest.fail(f"it survived {MOST_SEEDS_FOR_A_BUG} seeds")

"""flush.messages=1 under the loss of all power, with whole brokers: no acknowledged record is lost (`stall_bugs` shows that
the proof can fail)."""

import os

import pytest

from .flush_history import run_flush_history

SEEDS = int(os.environ.get("BARNABAS_FLUSH_SEEDS", "8"))


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

"""Transactions on one replicated partition under seeded faults: readers of committed records see what was decided, and no more.

`run_seed(seed)` of isr_transactions replays a failure. More seeds: BARNABAS_TXN_SEEDS=5000.
"""

import os

from .isr_scenario import Scenario
from .isr_transactions import FAULTS, run_seed

SEEDS = int(os.environ.get("BARNABAS_TXN_SEEDS", "150"))  # some twelve seconds


def test_readers_see_what_was_decided_and_no_more() -> None:
    reads = filtered = decided = deletions = deletions_into = 0
    for seed in range(SEEDS):
        try:
            cluster = run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        reads += cluster.reads
        filtered += cluster.filtered
        decided += len(cluster.transactions.decisions)
        deletions += cluster.deletions
        deletions_into += cluster.deletions_into_transactions
    # Deletions take a part of what readers would have to filter.
    assert reads > 10 * SEEDS and filtered > 3 * SEEDS and decided > 4 * SEEDS
    assert deletions > 2 * SEEDS and deletions_into > SEEDS // 4, (deletions, deletions_into)


def test_what_a_follower_knows_of_deleted_records_is_that_of_its_leader() -> None:
    """It ended where the leader's log began, with other records before: it kept the transaction that they had opened."""
    run_seed(249)


def test_power_losses_of_all_replicas_at_once_take_no_aborted_transaction_from_the_index() -> None:
    scenario = Scenario(faults=("power_all", "power"), flush_first=True)
    assert sum(run_seed(seed, scenario).filtered for seed in range(SEEDS // 5)) > SEEDS // 5


def test_other_sizes() -> None:
    for seed in range(SEEDS // 10):
        run_seed(seed, Scenario(node_count=5, min_isr=3, faults=FAULTS))


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = run_seed(3), run_seed(3)
    assert (first.trace, first.events, first.acked, first.reads) == (
        second.trace,
        second.events,
        second.acked,
        second.reads,
    )

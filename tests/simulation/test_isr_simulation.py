"""One partition under seeded faults: every invariant after every event; and the simulation finds bugs when there are
some.

`run_seed(seed)` of isr_cluster replays a failure. More seeds: BARNABAS_ISR_SEEDS=10000 pytest
tests/simulation/test_isr_simulation.py
"""

import os

import pytest

from .isr_bugs import PLANTED
from .isr_cluster import Scenario, run_seed

SEEDS = int(os.environ.get("BARNABAS_ISR_SEEDS", "400"))  # some four seconds
MOST_SEEDS_FOR_A_BUG = 500


def test_invariants_hold_and_everything_makes_progress_after_the_last_fault() -> None:
    acknowledged = 0
    for seed in range(SEEDS):
        try:
            acknowledged += len(run_seed(seed).acked)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert acknowledged > 10 * SEEDS  # the faults must leave something to lose


@pytest.mark.parametrize("scenario", [Scenario(node_count=5, min_isr=3), Scenario(min_isr=1, flush_first=True)])
def test_other_sizes(scenario: Scenario) -> None:
    for seed in range(SEEDS // 8):
        run_seed(seed, scenario)


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in (3, 17):
        first, second = run_seed(seed), run_seed(seed)
        assert (first.trace, first.events, first.acked) == (second.trace, second.events, second.acked)
    assert run_seed(3).trace != run_seed(4).trace


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_bug_is_found(name: str) -> None:
    for seed in range(MOST_SEEDS_FOR_A_BUG):
        try:
            run_seed(seed, PLANTED[name])
        except AssertionError:
            return
    pytest.fail(f"{name} survived {MOST_SEEDS_FOR_A_BUG} seeds")

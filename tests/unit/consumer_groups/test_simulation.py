"""Thousands of seeds of `simulation.Simulation`. A failure names its seed; `Simulation(seed).run()` repeats it."""

import pytest

from .simulation import Simulation

BLOCKS = 10
SEEDS_PER_BLOCK = 200


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_seed_keeps_the_invariants_and_settles(block: int) -> None:
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        try:
            Simulation(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error

"""Thousands of seeds of `simulation.Simulation` and of `classic_simulation` (`simulation.member_bugs` has bugs that
they find). A failure names its seed; `Simulation(seed).run()`
repeats it."""

import pytest

from .classic_simulation import ClassicSimulation
from .simulation import Simulation

BLOCKS = 10
SEEDS_PER_BLOCK = 200


@pytest.mark.parametrize("kind", [Simulation, ClassicSimulation])
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_seed_keeps_the_invariants_and_settles(
    block: int, kind: type[Simulation] | type[ClassicSimulation]
) -> None:
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        try:
            kind(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error

"""Share groups in whole clusters: brokers, links and the programs with the SDK's `ShareConsumer` fail (see `share_history`).

A failure prints its seed; `run_shares(seed)` replays it. BARNABAS_SHARE_SIMULATION_SEEDS (12) seeds are run, from
BARNABAS_SHARE_SIMULATION_FIRST_SEED (100) on; `scripts/test.sh long` runs 60.
"""

import os
from collections.abc import Callable

import pytest

from .share_history import RECORDS, run_shares

FIRST_SEED = int(os.environ.get("BARNABAS_SHARE_SIMULATION_FIRST_SEED", "100"))
SEEDS = int(os.environ.get("BARNABAS_SHARE_SIMULATION_SEEDS", "12"))
# What failed once. 14: programs that had stood still were given records whose locks might be over.
REGRESSIONS = ((14, ("program_stall", "stall")),)


@pytest.mark.parametrize(("seed", "faults"), REGRESSIONS)
def test_seeds_that_failed_once(seed: int, faults: tuple[str, ...]) -> None:
    run_shares(seed, faults)


@pytest.mark.timeout(SEEDS * 5 + 260)
def test_fresh_seeds(report_line: Callable[[str], None]) -> None:
    faults = events = returned = dead = confirmed = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        result, ledger = run_shares(seed)
        faults, events = faults + result.faults, events + result.events
        returned, dead, confirmed = (
            returned + ledger.returned,
            dead + len(ledger.dead),
            confirmed + len(ledger.confirmed),
        )
    report_line(
        f"share simulation: seeds {FIRST_SEED}-{FIRST_SEED + SEEDS - 1}, {events} events, {faults} faults, {returned} deliveries"
        f" of {SEEDS * RECORDS} records, {confirmed} confirmed, {dead} dead letters"
    )
    assert faults > 5 * SEEDS and returned > RECORDS * SEEDS  # what is never reached is not tested
    assert dead and confirmed > RECORDS * SEEDS // 2


def test_a_seed_takes_the_same_course_again() -> None:
    (first, _), (second, _) = run_shares(3), run_shares(3)
    assert first == second

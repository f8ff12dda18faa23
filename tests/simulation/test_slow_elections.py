"""Voters elect a controller on slow disks, and it stays (`slow_bugs` shows that the proof can fail)."""

import os

from .slow_elections import run_patient_election, run_slow_election

SEEDS = int(os.environ.get("BARNABAS_ELECTION_SEEDS", "60"))  # about 4 s; two thousand have been run by hand

PATIENT_SEEDS = 10


def test_a_controller_is_elected_and_stays_on_slow_disks() -> None:
    took_s = [run_slow_election(seed) for seed in range(SEEDS)]
    assert max(took_s) > 1.0, "the disks of no history were slow enough to matter"


def test_a_longer_timeout_helps_where_a_vote_takes_seconds() -> None:
    """Links of voters that wrote their votes were given up after three seconds, whatever the timeout, and the votes with them."""
    for seed in range(PATIENT_SEEDS):
        run_patient_election(seed)


def test_the_same_seed_takes_the_same_time() -> None:
    assert run_slow_election(5) == run_slow_election(5)

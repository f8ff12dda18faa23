"""Histories of a whole quorum with faults, from seeds. `simulation.raft_cluster.run_seeds` runs more of them."""

import pytest
from simulation.raft_changes import run_changes_of
from simulation.raft_cluster import run_seed, run_seeds

SEEDS_IN_CI = 120  # about 12 s; thousands have been run by hand
BATCH = 20
CHANGE_SEEDS_IN_CI = 40


@pytest.mark.parametrize("first", range(0, SEEDS_IN_CI, BATCH))
def test_nothing_acknowledged_is_lost_and_all_make_progress_again(first: int) -> None:
    assert run_seeds(first, BATCH) == []


def test_a_stranger_who_speaks_in_the_names_of_voters_changes_nothing() -> None:
    assert run_seeds(1_000, BATCH, stranger=True) == []


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_seed(4).trace == run_seed(4).trace
    assert run_seed(4).trace != run_seed(5).trace


@pytest.mark.parametrize("first", range(0, CHANGE_SEEDS_IN_CI, BATCH))
def test_voters_change_under_faults_and_nothing_is_lost(first: int) -> None:
    assert run_changes_of(first, BATCH) == []

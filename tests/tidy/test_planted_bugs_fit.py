"""Planted bugs replace names of the product: a name that has moved must not wait for the complete run to be missed."""

import pytest
from simulation.planted import Planted, all_bugs

BUGS = all_bugs()


@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.level}: {bug.name}" for bug in BUGS])
def test_each_planted_bug_finds_what_it_replaces(bug: Planted) -> None:
    with bug.plant():
        pass

"""Each planted bug is found by some seed of the simulation of its level; the table says how many seeds it took."""

from collections.abc import Callable

import pytest

from .planted import MOST_SEEDS, Planted, all_bugs, find

BUGS = all_bugs()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.level}: {bug.name}" for bug in BUGS])
def test_a_planted_bug_is_found(bug: Planted, report_line: Callable[[str], None]) -> None:
    found = find(bug)
    if found is None:
        pytest.fail(f"{bug.name} survived {MOST_SEEDS[bug.level]} seeds")
    report_line(f"planted bug: {bug.level:9} {bug.name}: found by seed number {found.seeds}")


def test_the_suite_is_large_enough() -> None:
    assert len({bug.name for bug in BUGS}) >= 12
    assert {bug.level for bug in BUGS} == set(MOST_SEEDS)

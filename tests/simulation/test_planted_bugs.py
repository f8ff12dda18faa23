"""Each planted bug is found by some seed of the simulation of its level; the table says how many seeds it took."""

import contextlib
from collections.abc import Callable

import pytest

from .planted import MOST_SEEDS, MisfitError, Planted, all_bugs, find

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


@pytest.mark.parametrize(
    "error",
    [
        TypeError("replay() takes 2 positional arguments but 3 were given"),
        AssertionError(
            "node=0 record quarantined index 18: GroupRecord(slot=13): TypeError: replay() takes 2 arguments"
        ),
        AssertionError("group slot=16: the coordinator failed: AttributeError('no _states')"),
    ],
)
def test_a_patch_that_breaks_the_product_finds_nothing(error: Exception) -> None:
    def run(seed: int) -> bool:
        raise error

    with pytest.raises(MisfitError, match="correct its patch"):
        find(Planted(level="log", name="an old patch", plant=contextlib.nullcontext, run=run))

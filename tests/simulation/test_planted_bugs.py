"""Each planted bug is found by some seed of the simulation of its level; the table says by which, and how many were run."""

import contextlib
from collections.abc import Callable

import pytest

from .finding_seeds import FINDING_SEEDS
from .planted import MOST_SEEDS, MisfitError, Planted, all_bugs, find

BUGS = all_bugs()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.level}: {bug.name}" for bug in BUGS])
def test_a_planted_bug_is_found(bug: Planted, report_line: Callable[[str], None]) -> None:
    found = find(bug)
    if found is None:
        pytest.fail(f"{bug.name} survived {MOST_SEEDS[bug.level]} seeds")
    advice = "" if found.seeds == 1 else ": write it into finding_seeds.py"
    report_line(f"planted bug: {bug.level:9} {bug.name}: found by seed {found.seed}, {found.seeds} run{advice}")


def test_the_suite_is_large_enough() -> None:
    assert len({bug.name for bug in BUGS}) >= 12
    assert {bug.level for bug in BUGS} == set(MOST_SEEDS)


def test_known_seeds_are_of_bugs_that_are_planted_and_not_the_first_seed() -> None:
    assert {bug: seed for bug, seed in FINDING_SEEDS.items() if bug not in {(it.level, it.name) for it in BUGS}} == {}
    assert {bug: seed for bug, seed in FINDING_SEEDS.items() if not 0 < seed < MOST_SEEDS[bug[0]]} == {}


def test_a_known_seed_goes_first_and_none_is_left_out_when_it_shows_nothing() -> None:
    ran = list[int]()

    def run(seed: int) -> bool:
        ran.append(seed)
        return False

    bug = Planted(level="schedule", name="nowhere", plant=contextlib.nullcontext, run=run)
    assert find(bug, {("schedule", "nowhere"): 7}) is None
    assert ran[0] == 7 and sorted(ran) == list(range(MOST_SEEDS["schedule"]))


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

"""Every fuzz target for some seeds, the same in every run; `scripts/fuzz` goes on from there for as long as one likes."""

import pytest
from fuzz import record_targets, runner
from fuzz.record_storm import COMPARED_EVERY, Storm

CASES = 150  # of each target: some seconds in all
FOUND_BEFORE = {  # seeds that failed once
    "partition-files": (1423, 1617, 1952, 2430, 2678, 4069, 9737),
    "producer-snapshots": (1001035, 1002479, 1022089),
    "quorum-journal": (1009748, 1019930),
    "endpoints-json": (1011692, 1013780),
    "snapshot-transfers": (19, 20, 21, 22, 24, 26, 27),
}


@pytest.mark.parametrize("name", runner.TARGETS)
def test_damaged_bytes_are_refused_or_made_anew(name: str) -> None:
    outcome = runner.run([name], first_seed=0, cases=CASES)
    assert outcome.cases[name] == CASES or outcome.failures
    assert not outcome.failures, "\n\n".join(map(str, outcome.failures))


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in FOUND_BEFORE.items() for seed in seeds])
def test_what_failed_once(name: str, seed: int) -> None:
    failure = runner.run_case(name, seed)
    assert failure is None, str(failure)


def test_the_same_seed_is_the_same_case() -> None:
    assert runner.run_case("requests", 5) == runner.run_case("requests", 5)


def test_a_storm_of_damaged_records() -> None:
    """What `scripts/fuzz-records` does by the million, with sanitizers."""
    twin, *compiled = record_targets.IMPLEMENTATIONS
    storm = Storm(compiled[0] if compiled else twin, twin, seed=1)
    storm.run(CASES * COMPARED_EVERY)
    assert storm.compared == CASES

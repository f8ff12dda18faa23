"""Runs the fuzz of records with another build of the compiled module: sanitized.py MODULE CASES SEED.

First CASES of each target, every one compared with the twin in Python; then the cheaper cases of `Storm`, and those of the loop
in C, each by the factor by which it is cheaper.
"""

import importlib.util
import sys
import time
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Final

NAME: Final = "barnabas.log.records._native"
PROGRESS_EVERY: Final = 10_000
STORM_FACTOR: Final = 5
READINGS_FACTOR: Final = 50
READINGS_PER_BODY: Final = 2_000


def main(module: str, cases: int, seed: int) -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    native = _loaded(module)
    refused = _targets(module, cases, seed)
    if not refused:
        _storm(native, STORM_FACTOR * cases, seed)
        _readings(native, READINGS_FACTOR * cases, seed)
    return refused


def _loaded(module: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, module)
    assert spec is not None
    assert spec.loader is not None
    native = sys.modules[NAME] = importlib.util.module_from_spec(spec)  # before anything else imports the installed one
    spec.loader.exec_module(native)
    return native


def _targets(module: str, cases: int, seed: int) -> int:
    from fuzz import record_targets, runner

    assert [implementation.__file__ for implementation in record_targets.IMPLEMENTATIONS][1:] == [module]
    names = [target.__name__.replace("_", "-") for target in record_targets.TARGETS]
    began, done = time.monotonic(), 0
    while done < cases:
        step = min(PROGRESS_EVERY, cases - done)
        outcome = runner.run(names, first_seed=seed + done, cases=step)
        if outcome.failures:
            print(*outcome.failures, sep="\n\n")
            return 1
        done += step
        print(
            f"{done} cases of each of {', '.join(names)} from seed {seed} on, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return 0


def _storm(native: ModuleType, cases: int, seed: int) -> None:
    from fuzz.record_storm import Storm

    from barnabas.log.records import pure

    storm, began = Storm(native, pure, seed), time.monotonic()
    while storm.done < cases:
        storm.run(min(STORM_FACTOR * PROGRESS_EVERY, cases - storm.done))
        print(
            f"{storm.done} cases of the storm of seed {seed}, {storm.compared} compared, {time.monotonic() - began:.0f} s",
            flush=True,
        )


def _readings(native: ModuleType, cases: int, seed: int) -> None:
    from fuzz.record_storm import some_records

    rng, began, done, refused = Random(seed), time.monotonic(), 0, 0
    while done < cases:
        body, count = some_records(rng)
        refused += native.read_damaged(body, count, rng.getrandbits(63), READINGS_PER_BODY)
        done += READINGS_PER_BODY
        if done % (READINGS_FACTOR * PROGRESS_EVERY) == 0 or done >= cases:
            print(
                f"{done} damaged batches of seed {seed}, {refused} refused, {time.monotonic() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

"""Runs the targets of records with another build of the compiled module: sanitized.py MODULE CASES SEED."""

import importlib.util
import sys
import time
from pathlib import Path
from typing import Final

NAME: Final = "barnabas.log.records._native"
PROGRESS_EVERY: Final = 10_000


def main(module: str, cases: int, seed: int) -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    spec = importlib.util.spec_from_file_location(NAME, module)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = importlib.util.module_from_spec(spec)  # before anything else imports the installed one
    spec.loader.exec_module(sys.modules[NAME])
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

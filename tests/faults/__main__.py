"""`scripts/faults`: run one campaign and print what it found. Exit code 1: a promise was broken, and the history is kept."""

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from .campaign import run, table
from .injections import FAULTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default=",".join(FAULTS), help="comma list; default: all")
    parser.add_argument("--keep", action="store_true", help="keep logs and history of a good run too")
    options = parser.parse_args()
    kinds = [kind for kind in options.faults.split(",") if kind]
    unknown = set(kinds) - set(FAULTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    folder = Path(tempfile.mkdtemp(prefix="barnabas-faults-"))
    logging.basicConfig(
        filename=folder / "clients.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    print(f"seed {options.seed}, {options.seconds:g} s, {len(kinds)} kinds of faults, in {folder}", flush=True)
    outcome = run(
        folder / "cluster",
        seed=options.seed,
        seconds=options.seconds,
        kinds=kinds,
        say=lambda text: print(text, flush=True),
    )
    print("\n" + table(outcome))
    if outcome.report.violations or options.keep:
        outcome.history.write(folder / "history.jsonl")
        print(f"\nhistory and logs: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if outcome.report.violations else 0


if __name__ == "__main__":
    sys.exit(main())

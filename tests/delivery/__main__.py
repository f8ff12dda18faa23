"""`scripts/delivery`: each delivery semantics under kill -9 of its workers and brokers, and what it lost or did twice.

Exit code 1: a promise was broken, and the logs are kept.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from integration import postgres

from .campaign import run

CASES = (
    ("at-most-once", "sqlite"),
    ("at-least-once", "sqlite"),
    ("effectively-once", "sqlite"),
    ("effectively-once", "postgresql"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the logs of good runs too")
    parser.add_argument("--only", default="", help="cases whose name holds this, such as at-least or postgresql")
    options = parser.parse_args()
    failed = False
    for semantics, database in CASES:
        name = f"{semantics} {database}" if semantics == "effectively-once" else semantics
        if options.only not in name:
            continue
        if database == "postgresql" and postgres.find()[0] is None:
            print(f"{name}: left out: {postgres.find()[1]}", flush=True)
            continue
        folder = Path(tempfile.mkdtemp(prefix="barnabas-delivery-"))
        outcome = run(folder, semantics=semantics, kills=options.kills, seed=options.seed, database=database, say=_say)
        print(f"{outcome.line()}  {database if semantics == 'effectively-once' else ''}", flush=True)
        violations = outcome.violations()
        for violation in violations:
            print(f"  BROKEN: {violation}; logs: {folder}", flush=True)
        if options.keep:
            print(f"  logs: {folder}")
        elif not violations:
            shutil.rmtree(folder)
        failed |= bool(violations)
    return 1 if failed else 0


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

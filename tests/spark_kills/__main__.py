"""`scripts/spark-kills`: kill -9 of Spark's driver and of brokers in the middle of a job from topic to topic.

Exit code 1: a record was lost, or doubled where each should be there once; the logs are kept.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from .campaign import run

DELIVERIES = ("effectively_once", "at_least_once")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of the driver; some rounds kill a broker as well")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", choices=("", *DELIVERIES))
    parser.add_argument("--keep", action="store_true", help="keep the logs of good runs too")
    options = parser.parse_args()
    failed = False
    for delivery in DELIVERIES:
        if options.only not in ("", delivery):
            continue
        folder = Path(tempfile.mkdtemp(prefix="barnabas-spark-kills-"))
        outcome = run(folder, delivery=delivery, kills=options.kills, seed=options.seed, say=_say)
        print(outcome.line(), flush=True)
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

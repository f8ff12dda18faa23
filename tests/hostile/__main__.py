"""`scripts/hostile`: attacks on a cluster of real processes, with honest clients beside them.

Each attack has a cluster of its own. A promise that is broken fails the run (exit code 1); a goal that is missed is reported.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from .catalogue import ATTACKS, IN_CI
from .suite import run
from .verdict import HEAD, Measured, as_json, row


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stopped run must not leave brokers behind
    parser = argparse.ArgumentParser(prog="scripts/hostile", description=__doc__)
    parser.add_argument("--only", action="append", metavar="ATTACK", help="this attack (may be given again)")
    parser.add_argument("--ci", action="store_true", help="the attacks of tests/integration/test_hostile_suite.py")
    parser.add_argument("--list", action="store_true", help="name the attacks and stop")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--keep", action="store_true", help="keep the brokers' folders")
    options = parser.parse_args()
    if options.list:
        for attack in ATTACKS.values():
            print(f"{attack.name:<20} {attack.what}")
        return 0
    names = options.only or list(IN_CI if options.ci else ATTACKS)
    if unknown := [name for name in names if name not in ATTACKS]:
        parser.error(f"no attack {unknown[0]!r}; see --list")
    folder = Path(tempfile.mkdtemp(prefix="barnabas-hostile-"))
    measured: list[Measured] = []
    print(HEAD, flush=True)
    try:
        for number, name in enumerate(names):
            try:
                measured.append(asyncio.run(run(folder / str(number), ATTACKS[name])))
            except LookupError as error:
                print(f"{name:<20} not tried: {error}", flush=True)
            else:
                print(row(measured[-1]), flush=True)
    finally:
        if options.json is not None:
            options.json.write_text(as_json(measured) + "\n", encoding="utf-8")
        if options.keep:
            print(f"\nfolders of the brokers: {folder}")
        else:
            shutil.rmtree(folder)
    return 1 if any(one.violations for one in measured) else 0


if __name__ == "__main__":
    sys.exit(main())

"""`scripts/faults`: run one campaign and print what it found; `scripts/faults failover`: measure how long a fail-over takes.

Exit code 1: a promise was broken, and the history is kept.
"""

import argparse
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from . import failover
from .campaign import MakeLoad, plain_load, run
from .injections import FAULTS
from .report import as_json, table
from .transactions.injections import TRANSACTION_FAULTS
from .transactions.load import TransactionalLoad

LOADS: dict[str, tuple[MakeLoad, tuple[str, ...]]] = {
    "records": (plain_load, (*FAULTS,)),
    "transactions": (TransactionalLoad, (*FAULTS, *TRANSACTION_FAULTS)),
}


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM must leave neither brokers nor mounts
    arguments = sys.argv[1:]
    if arguments[:1] == ["failover"]:
        return measure_failover(arguments[1:])
    return rage(arguments)


def rage(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workload", choices=LOADS, default="records")
    parser.add_argument("--faults", help="comma list; default: all")
    parser.add_argument("--keep", action="store_true", help="keep logs and history of a good run too")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args(arguments)
    make, names = LOADS[options.workload]
    kinds = _known(parser, options.faults or ",".join(names), names)
    folder = _folder()
    print(f"seed {options.seed}, {options.seconds:g} s, {len(kinds)} kinds of faults, in {folder}", flush=True)
    outcome = run(folder / "cluster", seed=options.seed, seconds=options.seconds, kinds=kinds, say=_say, make=make)
    print("\n" + table(outcome))
    if options.json is not None:
        options.json.write_text(as_json(outcome) + "\n", encoding="utf-8")
    if outcome.report.violations or options.keep:
        outcome.history.write(folder / "history.jsonl")
        print(f"\nhistory and logs: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if outcome.report.violations else 0


def measure_failover(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults failover", description=failover.__doc__)
    parser.add_argument("--kills", type=int, default=50, help="how often each kind of event is repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", default=",".join(failover.EVENTS), help="comma list; default: all")
    parser.add_argument("--calls", default=",".join(failover.HANGS), help="what hangs in hang_*, in turn; default: all")
    parser.add_argument("--no-flush", action="store_true", help="hang_* without flush.messages=1")
    parser.add_argument("--keep", action="store_true", help="keep the brokers' logs")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args(arguments)
    kinds = _known(parser, options.events, failover.EVENTS)
    folder = _folder()
    figures = failover.run(
        folder / "cluster",
        kinds=kinds,
        times=options.kills,
        seed=options.seed,
        say=_say,
        calls=_known(parser, options.calls, failover.HANGS),
        flushes_first=not options.no_flush,
    )
    print("\n" + failover.table(figures))
    if options.json is not None:
        options.json.write_text(failover.as_json(figures) + "\n", encoding="utf-8")
    if options.keep:
        print(f"\nlogs: {folder}")
    else:
        shutil.rmtree(folder)
    return 0


def _known(parser: argparse.ArgumentParser, chosen: str, names: Collection[str]) -> list[str]:
    kinds = [kind for kind in chosen.split(",") if kind]
    unknown = set(kinds) - set(names)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    return kinds


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="barnabas-faults-"))
    logging.basicConfig(
        filename=folder / "clients.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    return folder


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

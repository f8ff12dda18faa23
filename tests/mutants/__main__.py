"""`scripts/mutants`: make small changes in the product, one at a time, and report which of them the tests find.

A mutant lives in a copy of the tree. Only tests and simulations that reach its line are run, in forked children: first the
module's own unit tests, then those of its package. What survives these is checked by mypy, as each commit is, and given to the
simulated machines of the package. What is left is given to the other tests, the scenarios, the other machines and whole
simulated clusters with new seeds, until one fails or the time is over. What survives is printed with the line that was changed:
it is equivalent to the original, or it lacks a test.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path, PurePosixPath

from . import reach
from .forked import run_forked, warm
from .running import CLUSTER, MACHINES, first_type_error, run_machine, run_tests
from .trees import PACKAGES, Mutant, equivalents, make_copy, planted, sample, sites

PURE_SEEDS = 60  # of each machine
QUICK_SEEDS = 20  # of each machine, with --quick
CLUSTER_SEEDS = 40
BATCH = 10  # seeds of one machine, before the next has its turn
# A batch that takes so many times longer than usual hangs. The floor is for a busy machine.
PATIENCE = 10
LEAST_PATIENCE_S = 30.0
MOST_S_OF_TYPES = 600.0  # the first time, without a cache

_copies: "SimpleQueue[Path]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    mutant: Mutant
    found_by: str  # "" for one that survived
    test: str  # that failed
    seconds: float
    reached_by: int  # tests and machines

    def as_line(self) -> str:
        item = self.mutant.mutation
        return json.dumps({
            "mutant": str(self.mutant), "shown": self.mutant.shown(), "start": item.start, "kind": item.kind,
            "found_by": self.found_by, "test": self.test, "seconds": round(self.seconds, 1), "reached_by": self.reached_by,
        })  # fmt: skip


def judge(mutant: Mutant, known: reach.ReachMap, folder: Path, limit_s: float, seeds: int) -> Verdict:
    began = time.monotonic()
    names = known.reaching(mutant.module, mutant.mutation.line)

    def left_s() -> float:
        return limit_s - (time.monotonic() - began)

    found_by, test = "", ""
    with planted(mutant, folder):
        for found_by, tests in _stages(mutant, names):  # noqa: B007
            test = _first_failure({name: known.seconds[name] for name in tests}, folder, left_s())
            if test:
                break
        else:
            found_by, test = "types", first_type_error(folder, LEAST_PATIENCE_S + max(0.0, left_s()))
        if not test:
            found_by = "simulation"
            machines = [name for name in names if not _is_test(name)]
            test = _simulated(machines, known, folder, limit_s=limit_s, began=began, seeds=seeds)
    return Verdict(
        mutant=mutant,
        found_by=found_by if test else "",
        test=test,
        seconds=time.monotonic() - began,
        reached_by=len(names),
    )


def _is_test(name: str) -> bool:
    return name not in MACHINES and name != CLUSTER


def _stages(mutant: Mutant, names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Names stay in their order: quick ones first."""
    own = f"/test_{PurePosixPath(mutant.module).stem}"
    package = f"tests/unit/{mutant.package}/"
    tests = [name for name in names if _is_test(name)]
    for title, part in (
        ("its unit tests", own), (f"unit tests of {mutant.package}", package), ("other tests", ""),
    ):  # fmt: skip
        chosen = [name for name in tests if part in name]
        tests = [name for name in tests if part not in name]
        if chosen:
            yield title, chosen


def _first_failure(usual_s: dict[str, float], folder: Path, limit_s: float) -> str:
    """Tests that are stopped by the limit have found nothing; a process that ends early has."""
    deadline = time.monotonic() + limit_s
    if limit_s <= 0:
        return ""
    answer = run_forked(partial(run_tests, usual_s), folder, limit_s)
    if answer is None:
        return "the end of the process" if time.monotonic() < deadline else ""
    return str(answer)


def _simulated(
    names: list[str], known: reach.ReachMap, folder: Path, *, limit_s: float, began: float, seeds: int
) -> str:
    for first in range(1, seeds + 1, BATCH):
        for name in names:
            last = first + BATCH - 1
            if name == CLUSTER and last > CLUSTER_SEEDS:
                continue
            left_s = limit_s - (time.monotonic() - began)
            patience_s = max(LEAST_PATIENCE_S, PATIENCE * BATCH * known.seconds[name])
            if left_s <= 0:
                return ""
            answer = run_forked(partial(run_machine, name, first, last), folder, min(left_s, patience_s))
            if answer is None and patience_s < left_s:
                return f"simulation: {name}, a seed from {first} to {last} hangs"
            if answer:
                return str(answer)
    return ""


# --- all of them -----------------------------------------------------------------------------------------------------


def _be_worker(copies: "SimpleQueue[Path]") -> None:
    global _copies
    _copies = copies


def _in_copy_measure(item: tuple[str, str]) -> str:
    copy = _copies.get()
    try:
        reach.measure(*item, copy)
    finally:
        _copies.put(copy)
    return item[1]


def _in_copy_judge(mutant: Mutant, measured: tuple[tuple[str, str], ...], limit_s: float, seeds: int) -> Verdict:
    copy = _copies.get()
    try:
        return judge(mutant, _known(measured), copy, limit_s, seeds)
    finally:
        _copies.put(copy)


def _in_copy_try(measured: tuple[tuple[str, str], ...], limit_s: float) -> str:
    """The tree as it is, with the quickest test of every file."""
    copy, known = _copies.get(), _known(measured)
    try:
        if error := first_type_error(copy, MOST_S_OF_TYPES):
            return error
        quickest = {
            name.split("::")[0]: name for name in sorted(known.seconds, key=known.seconds.__getitem__, reverse=True)
        }
        return _first_failure(
            {name: known.seconds[name] for name in quickest.values() if _is_test(name)}, copy, limit_s
        )
    finally:
        _copies.put(copy)


@cache
def _known(measured: tuple[tuple[str, str], ...]) -> reach.ReachMap:
    return reach.load(list(measured))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the choice among all possible changes")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each mutant")
    parser.add_argument("--packages", default=",".join(PACKAGES), help="comma list of folders or modules")
    parser.add_argument("--again", type=Path, help="only what survived according to this file of --json")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="unit tests and simulated machines of the package, and tests of defaults, only",
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="show what would be changed, and end")
    parser.add_argument("--json", type=Path, help="append a line for every mutant to this file")
    options = parser.parse_args()
    possible = sites(options.packages.split(","))
    known = equivalents()
    modules = {module for module, _, _ in known}
    every = [mutant for mutant in possible if mutant.module not in modules or mutant.identity() not in known]
    if options.again:
        chosen = _survivors(options.again, every)
    else:
        chosen = sample(every, options.count, options.seed)
    print(
        f"{len(chosen)} of {len(every)} possible mutants, seed {options.seed}, {options.limit:g} s each;"
        f" {len(possible) - len(every)} known equivalents are left out",
        flush=True,
    )
    if options.list:
        for mutant in chosen:
            print(mutant.shown())
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        verdicts = _judge_all(chosen, Path(name), options)
    print(_summary(verdicts))
    return 0


def _survivors(path: Path, every: list[Mutant]) -> list[Mutant]:
    """By where they are: for use after tests were added, not after the product was changed."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = {(line["mutant"], line["start"], line["shown"]) for line in lines if not line["found_by"]}
    wanted = {(name, start) for name, start, _ in names}
    near = [mutant for mutant in every if (str(mutant), mutant.mutation.start) in wanted]
    return [mutant for mutant in near if (str(mutant), mutant.mutation.start, mutant.shown()) in names]


def _judge_all(chosen: list[Mutant], folder: Path, options: argparse.Namespace) -> list[Verdict]:
    warm()
    context = multiprocessing.get_context("fork")
    copies: SimpleQueue[Path] = context.SimpleQueue()
    for number in range(options.jobs):
        copy = folder / str(number)
        make_copy(copy)
        copies.put(copy)
    reach.CACHE.mkdir(exist_ok=True)
    reach.forget_other_trees()
    verdicts = []
    packages = tuple(sorted({mutant.package for mutant in chosen}))
    modules = sorted({mutant.module for mutant in chosen})
    with context.Pool(options.jobs, _be_worker, (copies,)) as pool:
        for is_first_ring in (True, False):
            is_last = options.quick or not is_first_ring
            began, measured = (
                time.monotonic(),
                tuple(reach.measurements(modules, packages, is_first_ring=is_first_ring)),
            )
            for _ in pool.imap_unordered(_in_copy_measure, measured):
                pass
            print(f"{time.monotonic() - began:5.0f} s  to measure which tests reach which lines", flush=True)
            if failed := pool.apply(_in_copy_try, (measured, options.limit)):
                sys.exit(f"the tree itself fails: {failed}. A mutant means nothing before it passes")
            left = []
            seeds = QUICK_SEEDS if options.quick else PURE_SEEDS
            work = partial(_in_copy_judge, measured=measured, limit_s=options.limit, seeds=seeds)
            for verdict in pool.imap_unordered(work, chosen):
                if verdict.found_by or is_last:
                    verdicts.append(verdict)
                    _tell(verdict, options.json)
                else:
                    left.append(verdict.mutant)
            chosen = left
            if is_last or not left:
                break
    return verdicts


def _tell(verdict: Verdict, path: Path | None) -> None:
    outcome = f"found by {verdict.found_by}" if verdict.found_by else "SURVIVED"
    if not verdict.reached_by:
        outcome = "SURVIVED, no test reaches it"
    print(f"{verdict.seconds:5.0f} s  {outcome:32} {verdict.mutant.shown()}", flush=True)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(verdict.as_line() + "\n")


def _summary(verdicts: list[Verdict]) -> str:
    total, found = Counter[str](), Counter[str]()
    for verdict in verdicts:
        for group in (verdict.mutant.package, "all"):
            total[group] += 1
            found[group] += bool(verdict.found_by)
    by = Counter(verdict.found_by.split(" of ")[0] for verdict in verdicts if verdict.found_by)
    lines = [
        f"{group:16} {found[group]:4} of {total[group]:4} found, {found[group] / total[group]:.0%}" for group in total
    ]
    return "\n".join([*lines, "by " + ", ".join(f"{name}: {count}" for name, count in by.most_common())])


if __name__ == "__main__":
    sys.exit(main())

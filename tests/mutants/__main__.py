"""`scripts/mutants`: make small changes in the product, one at a time, and report which of them the tests find.

A mutant lives in a copy of the tree. Its checks go from quick to slow, until one fails or the time is over: the module's own
unit tests, those of its package, the scenarios, the machines that are simulated alone, whole simulated clusters. What survives is
printed with the line that was changed: it is equivalent to the original, or it lacks a test.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .mutations import Mutation, mutations_of

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("log", "kraft", "consumer_groups")
PARTS = ("scripts/barnabas", "log", "kraft", "consumer_groups", "net", "spark_connector", "tests", "pyproject.toml")
PURE_SEEDS = 40  # of each machine, in turn
LAST_CLUSTER_SEED = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    module: Path  # relative to the root
    mutation: Mutation

    def __str__(self) -> str:
        return f"{self.module}:{self.mutation.line} {self.mutation.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    mutant: Mutant
    found_by: str  # "" for one that survived
    seconds: float


def sites(packages: list[str]) -> list[Mutant]:
    found = []
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            found += [Mutant(module=path.relative_to(ROOT), mutation=item) for item in mutations_of(source)]
    return found


def make_copy(folder: Path) -> None:
    """The tree, and a package `barnabas` that shows it under its installed name."""
    for part in PARTS:
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    package = folder / "path" / "barnabas"
    package.mkdir(parents=True)
    for entry in (folder / "scripts" / "barnabas").iterdir():
        (package / entry.name).symlink_to(entry)
    for part in (*PACKAGES, "net", "spark_connector"):
        (package / part).symlink_to(folder / part)


def checks(mutant: Mutant, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(name, command), quick ones first."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=60"]
    place = mutant.module.parent
    own = folder / "tests" / "unit" / place / f"test_{mutant.module.stem}.py"
    if own.exists():
        yield "its unit tests", [*pytest, str(own)]
    yield f"unit tests of {place}", [*pytest, str(folder / "tests" / "unit" / place)]
    yield "scenarios", [*pytest, str(folder / "tests" / "scenarios")]
    if place != Path(mutant.module.parts[0]):
        yield f"unit tests of {place.parent}", [*pytest, str(folder / "tests" / "unit" / place.parent)]
    yield "simulation", [sys.executable, "-m", "mutants.search", str(PURE_SEEDS), str(LAST_CLUSTER_SEED)]


def judge(mutant: Mutant | None, folder: Path, limit_s: float) -> Verdict:
    """With None the tree as it is, which must pass."""
    began = time.monotonic()
    if mutant is not None:
        path = folder / mutant.module
        source = path.read_text(encoding="utf-8")
        path.write_text(mutant.mutation.applied(source), encoding="utf-8")
    subject = mutant or Mutant(
        module=Path("log/config.py"), mutation=Mutation(kind="none", line=0, start=0, end=0, text="")
    )
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'path'}:{folder / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for name, command in checks(subject, folder):
            left_s = limit_s - (time.monotonic() - began)
            if left_s <= 0:
                break
            if _fails(command, folder, environment, left_s):
                return Verdict(mutant=subject, found_by=name, seconds=time.monotonic() - began)
        return Verdict(mutant=subject, found_by="", seconds=time.monotonic() - began)
    finally:
        if mutant is not None:
            path.write_text(source, encoding="utf-8")


def _fails(command: list[str], folder: Path, environment: dict[str, str], limit_s: float) -> bool:
    """A check that is stopped by the limit has found nothing."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s) not in (0, 5)  # 5: pytest found no tests
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the choice among all possible changes")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each mutant")
    parser.add_argument("--packages", default=",".join(PACKAGES), help="comma list of folders or sub-folders")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="show what would be changed, and end")
    parser.add_argument("--json", type=Path, help="append a line for every mutant to this file")
    options = parser.parse_args()
    every = sites(options.packages.split(","))
    chosen = Random(options.seed).sample(every, min(options.count, len(every)))
    print(f"{len(chosen)} of {len(every)} possible mutants, seed {options.seed}, {options.limit:g} s each", flush=True)
    if options.list:
        for mutant in chosen:
            print(_shown(mutant))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        verdicts = _judge_all(chosen, Path(name), options)
    print(_summary(verdicts))
    return 0


def _judge_all(chosen: list[Mutant], folder: Path, options: argparse.Namespace) -> list[Verdict]:
    copies = [folder / str(number) for number in range(options.jobs)]
    for copy in copies:
        make_copy(copy)
    baseline = judge(None, copies[0], options.limit)
    if baseline.found_by:
        sys.exit(f"the tree itself fails: {baseline.found_by}. A mutant means nothing before it passes")
    free, verdicts = list(copies), list[Verdict]()

    def one(mutant: Mutant) -> None:
        copy = free.pop()
        try:
            verdict = judge(mutant, copy, options.limit)
        finally:
            free.append(copy)
        verdicts.append(verdict)
        _tell(verdict, options.json)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, chosen))
    return verdicts


def _tell(verdict: Verdict, path: Path | None) -> None:
    outcome = f"found by {verdict.found_by}" if verdict.found_by else "SURVIVED"
    print(f"{verdict.seconds:5.0f} s  {outcome:32} {_shown(verdict.mutant)}", flush=True)
    if path is not None:
        line = {"mutant": str(verdict.mutant), "found_by": verdict.found_by, "seconds": round(verdict.seconds, 1)}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _shown(mutant: Mutant) -> str:
    source = (ROOT / mutant.module).read_text(encoding="utf-8")
    item = mutant.mutation
    before, after = (" ".join(text.split())[:60] for text in (source[item.start : item.end], item.text))
    return f"{mutant}: {before!r} -> {after!r}"


def _summary(verdicts: list[Verdict]) -> str:
    total, found = Counter[str](), Counter[str]()
    for verdict in verdicts:
        for group in (verdict.mutant.module.parts[0], "all"):
            total[group] += 1
            found[group] += bool(verdict.found_by)
    by = Counter(verdict.found_by.split(" of ")[0] for verdict in verdicts if verdict.found_by)
    lines = [
        f"{group:16} {found[group]:4} of {total[group]:4} found, {found[group] / total[group]:.0%}" for group in total
    ]
    return "\n".join([*lines, "by " + ", ".join(f"{name}: {count}" for name, count in by.most_common())])


if __name__ == "__main__":
    sys.exit(main())

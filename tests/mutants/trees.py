"""A copy of the tree in which one mutant at a time is planted, and the places where mutants are possible."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from .mutations import Mutation, compiles, mutations_of

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("log", "kraft", "consumer_groups")  # without `--packages`
MEASURED = (*PACKAGES, "net")
PARTS = (
    *MEASURED, "spark_connector", "tests", "pyproject.toml",
    "scripts/barnabas", "scripts/document_keys.py", "docs/configuration.md",
)  # fmt: skip
TYPES_CACHE = ".mypy_cache"
EQUIVALENTS = Path(__file__).with_name("equivalents.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    module: str  # relative to the root, as in log/segment/segment.py
    mutation: Mutation

    def __str__(self) -> str:
        return f"{self.module}:{self.mutation.line} {self.mutation.kind}"

    def shown(self) -> str:
        """With the text before and after."""
        before = _source(self.module)[self.mutation.start : self.mutation.end]
        return f"{self}: {_brief(before)!r} -> {_brief(self.mutation.text)!r}"

    def identity(self) -> tuple[str, str, str]:
        """As in the file of equivalents."""
        return self.module, *self.mutation.lines(_source(self.module))

    @property
    def package(self) -> str:
        """Of net/, whose tests take long, each folder by itself."""
        parts = self.module.split("/")
        return "/".join(parts[:2]) if parts[0] == "net" and len(parts) > 2 else parts[0]


@cache
def _source(module: str) -> str:
    return (ROOT / module).read_text(encoding="utf-8")


def equivalents() -> set[tuple[str, str, str]]:
    """Changes that no test can find: module, text before, text after. The file has the reason of each."""
    found = set()
    for block in EQUIVALENTS.read_text(encoding="utf-8").strip().split("\n\n")[1:]:  # the first one explains the file
        module, before, after, reason = block.splitlines()
        assert before.startswith("- ") and after.startswith("+ ") and reason.startswith("= "), block
        found.add((module, before[2:], after[2:]))
    return found


def _brief(text: str) -> str:
    return " ".join(text.split())[:60]


def sites(packages: list[str]) -> list[Mutant]:
    """`packages` are folders or modules, relative to the root."""
    found = []
    for package in packages:
        place = ROOT / package
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            module = path.relative_to(ROOT).as_posix()
            found += [Mutant(module=module, mutation=item) for item in mutations_of(source)]
    return found


def sample(every: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Of those that compile. A mutant's place in the order depends on its own lines, so that a later tree has mostly the same
    sample for a seed."""

    def place(mutant: Mutant) -> tuple[bytes, int]:
        words = str(seed), mutant.mutation.kind, *mutant.identity()
        return hashlib.sha256("\0".join(words).encode()).digest(), mutant.mutation.start

    return list(islice((mutant for mutant in sorted(every, key=place) if _can_run(mutant)), count))


def _can_run(mutant: Mutant) -> bool:
    return compiles(mutant.mutation.applied(_source(mutant.module)))


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
    types = folder / "build" / "namespace"
    types.mkdir(parents=True)
    (types / "barnabas").symlink_to("../..")
    if (ROOT / TYPES_CACHE).exists():  # else the first check of types in this copy takes a minute
        shutil.copytree(ROOT / TYPES_CACHE, folder / TYPES_CACHE)
    for part in (*MEASURED, "spark_connector"):
        (package / part).symlink_to(folder / part)


@contextmanager
def planted(mutant: Mutant, folder: Path) -> Iterator[None]:
    """The copy's compiled modules stay valid: the original comes back with its time, and the mutant has another one."""
    path = folder / mutant.module
    source, times = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(mutant.mutation.applied(source), encoding="utf-8")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns - 10_000_000_000))
    try:
        yield
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def digest_of(paths: list[Path]) -> str:
    """Of the names and contents of these files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]

"""Which tests and simulations reach which lines; measured once and kept in `.mutants/` at the root.

A measurement is of one test file. It is kept while the product, what the tests of its folder share, and that file are as they
were.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path, PurePosixPath

from .forked import run_forked
from .running import CLUSTER, MACHINES, reach_of_machine, reach_of_tests
from .trees import MEASURED, PACKAGES, ROOT, digest_of

CACHE = ROOT / ".mutants"
# The second ring is for what survives the unit tests of the packages that are changed: other tests that reach them in the same
# process, and simulations, which are measured as machines and run with more seeds than in tests/simulation.
OTHER_TESTS = ("unit/net/test_*.py", "unit/net/handlers/test_*.py", "scenarios/test_*.py")
# Tests of all fields and their defaults: what runs when a module is imported. They are quick and belong to the first ring.
OF_DEFAULTS = (
    "unit/net/test_recorded_layouts.py", "unit/net/test_core_defaults.py", "unit/kraft/test_recorded_records.py",
    "unit/scripts/test_document_keys.py",
)  # fmt: skip
# The words of the lowest layer are tested where the layers above use them: by unit tests of any package that import the module.
MOST_OTHER_FILES = 6  # for one module, those named like it first: half of the tests import the errors
LIMIT_S = 300.0  # for one test file
KEPT_S = 86_400.0  # measurements of other trees: another run may need them, and they cost minutes
# What is simulated alone is quick enough for the first ring. The machines of other packages are in the second one.
OWN_MACHINES = {
    "log": ("partition", "log"),
    "kraft": ("journal", "controller", "quorum"),
    "consumer_groups": ("groups",),
}
SEEDS = 2  # of each machine; what they reach does not grow much after the first
CLUSTER_SEEDS = 1


@dataclass(slots=True)
class ReachMap:
    seconds: dict[str, float] = field(default_factory=dict)
    _by_line: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    _by_module: dict[str, set[str]] = field(default_factory=dict)
    _at_import: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def add(self, measured: dict[str, dict[str, object]]) -> None:
        for name, one in measured.items():
            seconds, lines = one["seconds"], one["lines"]
            assert isinstance(seconds, float) and isinstance(lines, dict)
            if not name:
                for place in ((module, line) for module, numbers in lines.items() for line in numbers):
                    self._at_import.setdefault(place, set()).update(filter(None, measured))
                continue
            self.seconds[name] = seconds
            for module, numbers in lines.items():
                self._by_module.setdefault(module, set()).add(name)
                for line in numbers:
                    self._by_line.setdefault((module, line), []).append(name)

    def reaching(self, module: str, line: int) -> list[str]:
        """Names of tests and of machines. For a line that runs at import: what reaches any line of its module in a call (or,
        where the module has nothing that is called, what imports it), and the tests of defaults."""
        names = set(self._by_line.get((module, line), ()))
        if (module, line) in self._at_import:
            importing = self._at_import[module, line]
            names |= self._by_module.get(module) or importing
            names |= {name for name in importing if name.split("::")[0].removeprefix("tests/") in OF_DEFAULTS}
        return sorted(names, key=lambda name: (self.seconds[name], name))


@cache
def _product_digest() -> str:
    return digest_of([path for package in MEASURED for path in (ROOT / package).rglob("*.py")])


@cache
def _shared_by_tests(folder: str) -> str:
    """The digest of what the tests of a folder (`unit/log`, `scenarios`) or the simulations share."""
    return digest_of([path for path in (ROOT / "tests" / folder).rglob("*.py") if not path.name.startswith("test_")])


def _key(name: str) -> str:
    """Of what is measured of a test file, or of a machine."""
    if not name.endswith(".py"):
        return f"{name}-{_product_digest()}-{_shared_by_tests('simulation')}"
    folder = "/".join(name.split("/")[1 : 3 if "/unit/" in name else 2])
    return f"{digest_of([ROOT / name])}-{_product_digest()}-{_shared_by_tests(folder)}"


def _test_files(patterns: tuple[str, ...]) -> list[str]:
    """Files that try seeds of a simulation by the hundred are left out: the machines do that, in the second ring."""
    found = {path for pattern in patterns for path in (ROOT / "tests").glob(pattern)}
    return sorted(path.relative_to(ROOT).as_posix() for path in found if not path.stem.endswith("simulation"))


def importing(modules: Iterable[str], files: Mapping[str, str]) -> set[str]:
    """Of these test files, by name with their text, those that are asked about a module of another package."""
    found = set[str]()
    for module in modules:
        path = PurePosixPath(module)
        imported = re.compile(rf"from barnabas\.{'[.]'.join(path.with_suffix('').parts)} import")
        names = [name for name, text in files.items() if imported.search(text)]
        names.sort(key=lambda name: (path.stem not in name, len(files[name]), name))
        found.update(names[:MOST_OTHER_FILES])
    return found


@cache
def _unit_tests() -> Mapping[str, str]:
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in _test_files(("unit/**/test_*.py",))}


def measurements(modules: Iterable[str], packages: tuple[str, ...], *, is_first_ring: bool) -> list[tuple[str, str]]:
    """(key of what is kept, name of a test file or a machine)."""
    own = _test_files((*(f"unit/{package}/**/test_*.py" for package in packages), *OF_DEFAULTS))
    own = sorted({*own, *importing(modules, _unit_tests())})
    every = _test_files((*(f"unit/{package}/**/test_*.py" for package in PACKAGES), *OTHER_TESTS))
    files = own if is_first_ring else [name for name in every if name not in own]
    near = tuple(machine for package in packages for machine in OWN_MACHINES.get(package, ()))
    machines = near if is_first_ring else tuple(name for name in (*MACHINES, CLUSTER) if name not in near)
    return [(_key(name), name) for name in (*machines, *files)]


def measure(key: str, name: str, folder: Path) -> None:
    """In a copy of the tree. A measurement that is kept already costs nothing."""
    path = CACHE / f"{key}.json"
    if path.exists():
        return
    if name.endswith(".py"):
        work = partial(reach_of_tests, name)
    else:
        work = partial(reach_of_machine, name, CLUSTER_SEEDS if name == CLUSTER else SEEDS)
    measured = run_forked(work, folder, LIMIT_S)
    if measured is None:
        print(f"{name} took more than {LIMIT_S:g} s or ended its process: it is left out", flush=True)
    written = path.with_suffix(".new")  # an interrupted run leaves no half of a file under its name
    written.write_text(json.dumps(measured or {}), encoding="utf-8")
    written.replace(path)


def load(measured: list[tuple[str, str]]) -> ReachMap:
    found = ReachMap()
    for key, _ in measured:
        found.add(json.loads((CACHE / f"{key}.json").read_text(encoding="utf-8")))
    return found


def forget_other_trees() -> None:
    every = (*MACHINES, CLUSTER, *_test_files(("unit/**/test_*.py", *OTHER_TESTS)))
    names = {f"{_key(name)}.json" for name in every}
    for path in CACHE.iterdir():
        if path.name not in names and time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink()

"""What a forked child does: it runs chosen tests, or simulations, of the tree in its working directory.

Imports of the tree stand within functions: the parent, which imports this module, must not have imported the tree.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from coverage import Coverage

from .trees import MEASURED

# A test that takes so many times longer than usual hangs. The floor is for a busy machine.
PATIENCE = 20
LEAST_PATIENCE_S = 5.0
# The plugins are imported already, by the parent.
QUIET = ["-q", "-p", "no:cacheprovider", "--tb=no", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
MACHINES = ("partition", "log", "journal", "controller", "groups", "quorum")
CLUSTER = "cluster"


@dataclass(slots=True, eq=False)
class ChosenTests:
    """A plugin of pytest: of what was collected, these tests run, in this order; the first failure is remembered."""

    usual_s: dict[str, float]
    failed: str = ""
    _order: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._order = {name: number for number, name in enumerate(self.usual_s)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )
        for item in items:
            patience_s = max(LEAST_PATIENCE_S, PATIENCE * self.usual_s[item.nodeid])
            item.add_marker(pytest.mark.timeout(patience_s), append=False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = f"import of {report.nodeid}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def run_tests(usual_s: dict[str, float]) -> str:
    """The first that fails, or nothing."""
    sys.dont_write_bytecode = True
    _quick_hypothesis()
    files = list(dict.fromkeys(name.split("::")[0] for name in usual_s))
    chosen = ChosenTests(usual_s)
    code = pytest.main([*QUIET, "-x", *files], plugins=[chosen])
    assert code is not pytest.ExitCode.INTERNAL_ERROR or chosen.failed, "a fault of this tool"
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return chosen.failed or f"exit code {int(code)} of pytest"
    return ""


def _quick_hypothesis() -> None:
    """The same examples each time, and none of the work that makes a failure readable."""
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        phases=[Phase.explicit, Phase.generate],
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")


def first_type_error(folder: Path, limit_s: float) -> str:
    """Of mypy, which every commit must pass; nothing also where it takes too long."""
    packages = [argument for package in MEASURED for argument in ("-p", f"barnabas.{package}")]
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *packages]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return ""
    return next((line for line in (ran.stdout + ran.stderr).splitlines() if "error" in line), "")


def run_machine(name: str, first_seed: int, last_seed: int) -> str:
    """The first seed that fails, or nothing."""
    sys.dont_write_bytecode = True
    logging.getLogger("barnabas").setLevel(logging.CRITICAL)
    for seed in range(first_seed, last_seed + 1):
        try:
            if name == CLUSTER:
                from simulation.history import run_history

                assert not run_history(seed).failure
            else:
                from simulation.pure_machines import run

                run(name, seed)
        except Exception:
            return f"simulation: {name}, seed {seed}"
    return ""


# --- which lines they reach ------------------------------------------------------------------------------------------

Lines = dict[str, list[int]]  # of a module, relative to the root of the tree


@dataclass(slots=True, eq=False)
class Reach:
    """A plugin of pytest: what each test took, whether it passed, and the lines of the product that it executed."""

    coverage: Coverage
    seconds: dict[str, float] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.monotonic() - began, 4)
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


def _coverage() -> Coverage:
    folder = Path.cwd()
    coverage = Coverage(
        data_file=None, config_file=False, include=[str(folder / package / "*") for package in MEASURED]
    )
    coverage.start()
    return coverage


def _lines_by_context(coverage: Coverage) -> dict[str, Lines]:
    coverage.stop()
    data, found = coverage.get_data(), dict[str, Lines]()
    for path in data.measured_files():
        module = os.path.relpath(path)
        for line, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                found.setdefault(context, {}).setdefault(module, []).append(line)
    return found


def reach_of_tests(test_file: str) -> dict[str, dict[str, object]]:
    """By test: `seconds` and `lines`. The name "" has the lines that run at import. Tests that fail or skip are left out."""
    _quick_hypothesis()
    coverage = _coverage()
    reach = Reach(coverage)
    pytest.main([*QUIET, test_file], plugins=[reach])
    by_context = _lines_by_context(coverage)
    return {
        name: {"seconds": reach.seconds.get(name, 0.0), "lines": lines}
        for name, lines in by_context.items()
        if name not in reach.failed
    }


def reach_of_machine(name: str, seeds: int) -> dict[str, dict[str, object]]:
    coverage = _coverage()
    import simulation.history
    import simulation.pure_machines  # noqa: F401 (what runs at import belongs to no machine)

    coverage.switch_context(name)
    began = time.monotonic()
    failure = run_machine(name, 1, seeds)
    seconds = (time.monotonic() - began) / seeds
    return {name: {"seconds": seconds, "lines": _lines_by_context(coverage).get(name, {})}} if not failure else {}

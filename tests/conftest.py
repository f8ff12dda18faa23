"""What the whole test suite shares: lines for the summary of a run, and how tests are shared out among processes."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import two_ends

# How long an example takes says how busy the machine is, and nothing about the code.
hypothesis.settings.register_profile("barnabas", deadline=None)
hypothesis.settings.load_profile("barnabas")

_LINE = "report line"


@pytest.fixture
def report_line(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say something in the summary at the end of the run, also when the test passes, and from whichever process runs it."""
    return lambda line: request.node.user_properties.append((_LINE, line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, line in report.user_properties:
                    if name == _LINE:
                        terminalreporter.write_line(line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return two_ends.TwoEnds(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)  # before xdist reads the groups, which it does first of all
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    if hasattr(config, "workerinput"):
        two_ends.arrange(items, float(config.getini("timeout")))
    yield


def pytest_collection_finish() -> None:
    """What was collected stays to the end: simulations, which begin with a garbage collection, need not walk it each time."""
    gc.collect()
    gc.freeze()

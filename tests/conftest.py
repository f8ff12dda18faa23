"""What the whole test suite shares: lines for the summary of a run, and how tests are shared out among processes."""

import asyncio
import gc
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import two_ends
from _pytest.unraisableexception import collect_unraisable

# Until all tests are collected (`pytest_collection_finish`): what is made until then stays, and each collection walks all of it.
gc.disable()

# A shell starts what runs in the background without interrupts, which every child inherits; tests interrupt some of these.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is, and nothing about the code.
hypothesis.settings.register_profile("barnabas", deadline=None)
hypothesis.settings.load_profile("barnabas")

_LINE = "report line"
_close_loop = asyncio.SelectorEventLoop.close


def _close_loop_and_tell(loop: Any) -> None:
    """Connections that a test leaves open are its error. The garbage collector would find them in whatever test it runs."""
    left = [transport for transport in getattr(loop, "_transports", {}).values() if transport._sock is not None]
    names = sorted(
        f"{transport.get_extra_info('sockname')} to {transport.get_extra_info('peername')}, {transport.get_protocol()!r}"
        for transport in left
    )
    for transport in left:
        transport._sock.close()
        transport._sock = None  # what its finalizer warns of
    _close_loop(loop)
    if names:
        warnings.warn(
            f"connections that no one closed before their loop: {'; '.join(names)}", ResourceWarning, stacklevel=2
        )


asyncio.SelectorEventLoop.close = _close_loop_and_tell  # type: ignore[method-assign]


@pytest.fixture
def report_line(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say something in the summary at the end of the run, also when the test passes, and from whichever process runs it."""
    return lambda line: request.node.user_properties.append((_LINE, line))


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    if two_ends.is_left_out(item, time.time()):
        pytest.skip(two_ends.LEFT_OUT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if left_out := [report.nodeid for report in skipped if two_ends.LEFT_OUT in str(report.longrepr)]:
        terminalreporter.write_line(f"{two_ends.LEFT_OUT}: {len(left_out)} tests were left out")
        for name in left_out:
            terminalreporter.write_line(f"  {name}")
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
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """What a test leaves open in a cycle fails the test in which the collector runs. With this variable, it fails its own."""
    yield
    if os.environ.get("BARNABAS_COLLECT_AFTER_EACH_TEST") == "1":
        gc.collect()
        collect_unraisable(item.config)

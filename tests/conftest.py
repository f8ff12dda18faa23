"""What the whole test suite shares: lines that tests want to see in the summary of a run, also when they pass."""

from collections.abc import Callable

import pytest

_LINES: list[str] = []


@pytest.fixture
def report_line() -> Callable[[str], None]:
    """Say something in the summary at the end of the run."""
    return _LINES.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _LINES:
        terminalreporter.write_line(line)

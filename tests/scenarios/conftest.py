"""`pytest tests/scenarios --rewrite`: write what is printed now into the transcripts."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what the scenarios print now; read the diff")

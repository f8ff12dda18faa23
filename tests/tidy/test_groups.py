"""Tests that share a fixture run in one process, in the order of their file (`tests/two_ends.py`), with the pytest installed."""

import pytest


@pytest.fixture(scope="module")
def shared() -> None:
    """What makes the tests of this file a group."""


@pytest.mark.usefixtures("shared")
def test_the_scheduler_sees_the_groups_of_tests(request: pytest.FixtureRequest) -> None:
    """It sees names alone, to which xdist adds the group: xdist 3.8 does so in a field that pytest 9.2 does not read."""
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("no xdist, so no groups: scripts/test.sh runs this")
    assert request.node.nodeid.endswith("@tests/tidy/test_groups.py"), "install the versions of constraints.txt"

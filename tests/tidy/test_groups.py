"""How tests are shared out (`tests/two_ends.py`): those that share a fixture run in one process, in the order of their file, with
the pytest installed; and the limit of time leaves out no unit test."""

from types import SimpleNamespace
from typing import Any

import pytest
import two_ends


@pytest.fixture(scope="module")
def shared() -> None:
    """What makes the tests of this file a group."""


@pytest.mark.usefixtures("shared")
def test_the_scheduler_sees_the_groups_of_tests(request: pytest.FixtureRequest) -> None:
    """It sees names alone, to which xdist adds the group: xdist 3.8 does so in a field that pytest 9.2 does not read."""
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("no xdist, so no groups: scripts/test.sh runs this")
    assert request.node.nodeid.endswith("@tests/tidy/test_groups.py"), "install the versions of constraints.txt"


@pytest.mark.parametrize(
    ("name", "can_be_left_out"),
    [
        ("tests/integration/test_stop.py::test_it", True),
        ("tests/faults/test_campaign.py::test_it", True),
        ("tests/simulation/test_cluster.py::test_it", True),
        ("tests/tidy/test_documents.py::test_it", True),
        ("tests/tidy/test_shape.py::test_it", False),
        ("tests/unit/log/test_recovery.py::test_it", False),
    ],
)
def test_what_begins_after_the_limit_of_time_is_left_out_but_for_unit_tests(
    name: str, can_be_left_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    item: Any = SimpleNamespace(nodeid=name)
    monkeypatch.setattr(two_ends, "_UNTIL_S", 100.0)
    assert not two_ends.is_left_out(item, 100.0)
    assert two_ends.is_left_out(item, 101.0) is can_be_left_out

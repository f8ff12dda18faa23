"""How the tests are shared out among processes (`scripts/test.sh`, xdist): clusters from one end, simulations from the other.

Tests of real processes wait a lot, and their clocks run; a simulation never waits, and its clock is virtual. So the queue begins
with the tests of real processes and ends with simulations, the long ones outermost. The tests that share a fixture of the session
are first: they stay in one process for a quarter of the run, which must not be its last one. Workers 0 and 2 take from the front
of the queue, worker 1 from its end. They meet in the middle, at tests of milliseconds: until then a simulation has most of one
core, and two clusters share the other. What a test finds does not depend on this order, nor on the worker.

A slow machine may need more time than continuous integration grants. With TESTS_UNTIL, a time as of `date +%s`, tests of real
processes and simulations that would begin later are skipped, and the report names them. Therefore, the many short tests of real
processes are before the long ones. Unit tests are never left out.
"""

import os
from collections.abc import Iterator
from typing import Any, Final

import pytest
from xdist.scheduler import LoadGroupScheduling

REAL_PROCESSES: Final = (
    "tests/faults/",
    "tests/fuzz/test_broker.py",
    "tests/integration/",
    "tests/tidy/test_documents.py",
)
SIMULATIONS: Final = ("tests/simulation/",)
LEFT_OUT: Final = "the time of this run is over"
_UNTIL_S: Final = float(os.environ.get("TESTS_UNTIL", "inf"))


class TwoEnds(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Workers 0, 2, ... take the next tests from the front of the queue, the others from its end."""

    def _assign_work_unit(self, node: Any) -> None:
        if self.nodes.index(node) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def arrange(items: list[pytest.Item], default_timeout_s: float) -> None:
    """Bring tests into the order of the queue. Those that share a fixture form a group, which stays in one process."""
    for item in items:
        if group := next(_shared_by(item), ""):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _place(item, default_timeout_s))


def is_left_out(item: pytest.Item, now_s: float) -> bool:
    return now_s > _UNTIL_S and item.nodeid.startswith(REAL_PROCESSES + SIMULATIONS)


def _place(item: pytest.Item, default_timeout_s: float) -> int:
    timeout = item.get_closest_marker("timeout")
    is_long = timeout is not None and timeout.args[0] > default_timeout_s
    if item.nodeid.startswith(REAL_PROCESSES):
        group = item.get_closest_marker("xdist_group")
        if group is not None and not group.args[0].endswith(".py"):  # shared by a whole folder
            return 0
        return 3 if is_long else 1 if group is not None else 2
    if item.nodeid.startswith(SIMULATIONS):
        return 6 if is_long else 5
    return 4


def _shared_by(item: pytest.Item) -> Iterator[str]:
    """The names of the widest groups first: the folder of a fixture of the session, the file of a fixture of the module."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = [found[-1] for found in info.name2fixturedefs.values()] if info is not None else []
    ours = [definition for definition in definitions if definition.baseid]  # "" is pytest's or a plugin's
    yield from (definition.baseid for definition in ours if definition.scope == "session")
    yield from (item.nodeid.partition("::")[0] for definition in ours if definition.scope != "function")

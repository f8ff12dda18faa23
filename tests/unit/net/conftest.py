"""What tests of the server run on: the real loopback and the simulated network."""

from collections.abc import Callable

import pytest
from unit.net.wire_world import (
    Body,
    run_in_simulation,
    run_real,
)


@pytest.fixture(params=[run_real, run_in_simulation], ids=["loopback", "simulated"])
def run(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    found: Callable[[Body], None] = request.param
    return found

"""Runs a coroutine on the loop of the simulation kit: timeouts are tested without waiting for them.

`run_simulated` of the kit also fails if a future is left with an error that was never looked at, as clients leave them that die.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from barnabas.net.testing.simulation.loop import SimulatedLoop

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(coroutine)

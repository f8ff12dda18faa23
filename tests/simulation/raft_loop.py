"""The loop of the kit (`barnabas.net.testing.simulation.loop`) for simulations that drive it from outside, step by step."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from barnabas.net.testing.simulation.loop import SimulatedLoop

STARTS_AT_S: Final = 1_000.0  # no moment is 0, which a clock that was never read would also show


class VirtualLoop(SimulatedLoop):
    """Errors that no task has taken are in `failures`."""

    run_in_executor = asyncio.BaseEventLoop.run_in_executor  # executors are simulated, and take their time

    def __init__(self) -> None:
        super().__init__()
        self._virtual_time = STARTS_AT_S
        self.failures: list[dict[str, Any]] = []
        self._interrupted: BaseException | None = None
        self.set_exception_handler(lambda _loop, context: self._failed(context))

    def _failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and not isinstance(error, Exception | asyncio.CancelledError):
            self._interrupted = (
                error  # the time limit of a test, by a signal: asyncio takes it for an error of the callback
            )
            self.stop()
        else:
            self.failures.append(context)

    def run_for(self, seconds: float) -> None:
        self.call_later(seconds, self.stop)
        self.run_forever()
        if self._interrupted is not None:
            raise self._interrupted

    def run_until(self, condition: Callable[[], bool], limit_s: float, every_s: float = 0.005) -> bool:
        deadline = self.time() + limit_s
        while not condition():
            if self.time() >= deadline:
                return False
            self.run_for(every_s)
        return True

"""When the core takes a step: soon after something has happened, and on every tick of the loop's clock."""

import asyncio
from collections.abc import Callable
from typing import Protocol

TICKS_PER_HEARTBEAT = 4  # an election timeout is noticed within a quarter of a heartbeat
TIDY_INTERVAL_S = 1.0


class Steps(Protocol):
    """The core, as far as it is driven."""

    @property
    def halted(self) -> bool: ...

    def step(self) -> None: ...

    def tidy(self) -> None: ...


class StepDriver:
    """Invariant: at most one step is scheduled besides the tick. Before `drive` a step does nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], heartbeat_s: float) -> None:
        self._loop = loop
        self._clock = clock
        self._tick_s = heartbeat_s / TICKS_PER_HEARTBEAT
        self._core: Steps | None = None
        self._step_is_scheduled = False
        self._ticks: asyncio.TimerHandle | None = None
        self._tidied_at = clock()

    def drive(self, core: Steps) -> None:
        """From now on, steps are taken on each wake-up."""
        self._core = core

    def wake(self) -> None:
        if not self._step_is_scheduled:
            self._step_is_scheduled = True
            self._loop.call_soon(self._run)

    def wake_later(self, delay_s: float) -> None:
        self._loop.call_later(delay_s, self.wake)

    def tick(self) -> None:
        """Take a step now, and repeat it periodically until the core has halted."""
        core = self._core
        assert core is not None, "there is something to drive"
        if core.halted:
            return
        now = self._clock()
        if now - self._tidied_at >= TIDY_INTERVAL_S:
            self._tidied_at = now
            core.tidy()
        self._run()
        self._ticks = self._loop.call_later(self._tick_s, self.tick)

    def stop_ticking(self) -> None:
        if self._ticks is not None:
            self._ticks.cancel()

    def _run(self) -> None:
        self._step_is_scheduled = False
        if self._core is not None:
            self._core.step()

"""An asyncio loop on virtual time: no sockets, no threads, no wall clock; the same program takes the same course.

Time stands still while anything is ready to run, and then jumps to the next timer. Without a timer, what the tasks
wait for never comes: this is reported as a deadlock instead of hanging the test.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class SimulationDeadlock(Exception):
    """Nothing is ready and no timer is set."""


class _VirtualSelector:
    """Never waits: moves the loop's clock to the next timer instead."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.advance(timeout)
        return []

    def get_map(self) -> dict[int, Any]:
        return {}

    def close(self) -> None:
        pass


class SimulatedLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._virtual_time = 0.0
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._virtual_time

    def advance(self, timeout: float | None) -> None:
        """Called when nothing is ready: `timeout` seconds are left until the next timer, None if there is none."""
        if timeout is None:
            waiting = [task.get_name() for task in asyncio.all_tasks(self)]
            raise SimulationDeadlock(f"at {self._virtual_time:.6f} s nothing can happen any more; waiting: {waiting}")
        if timeout > 0:
            scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
            # The timer's own time, not a sum: sums drift, and a timer that is a hair too early would spin.
            self._virtual_time = max(self._virtual_time, scheduled[0].when()) if scheduled else self._virtual_time

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run inline: threads would make the order of events depend on the machine."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the future has it
            future.set_exception(error)
        return future

    def close(self) -> None:
        """What was about to begin is closed, such as the end of a generator of a killed process: it would be told as never
        awaited (since Python 3.13)."""
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        for handle in () if self.is_closed() else tuple(ready):
            arguments: Sequence[Any] = handle._args or ()
            for argument in arguments:
                if inspect.isawaitable(argument) and not isinstance(argument, asyncio.Future):
                    argument.close()  # type: ignore[attr-defined]
        super().close()

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run_simulated(main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main(loop)` to its end on a new loop, cancel remaining tasks, and fail on unhandled errors."""
    loop = SimulatedLoop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    try:
        result = loop.run_until_complete(main(loop))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    assert not unseen, unseen
    return result

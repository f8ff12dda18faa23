"""A virtual-time asyncio loop: time advances as soon as no task is ready to run. Deterministic."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class _NoSelector:
    """Stands where the loop waits for sockets: waiting is advancing the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.idle = False

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            self.idle = True
        elif timeout > 0:
            self.now += timeout
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._clock_resolution = 1e-9
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _loop, context: self.failures.append(context))

    def time(self) -> float:
        return self._selector.now

    def _process_events(self, event_list: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_for(self, seconds: float) -> None:
        self.call_later(seconds, self.stop)
        self.run_forever()

    def run_until(self, condition: Callable[[], bool], limit_s: float, every_s: float = 0.005) -> bool:
        deadline = self.time() + limit_s
        while not condition():
            if self.time() >= deadline:
                return False
            self.run_for(every_s)
        return True


class DelayedExecutor(Executor):
    """Runs work on the loop itself after a time that `delay` gives; what is pending at `stop` never runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay: Callable[[], float]) -> None:
        self._loop = loop
        self._delay = delay
        self._stopped = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._loop.call_later(self._delay(), self._run, future, fn, args, kwargs)
        return future

    def stop(self) -> None:
        self._stopped = True

    def _run(self, future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._stopped:
            return
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

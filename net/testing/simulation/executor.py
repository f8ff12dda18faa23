"""Threads of a simulated process: their work runs on the loop itself, later."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


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
        except Exception as error:  # noqa: BLE001 - the future has it
            future.set_exception(error)
        else:
            future.set_result(result)

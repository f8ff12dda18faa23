"""`LoopThread`: the event loop of a process whose own code is not asyncio: `barnabas.sync`, Spark's Python workers.

One loop in one daemon thread serves all clients of the process and stays for its life. After a fork the child has no such
thread, so it makes its own; what the parent opened belongs to the parent.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from .errors import RequestTimedOutError

T = TypeVar("T")


class LoopThread:
    """One loop in one daemon thread."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="barnabas", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it on the loop while the caller does something else. Dropping the future does not cancel it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "barnabas.sync was called on its own loop's thread; use the asyncio classes in callbacks"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run it on the loop and wait. On Ctrl-C or a timeout it is cancelled."""
        future = self.begin(coroutine)
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            if future.done():
                raise
            future.cancel()
            raise RequestTimedOutError(f"not done within {timeout} s") from None
        except BaseException:
            future.cancel()
            raise


_shared: LoopThread | None = None
_lock = threading.Lock()


def loop_thread() -> LoopThread:
    """The process's loop thread; a forked child does not have its parent's thread, so it makes its own."""
    global _shared
    with _lock:
        if _shared is None or _shared.process_id != os.getpid():
            _shared = LoopThread()
        return _shared


def _after_fork() -> None:
    """Another thread of the parent may have held the lock while it forked."""
    global _lock, _shared
    _lock = threading.Lock()
    _shared = None


os.register_at_fork(after_in_child=_after_fork)

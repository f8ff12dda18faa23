"""`LoopThread`: an event loop for processes whose code does not use asyncio: `barnabas.sync`, Spark's Python workers.

One loop in one daemon thread serves all clients of the process until the process exits. After a fork the child has no such
thread, so it starts its own; clients that the parent opened belong to the parent.
"""

import asyncio
import atexit
import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from ...wire.rpc import leave_to_parent
from .errors import RequestTimedOutError

logger = logging.getLogger("barnabas.client")
T = TypeVar("T")
Close = Callable[[], Coroutine[Any, Any, None]]

MAX_EXIT_WAIT_S = 5.0  # An exiting process closes its clients, but does not hang if the cluster is unreachable.


class LoopThread:
    """One loop in one daemon thread."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.is_of_parent = False  # After a fork, in the child. To ask the system costs more than to send a record.
        self.loop = asyncio.new_event_loop()
        self._open: dict[int, Close] = {}
        self._closing: set[asyncio.Task[None]] = set()  # The loop holds tasks by weak references only.
        self._thread = threading.Thread(target=self._run, name="barnabas", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and return its future. Dropping the future does not cancel it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "barnabas.sync was called on the thread of its own loop; use the asyncio classes in callbacks"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def look_after(self, owner: object, close: Close) -> Callable[[], None]:
        """Run `close` when the owner is garbage-collected or the process exits. Returns a function that cancels this."""
        key = id(close)
        self._open[key] = close
        finalizer = weakref.finalize(owner, self._begin_close, key)
        finalizer.atexit = False  # `close_all` does that: the order of exit handlers is not defined.

        def call_off() -> None:
            finalizer.detach()
            self._open.pop(key, None)

        return call_off

    def _begin_close(self, key: int) -> None:
        """A finalizer may run in any thread, including the loop's, so it must not wait."""
        close = self._open.pop(key, None)
        if close is None or not self._is_here:
            return

        def finish(task: asyncio.Task[None]) -> None:
            self._closing.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.info("a client that was not closed did not close cleanly at exit: %s", error)

        def begin() -> None:
            task = self.loop.create_task(close(), name="barnabas-left-open")
            self._closing.add(task)
            task.add_done_callback(finish)

        self.loop.call_soon_threadsafe(begin)

    @property
    def _is_here(self) -> bool:
        return self.process_id == os.getpid() and self._thread.is_alive()

    def end(self, close: Close) -> None:
        """Close a client and wait. Ctrl-C cancels it, and the exit of the process waits for what it still does then."""
        self.call(self._noted(close))

    async def _noted(self, close: Close) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._closing.add(task)
        try:
            await close()
        finally:
            self._closing.discard(task)

    async def dropped_clients_closed(self) -> None:
        """Collect the clients that no one holds any more, and wait until they are closed. Runs on the loop."""
        await asyncio.to_thread(gc.collect)
        await asyncio.sleep(0)  # `_begin_close` begins in the next turn
        await self._closed()

    async def _closed(self) -> None:
        if self._closing:
            await asyncio.wait(self._closing, timeout=MAX_EXIT_WAIT_S)

    def close_all(self) -> None:
        """At process exit, while the daemon thread still runs."""
        left_open = list(self._open)
        for key in left_open:
            self._begin_close(key)
        if self._is_here and (left_open or self._closing):
            wait([asyncio.run_coroutine_threadsafe(self._closed(), self.loop)], timeout=MAX_EXIT_WAIT_S)

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait. Ctrl-C or a timeout cancels it."""
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
    """The process's loop thread; a forked child does not have its parent's thread, so it starts its own."""
    global _shared
    with _lock:
        if _shared is None or _shared.process_id != os.getpid():
            _shared = LoopThread()
            atexit.register(_shared.close_all)
        return _shared


def _after_fork() -> None:
    """Another thread of the parent may have held the lock during the fork."""
    global _lock, _shared
    _lock = threading.Lock()
    if _shared is not None:
        _shared.is_of_parent = True
        leave_to_parent(_shared.loop)
    _shared = None


os.register_at_fork(after_in_child=_after_fork)

"""`process_each` for programs without asyncio: the caller's thread waits while the loop's thread reads and commits.

Handlers run in threads of their own. A signal, a `threading.Event` and Ctrl-C reach the processing from outside of its loop.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import nullcontext
from typing import Final

from ..connection.errors import InvalidConfigError
from ..connection.loop_thread import LoopThread
from .options import RecordHandler, is_coroutine_function
from .process_each import LAST_COMMIT_S, POLL_MS, Processed
from .signals import called_on_signals

CANCEL_WAIT_S: Final = LAST_COMMIT_S + 1.0  # after Ctrl-C

Processing = Callable[[asyncio.Event], Awaitable[Processed]]  # gets the event that stops it


def run_in_thread(
    loop_thread: LoopThread,
    handler: RecordHandler,
    processing: Processing,
    *,
    stop: threading.Event | None,
    stop_on_signals: bool,
) -> Processed:
    """Return when the processing has ended, or cancel it, if the caller is interrupted, and wait for its last commit. Raises what
    the processing raises, and InvalidConfigError for a coroutine function."""
    if is_coroutine_function(handler):
        raise InvalidConfigError(
            "barnabas.sync calls handlers in threads: use barnabas.process_each for a coroutine function"
        )
    stopping = asyncio.Event()
    ended = threading.Event()

    async def run() -> Processed:
        try:
            return await processing(stopping)
        finally:
            ended.set()

    def stop_soon() -> None:
        loop_thread.loop.call_soon_threadsafe(stopping.set)

    with called_on_signals(stop_soon) if stop_on_signals else nullcontext():
        future = loop_thread.begin(run())
        try:
            return _outcome(future, stop, stop_soon)
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait(CANCEL_WAIT_S)
            raise


def _outcome(future: "Future[Processed]", stop: threading.Event | None, stop_soon: Callable[[], object]) -> Processed:
    """In slices, because a signal that another thread has received does not wake up this one."""
    while not future.done():
        wait([future], POLL_MS / 1000)
        if stop is not None and stop.is_set():
            stop_soon()
            stop = None
    return future.result()

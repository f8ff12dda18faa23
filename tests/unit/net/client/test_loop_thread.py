"""`LoopThread`: what an application that is interrupted leaves to the exit of its process."""

import asyncio
import signal
import sys
import threading

import pytest

from barnabas.net.client.connection.loop_thread import LoopThread

PASSES = 1_000  # of the loop: more than an exit takes that waits for nothing


def test_the_exit_waits_for_a_close_that_was_interrupted() -> None:
    """A consumer leaves its group then, which another Ctrl-C does not cut off."""
    main_thread, ended = threading.main_thread().ident, threading.Event()
    assert main_thread is not None

    async def close() -> None:
        try:
            while sys._current_frames()[main_thread].f_code is not threading.Condition.wait.__code__:  # noqa: ASYNC110
                await asyncio.sleep(0)
            signal.pthread_kill(main_thread, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            for _ in range(PASSES):
                await asyncio.sleep(0)
            ended.set()

    thread = LoopThread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.end(close)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.close_all()
    assert ended.is_set()
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    thread._thread.join()
    thread.loop.close()

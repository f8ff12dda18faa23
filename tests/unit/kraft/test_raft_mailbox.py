import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from barnabas.kraft.raft.mailbox import Mailbox


class _Woken:
    """A loop whose wake-ups are counted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.count = 0
        self._loop = loop

    def call_soon_threadsafe(self, work: Callable[[], None]) -> None:
        self.count += 1
        self._loop.call_soon_threadsafe(work)

    def call_soon(self, work: Callable[[], None]) -> None:
        self._loop.call_soon(work)


async def test_all_that_waits_takes_one_wake_up_and_keeps_its_order() -> None:
    woken, done = _Woken(asyncio.get_running_loop()), list[int]()
    mailbox = Mailbox(woken)  # type: ignore[arg-type]
    for number in range(10):
        mailbox.put(partial(done.append, number))
    await asyncio.sleep(0)
    assert (done, woken.count) == (list(range(10)), 1)
    mailbox.put(lambda: done.append(10))
    await asyncio.sleep(0)
    assert (done[-1], woken.count) == (10, 2)


async def test_work_of_another_thread_is_never_left_behind() -> None:
    mailbox, count = Mailbox(asyncio.get_running_loop()), 20_000
    done, finished = list[int](), asyncio.Event()

    def give() -> None:
        for number in range(count):
            mailbox.put(partial(done.append, number))
        mailbox.put(finished.set)

    thread = threading.Thread(target=give)
    thread.start()
    async with asyncio.timeout(30):
        await finished.wait()
    thread.join()
    assert done == list(range(count))


async def test_work_that_fails_holds_up_no_other_work() -> None:
    loop, failures, done = asyncio.get_running_loop(), list[object](), list[int]()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    mailbox = Mailbox(loop)

    def fail() -> None:
        raise ValueError("on purpose")

    mailbox.put(fail)
    mailbox.put(lambda: done.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == [1]
    assert [str(failure) for failure in failures] == ["on purpose"]


def test_a_closed_loop_refuses_each_time() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    mailbox, refused = Mailbox(loop), list[weakref.ref[Callable[[], None]]]()

    def give() -> None:
        def work() -> None: ...

        refused.append(weakref.ref(work))
        mailbox.put(work)

    for _ in range(2):
        with pytest.raises(RuntimeError):
            give()
    gc.collect()
    assert [found() for found in refused] == [None, None], "what is never done is not kept"

"""Work in a thread ends before the cancellation of its caller is told, however often that is cancelled."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from barnabas.net.base.threads import to_its_end


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_cancelled_caller_waits_for_the_thread(times: int, fails: bool) -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    gate = threading.Event()
    stops: list[None] = []

    def work() -> None:
        gate.wait(60)
        if fails:
            raise OSError("the disk")

    task = asyncio.create_task(to_its_end(loop.run_in_executor(None, work), stop=lambda: stops.append(None)))
    await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    await asyncio.wait([task])
    assert task.cancelled() and stops == [None]
    del task
    gc.collect()
    assert reported == []


async def test_a_caller_gets_what_the_work_has() -> None:
    loop = asyncio.get_running_loop()
    assert await to_its_end(loop.run_in_executor(None, lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        await to_its_end(loop.run_in_executor(None, lambda: 1 / 0))
    cancelled: asyncio.Future[None] = loop.create_future()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await to_its_end(cancelled)

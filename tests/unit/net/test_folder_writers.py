"""Work on data folders in threads: one each, in order, bounded."""

import asyncio
import threading
from collections.abc import Callable

from unit.net.shell_world import simulated

from barnabas.log.vocabulary.errors import StorageError
from barnabas.net.base.folder_writers import HANGS_AFTER_MS, FolderWriters

ONE, TWO = "/one", "/two"
WAIT_S = 10


class World:
    def __init__(self) -> None:
        self.refused: list[tuple[str, str]] = []
        self.fatal: list[str] = []
        self.done: list[str] = []
        self.threads: set[int] = set()
        self.writers = FolderWriters(
            refused=lambda path, error: self.refused.append((path, error.message)), fatal=self.fatal.append
        )

    def work(self, name: str) -> Callable[[], None]:
        def perform() -> None:
            self.threads.add(threading.get_ident())
            self.done.append(name)

        return perform


async def test_work_is_done_in_order_and_never_on_the_loop() -> None:
    world = World()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(world.writers.ask(ONE, kind, world.work(kind)) for kind in "abc"))
    assert world.done == ["a", "b", "c"]
    assert threading.get_ident() not in world.threads
    await world.writers.close()


async def test_a_folder_that_hangs_keeps_one_thread_and_one_of_each_kind_while_another_goes_on() -> None:
    world = World()
    hangs = threading.Event()
    async with asyncio.timeout(WAIT_S):
        hanging = world.writers.ask(ONE, "hangs", lambda: world.done.append("hung" if hangs.wait(WAIT_S) else "?"))
        waiting = [world.writers.ask(ONE, "checkpoint", world.work(f"checkpoint {number}")) for number in range(100)]
        await world.writers.ask(TWO, "checkpoint", world.work("two"))
        assert world.done == ["two"] and not hanging.done()
        assert list(world.writers.hanging()) == []
        assert world.writers.is_waiting(ONE, "checkpoint")
        hangs.set()
        await asyncio.gather(*waiting)
    assert world.done == ["two", "hung", "checkpoint 99"]  # the newest stands for all that were asked before
    await world.writers.close()


async def test_a_refusal_is_told_with_its_folder_and_the_rest_is_done() -> None:
    world = World()

    def refuse() -> None:
        raise StorageError("no")

    async with asyncio.timeout(WAIT_S):
        await world.writers.ask(ONE, "a", refuse)
        await world.writers.ask(ONE, "b", world.work("b"))
        await world.writers.ask(
            ONE, "c", refuse, refused=lambda path, error: world.done.append(f"{path} {error.message}")
        )
    assert world.refused == [(ONE, "no")] and world.done == ["b", "/one no"]
    await world.writers.close()


async def test_a_bug_ends_the_broker() -> None:
    world = World()

    def fail() -> None:
        raise ZeroDivisionError

    async with asyncio.timeout(WAIT_S):
        await world.writers.ask(ONE, "a", fail)
        await asyncio.sleep(0)
    assert len(world.fatal) == 1 and "ZeroDivisionError" in world.fatal[0]
    await world.writers.close()


async def test_a_close_waits_for_the_thread_and_nothing_is_taken_later() -> None:
    world = World()
    started, hangs = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        assert hangs.wait(WAIT_S)
        world.done.append("under way")

    async with asyncio.timeout(WAIT_S):
        world.writers.ask(ONE, "a", work)
        dropped = world.writers.ask(ONE, "b", world.work("dropped"))
        await started.wait()
        closing = asyncio.create_task(world.writers.close())
        for _ in range(10):  # the loop goes on while the thread is waited for
            await asyncio.sleep(0)
        assert not closing.done()
        hangs.set()
        await closing
        assert dropped.cancelled()
        await world.writers.ask(ONE, "c", world.work("too late"))
    assert world.done == ["under way"] and world.fatal == []


@simulated
async def test_a_thread_that_does_not_come_back_is_told_after_the_limit() -> None:
    world = World()
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[None] = loop.create_future()
    loop.run_in_executor = lambda *_: answer  # type: ignore[method-assign]  # a disk that hangs
    asked = world.writers.ask(ONE, "a", world.work("a"))
    await asyncio.sleep(HANGS_AFTER_MS / 1000 - 1)
    assert list(world.writers.hanging()) == []
    await asyncio.sleep(2)
    assert list(world.writers.hanging()) == [ONE]
    answer.set_result(None)
    await asked
    assert list(world.writers.hanging()) == []


@simulated
async def test_a_folder_that_is_busy_for_long_with_short_work_does_not_hang() -> None:
    world = World()
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[None]] = []

    def run_in_executor(*_: object) -> "asyncio.Future[None]":
        answers.append(loop.create_future())
        return answers[-1]

    loop.run_in_executor = run_in_executor  # type: ignore[assignment, method-assign]
    asked = [world.writers.ask(ONE, str(number), world.work("")) for number in range(3)]
    for done in asked:
        await asyncio.sleep(HANGS_AFTER_MS / 1000 - 1)
        assert list(world.writers.hanging()) == []
        answers[-1].set_result(None)
        await done

"""Leaving a group when the caller is cancelled: it waits once, and only once."""

import asyncio

import pytest
from unit.net.shell_world import simulated, turns

from barnabas.net.client.group.leaving import see_through


class Leaving:
    """Takes until the coordinator answers."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.ended = ""
        self.caller = asyncio.create_task(see_through(self._leave))

    async def _leave(self) -> None:
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "answered"


@simulated
async def test_a_caller_that_is_cancelled_waits_for_the_answer() -> None:
    leaving = Leaving()
    await turns()
    leaving.caller.cancel()
    await turns()
    assert not leaving.caller.done() and not leaving.ended
    leaving.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving.caller
    assert leaving.ended == "answered"


@simulated
async def test_a_caller_that_is_cancelled_twice_does_not_wait_and_leaves_no_task() -> None:
    leaving = Leaving()
    for _ in range(2):
        await turns()
        leaving.caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving.caller
    await turns()
    assert leaving.ended == "cancelled" and len(asyncio.all_tasks()) == 1


@simulated
async def test_a_failure_is_the_callers() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await see_through(fail)

"""Coroutines that a simulation interrupts for good are closed with all that they wait for: the collector finds none of them."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from barnabas.net.testing.simulation.process import running, unwind

PARTS = 8


async def nothing() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def in_parts(part: Callable[[], Awaitable[None]]) -> None:
    async with AsyncExitStack() as parts:
        for _ in range(PARTS):
            parts.push_async_callback(part)


async def with_finally() -> None:
    try:
        await nothing()
    finally:
        await in_parts(nothing)


async def in_parts_of_parts() -> None:
    await in_parts(with_finally)


@pytest.mark.parametrize("steps", range(1, 12))
@pytest.mark.parametrize("work", [with_finally, in_parts_of_parts])
def test_what_waits_while_it_ends_is_closed_from_the_inside(work: Callable[[], Awaitable[None]], steps: int) -> None:
    loop = asyncio.new_event_loop()
    coroutine = work()
    with running(loop):
        for _ in range(steps):
            coroutine.send(None)  # type: ignore[attr-defined]
        unwind(coroutine)
    loop.close()
    assert coroutine.cr_frame is None  # type: ignore[attr-defined]
    gc.collect()  # pytest fails the test for what it finds


async def with_an_error() -> None:
    try:
        await nothing()
    finally:
        raise RuntimeError("of its own")


def test_an_error_of_the_coroutine_ends_it() -> None:
    coroutine = with_an_error()
    coroutine.send(None)
    unwind(coroutine)
    assert coroutine.cr_frame is None

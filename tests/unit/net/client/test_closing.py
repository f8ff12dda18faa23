"""A close that its caller cancels, wherever it is: it leaves nothing open, and no member in the group."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from unit.net.client.consumer_world import consumer, filled, read
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.net.client.producer.producer import Producer

MOST_STEPS = 1_000  # of the loop: a close takes a few


async def is_cancelled(close: "asyncio.Task[None]", steps: int) -> bool:
    """Cancel it after so many passes of the loop. Returns False if it had ended before."""
    for _ in range(steps):
        await asyncio.sleep(0)
    close.cancel()
    await asyncio.wait([close])
    return close.cancelled()


async def was_consumer_cancelled(steps: int) -> bool:
    cluster = filled(10)
    groups = FakeGroups(cluster)
    reader = consumer(cluster, "t", group="g")
    await reader.start()
    await read(reader, 10)
    was_cancelled = await is_cancelled(asyncio.create_task(reader.close()), steps)
    assert not cluster.connections
    assert len(asyncio.all_tasks()) == 1
    assert not groups.machine("g").state.groups["g"].members
    return was_cancelled


async def was_producer_cancelled(steps: int) -> bool:
    cluster = filled(0)
    writer = Producer(client=cluster.client())
    await writer.start()
    await writer.send("t", b"v")
    was_cancelled = await is_cancelled(asyncio.create_task(writer.close()), steps)
    assert not cluster.connections
    assert len(asyncio.all_tasks()) == 1
    return was_cancelled


@pytest.mark.parametrize("close", [was_consumer_cancelled, was_producer_cancelled])
def test_a_close_that_is_cancelled_anywhere_leaves_nothing_behind(close: Callable[[int], Awaitable[bool]]) -> None:
    async def main() -> None:
        # One that is cancelled before its first step has done nothing.
        for steps in range(1, MOST_STEPS):
            if not await close(steps):
                break
        assert 2 < steps < MOST_STEPS - 1

    run(main())

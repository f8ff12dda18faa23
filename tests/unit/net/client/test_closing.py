"""A close that its caller cancels, wherever it is: it leaves nothing open, and no member in the group."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from unit.net.client.consumer_world import T0, consumer, filled, read
from unit.net.client.fake_cluster import HANG, FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol.api_keys import ApiKey

MOST_STEPS = 60  # of the loop: a close takes some twenty, or waits for an answer by then
Reader = Callable[[FakeCluster], Awaitable[Consumer]]


async def is_cancelled(close: "asyncio.Task[None]", steps: int) -> bool:
    """Cancel it after so many passes of the loop. Returns False if it had ended before."""
    for _ in range(steps):
        await asyncio.sleep(0)
    if close.done():
        close.result()
        return False
    close.cancel()
    await asyncio.wait([close])
    assert close.cancelled(), "its caller does not learn that it was cancelled"
    return True


async def was_consumer_cancelled(steps: int, started: Reader) -> bool:
    cluster = filled(10, brokers=2)
    groups = FakeGroups(cluster)
    reader = await started(cluster)
    was_cancelled = await is_cancelled(asyncio.create_task(reader.close()), steps)
    assert not cluster.connections
    check_tasks()
    group = groups.machine("g").state.groups.get("g")
    assert group is None or not group.members
    return was_cancelled


async def that_has_read(cluster: FakeCluster) -> Consumer:
    reader = consumer(cluster, "t", group="g")
    await reader.start()
    await read(reader, 10)
    return reader


async def that_cannot_commit(cluster: FakeCluster) -> Consumer:
    cluster.script(ApiKey.OFFSET_COMMIT, lambda node, request: HANG, forever=True)
    reader = await that_has_read(cluster)
    await reader.poll(timeout_ms=10)
    return reader


async def that_looks_for_its_start(cluster: FakeCluster) -> Consumer:
    cluster.script(ApiKey.LIST_OFFSETS, lambda node, request: HANG, forever=True)
    reader = consumer(cluster, "t", group="g")
    await reader.start()
    await reader.poll(timeout_ms=10)
    return reader


async def that_connects(cluster: FakeCluster) -> Consumer:
    cluster.move_leader(T0, 1)
    cluster.down.add(1)
    reader = consumer(cluster)
    await reader.start()
    reader.assign([T0])
    reader.seek(T0, 5)
    await reader.poll(timeout_ms=10)
    return reader


async def was_producer_cancelled(steps: int, *, connects: bool) -> bool:
    cluster = filled(0, brokers=2)
    if connects:
        cluster.move_leader(T0, 1)
        cluster.down.add(1)
    writer = Producer(client=cluster.client())
    await writer.start()
    await writer.send("t", b"v")
    if connects:
        await asyncio.sleep(0.01)
    close = asyncio.create_task(writer.close(timeout_ms=0 if connects else None))
    was_cancelled = await is_cancelled(close, steps)
    assert not cluster.connections
    check_tasks()
    return was_cancelled


def check_tasks() -> None:
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.mark.parametrize("started", [that_has_read, that_looks_for_its_start, that_connects, that_cannot_commit])
def test_a_close_of_a_consumer_that_is_cancelled_anywhere_leaves_nothing_behind(started: Reader) -> None:
    async def main() -> None:
        # One that is cancelled before its first step has done nothing.
        for steps in range(1, MOST_STEPS):
            if not await was_consumer_cancelled(steps, started):
                break
        assert steps > 2
        # It waits for its last commit until time passes, which no step of the loop needs.
        assert (steps == MOST_STEPS - 1) == (started is that_cannot_commit)

    run(main())


@pytest.mark.parametrize("connects", [False, True])
def test_a_close_of_a_producer_that_is_cancelled_anywhere_leaves_nothing_behind(connects: bool) -> None:
    async def main() -> None:
        for steps in range(1, MOST_STEPS):
            if not await was_producer_cancelled(steps, connects=connects):
                break
        assert 2 < steps < MOST_STEPS - 1

    run(main())

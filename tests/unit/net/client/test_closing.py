"""A close that its caller cancels, wherever it is: it leaves nothing open, and no member in the group."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

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


async def is_cancelled(close: "asyncio.Task[None]", steps: int, *, with_all_tasks: bool = False) -> bool:
    """Cancel it after so many passes of the loop; `with_all_tasks` of the SDK, as the end of a loop does. Returns False if it had
    ended before."""
    for _ in range(steps):
        await asyncio.sleep(0)
    if close.done():
        close.result()
        return False
    others = asyncio.all_tasks() if with_all_tasks else set()
    for task in {close, *(task for task in others if task.get_name().startswith("barnabas-"))}:
        task.cancel()
    await asyncio.wait([close])
    assert close.cancelled(), "its caller does not learn that it was cancelled"
    return True


async def was_consumer_cancelled(steps: int, started: Reader, *, with_all_tasks: bool = False) -> bool:
    cluster = filled(10, brokers=2)
    groups = FakeGroups(cluster)
    reader = await started(cluster)
    close = asyncio.create_task(reader.close())
    was_cancelled = await is_cancelled(close, steps, with_all_tasks=with_all_tasks)
    assert not cluster.connections
    check_tasks()
    assert member_count(groups) == 0
    return was_cancelled


def member_count(groups: FakeGroups) -> int:
    return len(groups.machine("g").view.presence("g"))


async def that_has_read(cluster: FakeCluster, protocol: str = "consumer") -> Consumer:
    reader = consumer(cluster, "t", group="g", group_protocol=protocol)
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


@pytest.mark.parametrize(
    ("started", "with_all_tasks"),
    [
        (that_has_read, False),
        (that_has_read, True),
        (partial(that_has_read, protocol="classic"), False),
        (that_looks_for_its_start, False),
        (that_connects, False),
        (that_cannot_commit, False),
    ],
)
def test_a_close_of_a_consumer_that_is_cancelled_anywhere_leaves_nothing_behind(
    started: Reader, with_all_tasks: bool
) -> None:
    async def main() -> None:
        # One that is cancelled before its first step has done nothing.
        for steps in range(1, MOST_STEPS):
            if not await was_consumer_cancelled(steps, started, with_all_tasks=with_all_tasks):
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


def test_a_consumer_whose_unsubscribe_is_cancelled_reads_as_a_member_or_not_at_all() -> None:
    async def main() -> None:
        for steps in range(1, MOST_STEPS):
            cluster = filled(20)
            groups = FakeGroups(cluster)
            async with consumer(cluster, "t", group="g") as reader:
                await read(reader, 10)
                was_cancelled = await is_cancelled(asyncio.create_task(reader.unsubscribe()), steps)
                assert len(reader.assignment) == member_count(groups)
            if not was_cancelled:
                break
        assert 2 < steps < MOST_STEPS - 1

    run(main())


def loses_the_first_leave(cluster: FakeCluster, api: ApiKey) -> asyncio.Event:
    """Of any member. Returns the event that it has come."""
    answer, came = cluster.answers[api], asyncio.Event()

    async def lost(node: Any, request: Any) -> Any:
        if not came.is_set() and getattr(request, "member_epoch", -1) == -1:
            came.set()
            await asyncio.Event().wait()
        return await answer(node, request)

    cluster.answers[api] = lost
    return came


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    ("protocol", "api"), [("consumer", ApiKey.CONSUMER_GROUP_HEARTBEAT), ("classic", ApiKey.LEAVE_GROUP)]
)
def test_a_close_leaves_if_the_leave_of_an_idle_member_is_not_confirmed(
    protocol: str, api: ApiKey, is_over: bool
) -> None:
    """The close cuts it off, or comes after its time."""

    async def main() -> None:
        cluster = filled(10)
        groups = FakeGroups(cluster)
        lost = loses_the_first_leave(cluster, api)
        async with consumer(cluster, "t", group="g", max_poll_interval_ms=5_000, group_protocol=protocol) as reader:
            await read(reader, 10)
            await lost.wait()
            await asyncio.sleep(4 if is_over else 0)
            assert member_count(groups) == 1
        assert member_count(groups) == 0

    run(main())

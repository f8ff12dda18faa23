"""A close that its caller cancels, wherever it is: it leaves nothing open, and no member in the group."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from unit.net.client.consumer_world import consumer, filled, read
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol.api_keys import ApiKey

MOST_STEPS = 1_000  # of the loop: a close takes a few


async def is_cancelled(close: "asyncio.Task[None]", steps: int, *, with_all_tasks: bool = False) -> bool:
    """Cancel it after so many passes of the loop. Returns False if it had ended before."""
    for _ in range(steps):
        await asyncio.sleep(0)
    others = asyncio.all_tasks() if with_all_tasks else set()
    for task in {close, *(task for task in others if task.get_name().startswith("barnabas-"))}:
        task.cancel()
    await asyncio.wait([close])
    return close.cancelled()


async def was_consumer_cancelled(steps: int, *, with_all_tasks: bool = False, protocol: str = "consumer") -> bool:
    cluster = filled(10)
    groups = FakeGroups(cluster)
    reader = consumer(cluster, "t", group="g", group_protocol=protocol)
    await reader.start()
    await read(reader, 10)
    was_cancelled = await is_cancelled(asyncio.create_task(reader.close()), steps, with_all_tasks=with_all_tasks)
    assert not cluster.connections
    assert len(asyncio.all_tasks()) == 1
    assert member_count(groups) == 0
    return was_cancelled


def member_count(groups: FakeGroups) -> int:
    return len(groups.machine("g").view.presence("g"))


async def was_loop_of_consumer_ended(steps: int) -> bool:
    """The end of a loop cancels all its tasks, and not only that of the close."""
    return await was_consumer_cancelled(steps, with_all_tasks=True)


async def was_classic_consumer_cancelled(steps: int) -> bool:
    return await was_consumer_cancelled(steps, protocol="classic")


async def was_producer_cancelled(steps: int) -> bool:
    cluster = filled(0)
    writer = Producer(client=cluster.client())
    await writer.start()
    await writer.send("t", b"v")
    was_cancelled = await is_cancelled(asyncio.create_task(writer.close()), steps)
    assert not cluster.connections
    assert len(asyncio.all_tasks()) == 1
    return was_cancelled


@pytest.mark.parametrize(
    "close",
    [was_consumer_cancelled, was_loop_of_consumer_ended, was_classic_consumer_cancelled, was_producer_cancelled],
)
def test_a_close_that_is_cancelled_anywhere_leaves_nothing_behind(close: Callable[[int], Awaitable[bool]]) -> None:
    async def main() -> None:
        # One that is cancelled before its first step has done nothing.
        for steps in range(1, MOST_STEPS):
            if not await close(steps):
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

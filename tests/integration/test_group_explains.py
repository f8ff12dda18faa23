"""Groups that explain themselves, over real processes: a member that is killed, one whose application sleeps, brokers that go."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any
from urllib.request import urlopen

from integration.cluster import Cluster, Node, active_brokers, clean_environment, until
from integration.test_command import run, run_json

from barnabas.log.vocabulary.group_messages import RebalanceEvent
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse

TOPIC = "orders"
GROUP = "billing"
PARTITIONS = 6
SESSION_MS = 6_000
LOADED_MS = 20_000  # what a busy machine may add to a session
BROKER = {"group_consumer_heartbeat_interval_ms": "500"}
MEMBER = f"""
import asyncio, sys
from barnabas import Consumer
async def main():
    options = dict(bootstrap=sys.argv[1], group={GROUP!r}, client_id=sys.argv[2], session_timeout_ms={SESSION_MS})
    async with Consumer({TOPIC!r}, **options) as consumer:
        while True:
            await consumer.poll(timeout_ms=200)
asyncio.run(main())
"""


@contextmanager
def member_process(cluster: Cluster, client_id: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-P", "-c", MEMBER, cluster.bootstrap, client_id]
    process = subprocess.Popen(words, env=clean_environment())  # what it complains of is shown where the test fails
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def polling(consumer: Consumer) -> None:
    while True:
        await consumer.poll(timeout_ms=100)


async def start_members(cluster: Cluster, stack: AsyncExitStack, count: int) -> list[asyncio.Task[None]]:
    """Members in this process, each polling in the background until the stack ends."""
    tasks = []
    for number in range(count):
        consumer = Consumer(
            TOPIC, bootstrap=cluster.bootstrap, group=GROUP, client_id=f"app-{number}", session_timeout_ms=SESSION_MS
        )
        await stack.enter_async_context(consumer)
        task = asyncio.create_task(polling(consumer))
        stack.push_async_callback(_stop, task)
        tasks.append(task)
    return tasks


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def explained(cluster: Cluster) -> DescribeGroupResponse:
    async with cluster.admin() as admin:
        return await admin.explain_group(GROUP)


async def stable(
    cluster: Cluster, members: int, *, also: Callable[[DescribeGroupResponse], bool] = lambda _: True
) -> DescribeGroupResponse:
    async def is_stable() -> DescribeGroupResponse | None:
        group = await explained(cluster)
        owned = sum(len(item.partitions) for member in group.members for item in member.assigned)
        settled = group.state == "stable" and not group.unowned and owned == PARTITIONS
        return group if settled and len(group.members) == members and also(group) else None

    found = await until(is_stable, f"group of {members} members is stable")
    assert isinstance(found, DescribeGroupResponse)
    return found


async def make_topic(cluster: Cluster) -> None:
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)


def partitions_of(group: DescribeGroupResponse, client_id: str) -> tuple[str, set[int]]:
    (member,) = [member for member in group.members if member.client_id == client_id]
    return member.member_id, {number for item in member.assigned for number in item.partitions}


def assignments(group: DescribeGroupResponse) -> dict[str, Any]:
    return {member.member_id: member.assigned for member in group.members}


async def test_a_killed_member_is_named_with_what_moved_and_how_long_nobody_read(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = await new_cluster(3, **BROKER).ready()
    await make_topic(cluster)
    async with AsyncExitStack() as stack:
        await start_members(cluster, stack, 1)
        with member_process(cluster, "doomed") as process:
            group = await stable(cluster, 2)
            doomed, held = partitions_of(group, "doomed")
            assert held
            process.kill()
            process.wait()
            group = await stable(cluster, 1)
        story = await asyncio.to_thread(run, "group", "explain", GROUP, bootstrap=cluster.bootstrap)
        told = await asyncio.to_thread(run_json, "group", "explain", GROUP, bootstrap=cluster.bootstrap)
        served = await asyncio.to_thread(from_admin_api, cluster, group.coordinator)
    (event,) = [item for item in told["rebalances"] if item["cause"] == "member_expired"]
    assert (event["member"], event["causes"][0]["client_id"]) == (doomed, "doomed")
    moves = [move for move in event["moves"] if move["from"] == doomed]
    assert {move["partition"] for move in moves} == held
    assert {move["to"] for move in moves} == {group.members[0].member_id}
    assert all(SESSION_MS <= move["pause_ms"] <= SESSION_MS + LOADED_MS for move in moves)
    assert event["stable_after_ms"] is not None
    assert f"member_expired doomed/{doomed[-8:]}@127.0.0.1: no heartbeat for {SESSION_MS} ms" in story
    assert [item["causes"] for item in served["data"]] == [item["causes"] for item in told["rebalances"]]
    pauses = sorted(move["pause_ms"] for move in moves)
    print(f"\nsession {SESSION_MS} ms: pauses after kill -9 {pauses} ms, stable after {event['stable_after_ms']} ms")


def from_admin_api(cluster: Cluster, node_id: int) -> Any:
    address = json.loads((cluster.nodes[node_id].data / "endpoints.json").read_text(encoding="utf-8"))["admin"]
    with urlopen(f"http://{address}/v3/clusters") as answer:
        cluster_id = json.load(answer)["data"][0]["cluster_id"]
    with urlopen(f"http://{address}/v3/clusters/{cluster_id}/consumer-groups/{GROUP}/rebalances") as answer:
        return json.load(answer)


async def test_a_member_whose_application_sleeps_says_so_itself(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3, **BROKER).ready()
    await make_topic(cluster)
    async with AsyncExitStack() as stack:
        await start_members(cluster, stack, 1)
        sleeper = Consumer(
            TOPIC, bootstrap=cluster.bootstrap, group=GROUP, client_id="sleeper", max_poll_interval_ms=3_000
        )
        await stack.enter_async_context(sleeper)
        async with asyncio.timeout(60):
            while not sleeper.assignment:
                await sleeper.poll(timeout_ms=100)
        member_id, held = partitions_of(await explained(cluster), "sleeper")
        group = await stable(cluster, 1)  # it polls no more
    (event,) = [item for item in group.rebalances if item.cause == "poll_interval_exceeded"]
    assert event.member_id == member_id
    assert {move.partition for move in event.moves if move.from_member == member_id} >= held


async def test_brokers_that_come_and_go_cause_no_rebalance(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3, **BROKER).ready()
    await make_topic(cluster)
    async with AsyncExitStack() as stack:
        await start_members(cluster, stack, 2)
        before = await stable(cluster, 2)
        other = next(node for node in cluster.nodes if node.node_id != before.coordinator)
        await bounce(cluster, other)
        after = await stable(cluster, 2)
        assert after.coordinator == before.coordinator
        assert after.rebalances == before.rebalances, "not one record more"
        assert assignments(after) == assignments(before)
        await bounce(
            cluster, cluster.nodes[before.coordinator], meanwhile=lambda: stable(cluster, 2, also=has_moved(before))
        )
        moved = await stable(cluster, 2)
    assert assignments(moved) == assignments(before)
    assert moved.group_epoch == before.group_epoch
    assert [reason.cause for reason in moved.rebalances[0].reasons] == ["coordinator_moved"]
    assert all(is_mere_move(event) for event in moved.rebalances)
    assert f"from broker {before.coordinator} to broker" in moved.rebalances[0].reasons[0].detail


def has_moved(before: DescribeGroupResponse) -> Callable[[DescribeGroupResponse], bool]:
    return lambda group: group.coordinator != before.coordinator


def is_mere_move(event: RebalanceEvent) -> bool:
    return event.cause == "coordinator_moved" and len(event.reasons) == 1 and not event.moved_count


async def bounce(cluster: Cluster, node: Node, *, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
    """kill -9 until the others have noticed, then start it again."""
    cluster.kill(node.node_id)
    await until(lambda: _is_fenced(cluster, node), f"broker {node.node_id} is fenced")
    if meanwhile is not None:
        await meanwhile()
    cluster.start(node.node_id)
    await cluster.ready()


async def _is_fenced(cluster: Cluster, node: Node) -> bool:
    return node.node_id not in await active_brokers(cluster)

"""Lag in seconds of real groups on real brokers, as the SDK, the command, the HTTP API and /metrics tell it."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from urllib.request import urlopen

from integration.cluster import Cluster, clean_environment, full_isr, partitions_of, until
from integration.load import send

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol.lag import Lag

TOPIC = "lagging"
P0 = TopicPartition(TOPIC, 0)


def is_right(told_s: float, true_s: float, asked_within_s: float) -> bool:
    """Within a second or a hundredth; asking takes time too, on a busy machine, and it is not known when it was answered."""
    return -1 - true_s / 100 <= told_s - true_s <= 1 + true_s / 100 + asked_within_s


async def check(admin: Admin, group: str, oldest_unread_s: float | None, *, lag: int | None = None) -> Lag:
    """Ask, and compare with the time at which the oldest unread record was sent."""
    before_s = time.time()
    found = (await admin.group_offsets(group))[P0]
    took_s = time.time() - before_s
    true_s = 0.0 if oldest_unread_s is None else before_s - oldest_unread_s
    assert found.lag_seconds is not None and is_right(found.lag_seconds, true_s, took_s), (group, found, true_s)
    assert lag is None or found.lag == lag, found
    return found


@asynccontextmanager
async def member(cluster: Cluster, group: str) -> AsyncIterator[Consumer]:
    async with Consumer(
        TOPIC, bootstrap=cluster.bootstrap, group=group, auto_offset_reset="earliest", auto_commit=False
    ) as consumer:
        yield consumer


async def read(consumer: Consumer, count: int) -> None:
    """So many records more, committed."""
    left = count
    while left:
        for records in (await consumer.poll(max_records=left, timeout_ms=1_000)).values():
            left -= len(records)
    await consumer.commit()


async def send_lying(cluster: Cluster, count: int) -> float:
    """The producer's clock is an hour slow; returns when they were sent."""
    async with Producer(cluster.bootstrap, acks="all") as producer:
        sent_s = time.time()
        for _ in range(count):
            await producer.send(TOPIC, b"v", timestamp_ms=int((sent_s - 3_600) * 1_000))
    return sent_s


async def test_groups_of_five_kinds(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        async with (
            member(cluster, "stopped") as stopped,
            member(cluster, "idle") as idle,
            member(cluster, "never") as never,
        ):
            first_s = await send_lying(cluster, 10)
            await read(stopped, 4)
            await read(idle, 10)
            assert await never.poll(timeout_ms=30_000)  # read, and never committed
            await check(admin, "stopped", first_s, lag=6)
            await check(admin, "idle", None, lag=0)
            lag = await check(admin, "never", first_s, lag=10)
            assert not lag.has_committed

            async with member(cluster, "steady") as steady, member(cluster, "bursty") as bursty:
                await read(steady, 10)
                await read(bursty, 10)
                for _ in range(3):
                    burst_s = await send_lying(cluster, 300)
                    await read(steady, 300)
                    await check(admin, "steady", None, lag=0)
                    await read(bursty, 100)
                    await check(admin, "bursty", burst_s, lag=200)
                    await until(partial(grown, admin, "bursty", burst_s), "it grows with the clock")
                    await read(bursty, 200)
                    await check(admin, "bursty", None, lag=0)
            await read(idle, 900)
            await check(admin, "idle", None, lag=0)
            await check(admin, "stopped", first_s, lag=906)
        check_faces(cluster, first_s)


async def grown(admin: Admin, group: str, sent_s: float) -> bool:
    true_s = time.time() - sent_s
    found = (await admin.group_offsets(group))[P0]
    assert found.lag_seconds is not None
    return found.lag_seconds >= 2 and is_right(found.lag_seconds, true_s, 0.5)


def check_faces(cluster: Cluster, first_s: float) -> None:
    """What the SDK has said, the command and HTTP say too."""
    asked_s = time.time()
    described = subprocess.run(
        [sys.executable, "-m", "barnabas", "group", "describe", "stopped", "--format", "json", "--bootstrap", cluster.bootstrap],
        capture_output=True, text=True, env=clean_environment(), check=True,
    )  # fmt: skip
    (row,) = json.loads(described.stdout)["partitions"]
    assert (row["lag"], row["lag_is_estimate"]) == (906, False)
    assert is_right(row["lag_seconds"], asked_s - first_s, time.time() - asked_s)

    admin = cluster.nodes[0].property("admin.listener")
    with urlopen(f"http://{admin}/v3/clusters") as answer:
        name = json.load(answer)["data"][0]["cluster_id"]
    asked_s = time.time()
    with urlopen(f"http://{admin}/v3/clusters/{name}/consumer-groups/stopped/lags") as answer:
        (told,) = json.load(answer)["data"]
    assert (told["current_offset"], told["lag"]) == (4, 906)
    assert is_right(told["lag_seconds"], asked_s - first_s, time.time() - asked_s)

    asked_s = time.time()
    found = []
    for node in cluster.nodes:
        with urlopen(f"http://{node.property('admin.listener')}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found += [line for line in lines if line.startswith('kafka_consumergroup_lag_seconds{consumergroup="stopped"')]
        (size,) = [line for line in lines if line.startswith("barnabas_log_directory_size_bytes{folder=")]
        assert int(size.split()[-1]) > 0
    assert len(found) == 1, "one broker coordinates the group, and only it tells of it"
    assert is_right(float(found[0].split()[-1]), asked_s - first_s, time.time() - asked_s + 1)  # cached for a second


async def test_a_new_leader_knows_as_well_and_a_restarted_cluster_keeps_it(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        await full_isr(admin, [TOPIC])
        sent_s = await send_lying(cluster, 5)
        await admin.commit_offsets("g", {P0: 2})
        leader = (await partitions_of(admin, TOPIC))[0].leader
        cluster.kill(leader)

        async def has_moved() -> bool:
            return (await partitions_of(admin, TOPIC))[0].leader not in (leader, -1)

        await until(has_moved, "another broker leads")
        lag = await check(admin, "g", sent_s, lag=3)
        assert not lag.is_estimate, "a follower in the ISR has its own clock's word"

    running = [node for node in cluster.nodes if node.is_running]  # the one that was killed would only have an estimate
    for node in running:
        node.process.terminate()
    for node in running:
        await asyncio.to_thread(node.process.wait)
    cluster.start(*(node.node_id for node in running))
    await cluster.ready()
    async with cluster.admin() as admin:
        await until(partial(grown, admin, "g", sent_s), "the lag is known after a restart")


async def test_after_kill_of_everything_honest_producers_lag_is_estimated_rightly(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = await new_cluster(1).ready()
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, partitions=1, replication_factor=1)
        sent_s = time.time()
        await send(cluster.bootstrap, TOPIC, [b"a", b"b"])
        await admin.commit_offsets("g", {P0: 1})
    cluster.kill(0)
    cluster.start(0)
    await cluster.ready()
    async with cluster.admin() as admin:
        await until(partial(grown, admin, "g", sent_s), "the lag is known after a crash")
        assert (await admin.group_offsets("g"))[P0].is_estimate

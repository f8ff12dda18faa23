"""kill -9 and frozen processes under load: nothing that acks=all acknowledged is lost, moved or reordered."""

import asyncio
import signal
import time
from collections.abc import Callable

import pytest
from integration.cluster import Cluster, full_isr, partitions_of, until
from integration.load import Load, read_all, send

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import DeliveryTimeoutError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

TOPIC = "orders"
PARTITIONS = 3
ENOUGH = 300  # acknowledged records: well into the load
MIN_ISR_2 = {"min.insync.replicas": "2"}


async def make_topic(admin: Admin, *, partitions: int = PARTITIONS) -> None:
    await admin.create_topic(TOPIC, partitions=partitions, replication_factor=3, configs=MIN_ISR_2)


async def more(load: Load, count: int = ENOUGH) -> None:
    """Wait until so many more records are acknowledged: the cluster makes progress."""
    wanted = load.count + count
    await until(lambda: load.count >= wanted, f"{count} more acknowledged records (failed: {load.failed[:1]})")


async def test_all_brokers_killed_under_load_lose_nothing_and_groups_resume(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await make_topic(admin)
        async with Load(cluster.bootstrap, TOPIC, partitions=PARTITIONS, producers=3) as load:
            await more(load)
            committed = await read_some_and_commit(cluster, "billing")
            await more(load)
            cluster.kill(0, 1, 2)
            killed_s = time.monotonic()
            cluster.start(0, 1, 2)
            await more(load)
            print(f"all brokers killed: {time.monotonic() - killed_s:.2f} s until {ENOUGH} more were acknowledged")
        assert not load.failed
        await full_isr(admin, [TOPIC])
    load.check(await read_all(cluster.bootstrap, TOPIC))
    async with Consumer(TOPIC, bootstrap=cluster.bootstrap, group="billing", auto_offset_reset="none") as consumer:
        first: dict[TopicPartition, int] = {}
        while len(first) < PARTITIONS:
            for place, records in (await consumer.poll(timeout_ms=500)).items():
                first.setdefault(place, records[0].offset)
    assert first == committed


async def read_some_and_commit(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """Read at least one record of each partition and commit; returns what is committed."""
    async with Consumer(
        TOPIC, bootstrap=cluster.bootstrap, group=group, auto_offset_reset="earliest", auto_commit=False
    ) as consumer:
        positions: dict[TopicPartition, int] = {}
        while len(positions) < PARTITIONS:
            for place, records in (await consumer.poll(timeout_ms=500, max_records=20)).items():
                positions[place] = records[-1].offset + 1
        await consumer.commit(positions)
    return positions


@pytest.mark.parametrize("who", ["partition leader", "quorum leader", "follower"])
async def test_one_broker_killed_under_load(new_cluster: Callable[..., Cluster], who: str) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        # One partition, led by a broker that does not lead the quorum: so the three cases are three brokers.
        controller = (await admin.describe_cluster()).controller_id
        leader, follower = (node for node in range(3) if node != controller)
        await admin.create_topic(TOPIC, assignment=[[leader, follower, controller]], configs=MIN_ISR_2)
        victim = {"partition leader": leader, "quorum leader": controller, "follower": follower}[who]
        async with Load(cluster.bootstrap, TOPIC, partitions=1) as load:
            await more(load)
            cluster.kill(victim)
            killed_s = time.monotonic()
            await until(lambda: out_of_isr(admin, victim), f"broker {victim} leaves the ISR")
            await more(load)
            print(f"{who} killed: {time.monotonic() - killed_s:.2f} s until {ENOUGH} more were acknowledged")
            cluster.start(victim)
            await full_isr(admin, [TOPIC])
            await more(load)
        assert not load.failed
    load.check(await read_all(cluster.bootstrap, TOPIC))


async def out_of_isr(admin: Admin, node_id: int) -> bool:
    parts = await partitions_of(admin, TOPIC)
    return all(node_id not in item.isr and item.leader not in (node_id, -1) for item in parts)


async def test_a_frozen_follower_leaves_the_isr_and_comes_back(new_cluster: Callable[..., Cluster]) -> None:
    # The session is long, so that only the lag of the replica can take it out.
    cluster = await new_cluster(3, replica_lag_time_max_ms="1000", broker_session_timeout_ms="60000").ready()
    async with cluster.admin() as admin:
        controller = (await admin.describe_cluster()).controller_id
        leader, follower = (node for node in range(3) if node != controller)
        await admin.create_topic(TOPIC, assignment=[[leader, follower, controller]], configs=MIN_ISR_2)
        async with Load(cluster.bootstrap, TOPIC, partitions=1) as load:
            await more(load)
            cluster.nodes[follower].signal(signal.SIGSTOP)
            try:
                await until(lambda: out_of_isr(admin, follower), "the frozen follower leaves the ISR")
                await more(load)
            finally:
                cluster.nodes[follower].signal(signal.SIGCONT)
            await full_isr(admin, [TOPIC])
        assert not load.failed
    load.check(await read_all(cluster.bootstrap, TOPIC))


async def test_a_frozen_leader_acknowledges_nothing_that_is_lost(new_cluster: Callable[..., Cluster]) -> None:
    """The zombie: it wakes up and still believes that it leads; its successor has long acknowledged other records."""
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        controller = (await admin.describe_cluster()).controller_id
        leader, follower = (node for node in range(3) if node != controller)
        await admin.create_topic(TOPIC, assignment=[[leader, follower, controller]], configs=MIN_ISR_2)
        async with Load(cluster.bootstrap, TOPIC, partitions=1, producers=3) as load:
            await more(load)
            cluster.nodes[leader].signal(signal.SIGSTOP)
            try:
                await until(lambda: out_of_isr(admin, leader), "another leads")
                await more(load)
            finally:
                cluster.nodes[leader].signal(signal.SIGCONT)
            await full_isr(admin, [TOPIC])
            await more(load)
        assert not load.failed
    load.check(await read_all(cluster.bootstrap, TOPIC))


async def test_min_insync_replicas_refuses_before_anything_is_appended(new_cluster: Callable[..., Cluster]) -> None:
    """Five brokers, so that the quorum lives on while two of a partition's three replicas do not."""
    cluster = await new_cluster(5, replica_lag_time_max_ms="2000").ready()
    async with cluster.admin() as admin:
        # Voters are 0, 1 and 2; of the replicas 1, 3 and 4 two can die and the quorum goes on.
        await admin.create_topic(TOPIC, assignment=[[1, 3, 4]], configs=MIN_ISR_2)
        assert await send(cluster.bootstrap, TOPIC, [b"before"]) == [0]
        cluster.kill(3, 4)

        async def is_alone() -> bool:
            return (await partitions_of(admin, TOPIC))[0].isr == (1,)

        await until(is_alone, "the ISR is the leader alone")
        async with Producer(
            cluster.bootstrap, acks="all", request_timeout_ms=4_000, delivery_timeout_ms=5_000, on_error=lambda *_: None
        ) as producer:
            handle = await producer.send(TOPIC, b"refused", partition=0)
            # It is retried until its time is over; the error then tells why it was refused.
            with pytest.raises(DeliveryTimeoutError, match=r"1 in-sync replicas, but min\.insync\.replicas requires 2"):
                await handle
        ends = await admin.list_offsets(TOPIC)
        assert [item.offset for item in ends.values()] == [1]
        assert await send(cluster.bootstrap, TOPIC, [b"acks=1"], acks=1) == [1]
        cluster.start(3, 4)
        await full_isr(admin, [TOPIC])
        assert await send(cluster.bootstrap, TOPIC, [b"again"]) == [2]
    stored = await read_all(cluster.bootstrap, TOPIC)
    assert stored == {TopicPartition(TOPIC, 0): {0: b"before", 1: b"acks=1", 2: b"again"}}


async def test_sigterm_is_a_controlled_shutdown(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await make_topic(admin)
        async with Load(cluster.bootstrap, TOPIC, partitions=PARTITIONS) as load:
            await more(load)
            leaver = (await partitions_of(admin, TOPIC))[0].leader
            cluster.nodes[leaver].signal(signal.SIGTERM)
            code = await asyncio.to_thread(cluster.nodes[leaver].process.wait, 30)
            assert code == 0
            await more(load)
            cluster.start(leaver)
            await full_isr(admin, [TOPIC])
        assert not load.failed
    load.check(await read_all(cluster.bootstrap, TOPIC))
    assert "with leaderships that no other broker could take over" not in cluster.nodes[leaver].log()


async def test_all_brokers_stop_within_seconds_of_sigterm(new_cluster: Callable[..., Cluster]) -> None:
    """The last ones have no quorum left to ask; they must not wait for it until controlled.shutdown.timeout.ms."""
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await make_topic(admin)
    offsets = await send(cluster.bootstrap, TOPIC, [b"kept"])
    began_s = time.monotonic()
    for node in cluster.nodes:
        node.signal(signal.SIGTERM)
    codes = [await asyncio.to_thread(node.process.wait, 60) for node in cluster.nodes]
    took_s = time.monotonic() - began_s
    print(f"three brokers stopped in {took_s:.2f} s")
    assert codes == [0, 0, 0]
    assert took_s < 20  # less than the 30 s of controlled.shutdown.timeout.ms
    cluster.start(0, 1, 2)
    await cluster.ready()
    assert (await read_all(cluster.bootstrap, TOPIC))[TopicPartition(TOPIC, 0)] == {offsets[0]: b"kept"}

"""Idempotent producers, ours and Kafka's, through proxies that repeat requests and lose answers, with leaders killed by -9."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
from confluent_kafka import Producer as ConfluentProducer
from integration.cluster import Cluster, full_isr, partitions_of, until
from integration.load import read_all
from integration.lossy_proxy import HoldingProxy, LossyProxy, behind, put_behind_proxies
from integration.wire import produce
from kafka import KafkaProducer

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
RECORDS = 3_000
KILLS = 2
LOSES = 0.05
PROBE = b"probe"


@asynccontextmanager
async def behind_proxies(cluster: Cluster) -> AsyncIterator[list[LossyProxy]]:
    proxies = await put_behind_proxies(cluster, Random(5), loses=LOSES)
    try:
        async with cluster.admin() as admin:
            await admin.create_topic("t", partitions=2, replication_factor=3, configs={"min.insync.replicas": "2"})
        yield proxies
    finally:
        for proxy in proxies:
            await proxy.close()


def reached(progress: Callable[[], int], mark: int) -> bool:
    return progress() >= mark


async def kill_leaders(cluster: Cluster, progress: Callable[[], int]) -> None:
    """Kill -9 the leader of partition 0 and start it again, when a third and when two thirds are acknowledged."""
    for number in range(1, KILLS + 1):
        mark = number * RECORDS // (KILLS + 1)
        await until(partial(reached, progress, mark), "the producer goes on")
        async with cluster.admin() as admin:
            leader = (await partitions_of(admin, "t"))[0].leader
            cluster.kill(leader)
            cluster.start(leader)
            await cluster.ready()
            await full_isr(admin, ["t"])


async def stored(cluster: Cluster) -> list[list[bytes]]:
    found = await read_all(cluster.bootstrap, "t")
    return [[value for _, value in sorted(records.items())] for _, records in sorted(found.items())]


def expected() -> list[list[bytes]]:
    return [[b"%d" % number for number in range(start, RECORDS, 2)] for start in (0, 1)]


@pytest.mark.timeout(240)
async def test_our_producer_writes_each_record_once_and_in_order(new_cluster: Maker) -> None:
    cluster = new_cluster()
    async with behind_proxies(cluster) as proxies:
        bootstrap = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        acknowledged = 0

        async def send_all() -> None:
            nonlocal acknowledged
            async with Producer(
                bootstrap, batch_size=256, request_timeout_ms=5_000, delivery_timeout_ms=120_000
            ) as producer:
                waiting = []
                for number in range(RECORDS):
                    waiting.append(await producer.send("t", b"%d" % number, partition=number % 2))
                    if number % 10 == 9:
                        await asyncio.sleep(0.005)
                    acknowledged = sum(handle.is_done for handle in waiting) if number % 100 == 0 else acknowledged
                for handle in waiting:
                    await handle
                acknowledged = RECORDS

        await asyncio.gather(send_all(), kill_leaders(cluster, lambda: acknowledged))
        assert sum(proxy.lost for proxy in proxies) > 0 and sum(proxy.repeated for proxy in proxies) > 10
        assert await stored(cluster) == expected()


@pytest.mark.timeout(240)
async def test_kafka_pythons_producer_writes_each_record_once_and_in_order(new_cluster: Maker) -> None:
    cluster = new_cluster()
    async with behind_proxies(cluster) as proxies:
        bootstrap = [f"127.0.0.1:{proxy.port}" for proxy in proxies]
        acknowledged: list[object] = []

        def send_all() -> None:
            producer = KafkaProducer(
                bootstrap_servers=bootstrap,
                acks="all",
                enable_idempotence=True,
                batch_size=256,
                request_timeout_ms=5_000,
                delivery_timeout_ms=120_000,
                retry_backoff_ms=50,
            )
            waiting = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(RECORDS)]
            for future in waiting:
                future.get(timeout=120)
                acknowledged.append(future)
            producer.close()

        await asyncio.gather(asyncio.to_thread(send_all), kill_leaders(cluster, lambda: len(acknowledged)))
        assert sum(proxy.lost for proxy in proxies) > 0 and sum(proxy.repeated for proxy in proxies) > 10
        assert await stored(cluster) == expected()


@pytest.mark.timeout(240)
async def test_librdkafkas_producer_writes_each_record_once_and_in_order(new_cluster: Maker) -> None:
    cluster = new_cluster()
    async with behind_proxies(cluster) as proxies:
        acknowledged = 0
        failed: list[object] = []

        def delivered(error: object, _: object) -> None:
            nonlocal acknowledged
            acknowledged += 1
            if error is not None:
                failed.append(error)

        def send_all() -> None:
            producer = ConfluentProducer(
                {
                    "bootstrap.servers": ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies),
                    "enable.idempotence": True,
                    "batch.num.messages": 8,
                    "linger.ms": 1,
                    "socket.timeout.ms": 5_000,
                    "message.timeout.ms": 120_000,
                    "retry.backoff.ms": 50,
                }
            )
            for number in range(RECORDS):
                producer.produce("t", b"%d" % number, partition=number % 2, on_delivery=delivered)
                producer.poll(0.005 if number % 10 == 9 else 0)
            assert producer.flush(120) == 0

        await asyncio.gather(asyncio.to_thread(send_all), kill_leaders(cluster, lambda: acknowledged))
        assert not failed
        assert sum(proxy.lost for proxy in proxies) > 0 and sum(proxy.repeated for proxy in proxies) > 10
        assert await stored(cluster) == expected()


@pytest.mark.timeout(240)
async def test_an_in_sync_replica_that_returns_between_pipelined_batches_of_librdkafka_doubles_nothing(
    new_cluster: Maker,
) -> None:
    """The first batch is stored, its answer is lost; its repetition and the second batch are refused with
    NOT_ENOUGH_REPLICAS; the partition has enough replicas again before the third batch is looked at. After
    OUT_OF_ORDER_SEQUENCE_NUMBER for the third, librdkafka raises its producer epoch and sends the first once more."""
    cluster = new_cluster()
    proxies = await behind(cluster, HoldingProxy)
    try:
        async with cluster.admin() as admin:
            await admin.create_topic("t", partitions=1, replication_factor=2)
            replicas = (await partitions_of(admin, "t"))[0].replicas
            leader, follower = replicas
            await full_isr(admin, ["t"])

            async def demand(count: int) -> None:
                """Return when the leader refuses, or takes, a batch of one replica."""
                await admin.alter_config("t", {"min.insync.replicas": str(count)})
                refusal = ErrorCode.NOT_ENOUGH_REPLICAS if count > 1 else ErrorCode.NONE
                node = cluster.nodes[leader]

                async def is_followed() -> bool:
                    batch = encode_batch([PROBE], timestamps_ms=int(time.time() * 1000))
                    return (await produce((node.host, node.port), "t", batch, acks=-1)).error == refusal

                await until(is_followed, f"the leader asks for {count} in-sync replicas")

            async def is_alone() -> bool:
                return (await partitions_of(admin, "t"))[0].isr == (leader,)

            cluster.kill(follower)
            await until(is_alone, "the follower has left the ISR")
            proxy = proxies[leader]
            producer = ConfluentProducer(
                {
                    "bootstrap.servers": f"127.0.0.1:{proxy.port}",
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    "batch.num.messages": 1,
                    "retry.backoff.ms": 1,
                }
            )
            proxy.cut = True
            producer.produce("t", b"0")
            await until(lambda: producer.poll(0) or proxy.arrived == 1, "the first batch has arrived")
            proxy.let_pass(1)
            await until(lambda: producer.poll(0) or not proxy.cut, "the answer to the first batch is lost")
            for number in (1, 2):
                producer.produce("t", b"%d" % number)
            await demand(2)
            await until(lambda: producer.poll(0) or proxy.arrived == 4, "three batches are under way")
            proxy.let_pass(2)
            await until(lambda: producer.poll(0) or proxy.answered == 3, "two of them are refused")
            await demand(1)
            proxy.let_pass(1)
            await until(lambda: producer.poll(0) or proxy.answered == 4, "the third is answered")
            proxy.let_all_pass()
            assert await asyncio.to_thread(producer.flush, 60) == 0
        values = [value for value in (await stored(cluster))[0] if value != PROBE]
        assert values == [b"0", b"1", b"2"]
    finally:
        for proxy in proxies:
            await proxy.close()

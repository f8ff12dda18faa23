"""A commit whose connection broke may come behind a newer one of the same consumer: the coordinator does not take it."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from integration.cluster import Cluster, until
from integration.lossy_proxy import LateProxy, behind

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
RECORDS = 50
PLACE = TopicPartition("t", 0)


@asynccontextmanager
async def behind_a_proxy(cluster: Cluster) -> AsyncIterator[LateProxy]:
    (proxy,) = await behind(cluster, LateProxy)
    try:
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_many(PLACE.topic, [b"x"] * RECORDS, partition=0)
            await producer.flush()
        yield proxy
    finally:
        await proxy.close()


async def told_late(proxy: LateProxy) -> None:
    """The broker gets the commit that was held, and has answered it."""
    proxy.deliver.set()
    async with asyncio.timeout(20):
        await proxy.answered.wait()


@pytest.mark.parametrize(("protocol", "subscribes"), [("consumer", True), ("classic", True), ("consumer", False)])
async def test_a_commit_that_comes_behind_a_newer_one_changes_nothing(
    new_cluster: Maker, protocol: str, subscribes: bool
) -> None:
    cluster = new_cluster(1)
    async with behind_a_proxy(cluster) as proxy:
        reader = Consumer(
            *([PLACE.topic] if subscribes else []),
            bootstrap=f"127.0.0.1:{proxy.port}",
            group=f"g-{uuid.uuid4().hex[:6]}",
            group_protocol=protocol,
            auto_offset_reset="earliest",
            auto_commit=False,
        )
        async with reader:
            if not subscribes:
                reader.assign([PLACE])
            await until(lambda: reader.poll(timeout_ms=1000), "it reads")
            proxy.holds_next = True
            first = reader.commit_nowait({PLACE: 10})
            async with asyncio.timeout(20):
                await proxy.held.wait()
            await first
            await reader.commit({PLACE: 20})
            await told_late(proxy)
            (committed,) = (await reader.committed(PLACE)).values()
            assert committed is not None and committed == 20

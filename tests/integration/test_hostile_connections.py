"""Crowds of idle connections: honest producers, the quorum and the operators go on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hostile.idle_connections import idle_connections
from integration.cluster import Cluster, active_brokers, full_isr, limited, until

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer

TOPIC = "orders"
DESCRIPTORS = 256
CROWD = 300  # to each broker; more than there are descriptors
MAX_LOG_BYTES = 200_000  # asyncio alone wrote megabytes of tracebacks
Maker = Callable[..., Cluster]


class Acknowledged:
    """What a producer that sends all the time has been promised."""

    def __init__(self) -> None:
        self.count = 0

    async def more(self, wanted: int) -> None:
        target = self.count + wanted
        await until(lambda: self.count >= target, f"{wanted} more acknowledgements")


@asynccontextmanager
async def producing(cluster: Cluster) -> AsyncIterator[Acknowledged]:
    """Records for all partitions, one after the other; whatever fails is sent again by the next round."""
    seen = Acknowledged()

    async def produce(producer: Producer) -> None:
        number = 0
        while True:
            number += 1
            try:
                await (await producer.send(TOPIC, b"x" * 1000, partition=number % 6))
            except BarnabasError:
                continue
            seen.count += 1

    async with Producer(cluster.bootstrap) as producer:
        task = asyncio.create_task(produce(producer))
        try:
            await seen.more(1)
            yield seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_crowd_uses_up_no_descriptors_that_a_cluster_needs(new_cluster: Maker) -> None:
    """While strangers hold every descriptor that they get, segments roll, a topic is made, and the quorum elects."""
    cluster = await new_cluster(3, launcher=limited(DESCRIPTORS), num_partitions="1").ready()
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, partitions=6, replication_factor=3,
                                 configs={"min.insync.replicas": "2", "segment.bytes": "5000"})  # fmt: skip
        await full_isr(admin, [TOPIC])
        async with producing(cluster) as acknowledged:
            async with idle_connections([(node.host, node.port) for node in cluster.nodes], CROWD):
                await acknowledged.more(200)
                await admin.create_topic("while-full", partitions=6, replication_factor=3)
                controller = (await admin.describe_cluster()).controller_id
                cluster.kill(controller)
                left = {node.node_id for node in cluster.nodes} - {controller}

                async def has_new_controller() -> bool:
                    found = await admin.describe_cluster()
                    return found.controller_id in left

                await until(has_new_controller, "another controller")
                await acknowledged.more(200)
                cluster.start(controller)
                await until(lambda: _all_active(cluster), "the killed broker is back, beside the crowd")
            assert all(node.is_running for node in cluster.nodes)
    for node in cluster.nodes:
        log = node.log()
        assert "Traceback" not in log and len(log) < MAX_LOG_BYTES
    assert any("too many connections" in node.log() for node in cluster.nodes)


async def test_brokers_and_operators_get_in_where_max_connections_is_reached(new_cluster: Maker) -> None:
    cluster = await new_cluster(1, max_connections="40").ready()
    async with idle_connections([(cluster.nodes[0].host, cluster.nodes[0].port)], 80):
        async with Admin(cluster.nodes[0].address) as operator:
            await operator.create_topic(TOPIC, partitions=1)
            cluster.add(1)

            async def has_both() -> bool:
                found = await operator.describe_cluster()
                return {item.node_id for item in found.brokers if not item.fenced} == {0, 1}

            await until(has_both, "a new broker joins beside the crowd")
        with pytest.raises(BarnabasError):
            async with Producer(cluster.nodes[0].address, client_id="a-stranger", max_block_ms=2_000) as producer:
                await producer.send(TOPIC, b"refused")


async def _all_active(cluster: Cluster) -> bool:
    return await active_brokers(cluster) == {node.node_id for node in cluster.nodes}

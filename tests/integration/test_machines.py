"""Several brokers on each machine: what a machine has can be lost as a whole."""

import asyncio
from collections.abc import Callable

from integration.cluster import Cluster, until

from barnabas.net.client.admin.cluster_health import cluster_health
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
MACHINES = 3
VALUES = [b"%d" % number for number in range(2_000)]


async def test_all_brokers_of_a_machine_die_at_once_and_nothing_is_lost(new_cluster: Maker) -> None:
    cluster = await new_cluster(6, machines=MACHINES, min_insync_replicas="2").ready()
    async with cluster.admin() as admin, Producer(cluster.bootstrap, acks="all") as producer:
        await admin.create_topic("t", partitions=24)
        topic = await admin.describe_topic("t")
        for partition in topic.partitions:
            assert sorted(node_id % MACHINES for node_id in partition.replicas) == [0, 1, 2]
        assert {sum(item.leader == node_id for item in topic.partitions) for node_id in range(6)} == {4}
        half = len(VALUES) // 2
        for value in VALUES[:half]:
            await producer.send("t", value)
        await producer.flush()

        cluster.kill(2, 5)  # one is a voter, and the quorum stays
        for value in VALUES[half:]:
            await producer.send("t", value)
        await producer.flush()

        async def all_led() -> bool:
            topic = await admin.describe_topic("t")
            return all(item.leader in (0, 1, 3, 4) and len(item.isr) == 2 for item in topic.partitions)

        await until(all_led, "the partitions of the machine led by others")
        described = {broker.node_id: broker.machine for broker in (await admin.describe_cluster()).brokers}
        assert described == {node_id: f"machine-{node_id % MACHINES}" for node_id in range(6)}
        assert not [cause for cause in (await cluster_health(admin)).causes if "one machine" in cause]
    read: list[bytes] = []
    async with Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(60):
            while len(read) < len(VALUES):
                for records in (await consumer.poll(timeout_ms=500)).values():
                    read += [record.value or b"" for record in records]
    assert sorted(read) == sorted(VALUES)


async def test_brokers_that_are_found_to_share_a_machine_are_reported(new_cluster: Maker) -> None:
    """They were started without its name: partitions were placed as if each were alone."""
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=2, replication_factor=3)
        for node in cluster.nodes[:2]:
            node.kill()
            node.config.write_text(node.config.read_text() + "broker.machine=rack-server-7\n")
            node.launch()

        async def told() -> str | None:
            causes = (await cluster_health(admin)).causes
            return next((cause for cause in causes if "on one machine" in cause), None)

        assert "2 partitions have two replicas on one machine: t-0, t-1" in await until(told, "the shared machine")

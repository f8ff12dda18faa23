"""A setting that a guarantee rests on has one value for the cluster, whatever the files of its brokers say."""

from collections.abc import Callable

import pytest
from integration.cluster import Cluster, until

from barnabas.net.client.admin.admin import BROKER, Admin
from barnabas.net.client.connection.errors import DeliveryTimeoutError
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol.responses import ClusterBroker

Maker = Callable[..., Cluster]


async def isr_is(admin: Admin, expected: list[int]) -> bool:
    (partition,) = (await admin.describe_topic("t")).partitions
    return list(partition.isr) == expected


async def test_a_leader_with_another_min_insync_replicas_in_its_file_acknowledges_nothing_alone(
    new_cluster: Maker,
) -> None:
    cluster = await new_cluster(3, min_insync_replicas="2").ready()
    cluster.kill(1)
    properties = cluster.nodes[1].folder / "server.properties"
    text = properties.read_text(encoding="utf-8")
    assert "min.insync.replicas=2" in text
    properties.write_text(text.replace("min.insync.replicas=2", "min.insync.replicas=1"), encoding="utf-8")
    cluster.start(1)
    await cluster.ready()
    await until(
        lambda: "the cluster's value is 2" in cluster.nodes[1].log(), "broker 1 says that its file has no effect"
    )
    async with cluster.admin() as admin:

        async def ignored() -> list[ClusterBroker]:
            """A broker that has just started may not know of itself yet."""
            return [item for item in (await admin.describe_cluster()).brokers if item.ignored_settings]

        (listed,) = await until(ignored, "the cluster tells of the setting")
        assert (listed.node_id, listed.ignored_settings[0].of_file) == (1, "1")
        await admin.create_topic("t", assignment=[[1, 2]])
        await until(lambda: isr_is(admin, [1, 2]), "both replicas are in the ISR")
        cluster.kill(2)
        await until(lambda: isr_is(admin, [1]), "broker 1 is alone in the ISR")
        async with Producer(cluster.bootstrap, delivery_timeout_ms=5_000, request_timeout_ms=4_000) as producer:
            with pytest.raises(DeliveryTimeoutError, match="requires 2"):
                await (await producer.send("t", b"alone"))
            await admin.alter_config("", {"min.insync.replicas": "1"}, resource_type=BROKER)
        async with Producer(cluster.bootstrap) as producer:
            await (await producer.send("t", b"allowed now"))

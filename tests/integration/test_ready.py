"""What `Cluster.ready` of the other tests promises."""

from collections.abc import Callable

from integration.cluster import Cluster, describe_cluster

from barnabas.net.wire.protocol.requests import DescribeClusterRequest
from barnabas.net.wire.protocol.responses import DescribeClusterResponse


async def epochs(cluster: Cluster, asked: int) -> dict[int, int]:
    """Of the active brokers, as one of them knows them."""
    async with cluster.admin() as admin:
        found: DescribeClusterResponse = await admin.client.call(asked, DescribeClusterRequest())
    return {item.node_id: item.broker_epoch for item in found.brokers if not item.fenced}


async def test_a_cluster_is_ready_when_the_processes_that_run_are_registered(
    new_cluster: Callable[..., Cluster],
) -> None:
    """Not those that were killed, whose sessions have not ended yet; and every broker knows it."""
    cluster = await new_cluster(3, broker_session_timeout_ms="60000").ready()
    before = await epochs(cluster, 0)
    controller = (await describe_cluster(cluster)).controller_id
    chosen = next(node_id for node_id in before if node_id != controller)
    cluster.kill(chosen)
    cluster.start(chosen)
    await cluster.ready()
    for node in cluster.nodes:
        after = await epochs(cluster, node.node_id)
        assert after.keys() == before.keys(), node.node_id
        assert [node_id for node_id in after if after[node_id] > before[node_id]] == [chosen], node.node_id

"""What `Cluster.ready` of the other tests promises."""

from collections.abc import Callable

from integration.cluster import Cluster, describe_cluster


async def epochs(cluster: Cluster) -> dict[int, int]:
    return {item.node_id: item.broker_epoch for item in (await describe_cluster(cluster)).brokers if not item.fenced}


async def test_a_cluster_is_ready_when_the_processes_that_run_are_registered(
    new_cluster: Callable[..., Cluster],
) -> None:
    """Not those that were killed, whose sessions have not ended yet."""
    cluster = await new_cluster(3, broker_session_timeout_ms="60000").ready()
    before = await epochs(cluster)
    controller = (await describe_cluster(cluster)).controller_id
    chosen = next(node_id for node_id in before if node_id != controller)
    cluster.kill(chosen)
    cluster.start(chosen)
    after = await epochs(await cluster.ready())
    assert after.keys() == before.keys()
    assert [node_id for node_id in after if after[node_id] > before[node_id]] == [chosen]

"""Folders of another cluster, and voters that were emptied: nobody serves as if nothing had happened, and the log says why."""

import asyncio
import shutil
from collections.abc import Callable

from integration.cluster import Cluster, Node, until
from integration.faulty import findings

Maker = Callable[..., Cluster]


def is_found(address: str, wanted: str) -> bool:
    return any(wanted in what for what in findings(address))


async def ended(node: Node) -> None:
    await until(lambda: not node.is_running, f"broker {node.node_id} refuses to go on")


async def test_a_broker_with_the_folder_of_another_cluster_refuses_to_start(new_cluster: Maker) -> None:
    other = await new_cluster(1, name="other").ready()
    other.kill(0)
    cluster = await new_cluster(3).ready()
    cluster.kill(0)
    data = cluster.nodes[0].folder / "data"
    shutil.rmtree(data)
    shutil.copytree(other.nodes[0].folder / "data", data)
    cluster.start(0)
    await ended(cluster.nodes[0])
    log = cluster.nodes[0].log()
    assert "the data folder of broker 0 belongs to cluster" in log and "mount the right data folder" in log
    assert "to cluster" in log and cluster.nodes[0].process.returncode != 0
    told = "a broker at 127.0.0.1 has the data folder of another cluster ("
    await until(lambda: asyncio.to_thread(is_found, cluster.nodes[1].address, told), "an operator elsewhere is told")
    shutil.rmtree(data)
    data.mkdir()
    cluster.start(0)
    await cluster.ready()


async def test_brokers_refuse_the_new_cluster_of_a_sole_voter_that_was_emptied(new_cluster: Maker) -> None:
    cluster = await new_cluster(3, voters=1).ready()
    cluster.kill(0)
    shutil.rmtree(cluster.nodes[0].folder / "data")
    (cluster.nodes[0].folder / "data").mkdir()
    cluster.start(0)
    for node in cluster.nodes[1:]:
        await ended(node)
        assert "belongs to cluster" in node.log()
        node.launch()
    for node in cluster.nodes[1:]:
        await ended(node)
    told = "a broker that looks for its quorum belongs to cluster"
    await until(lambda: told in cluster.nodes[0].log(), "the emptied voter says that brokers of another cluster ask")

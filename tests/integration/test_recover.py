"""Two of three voters are lost: the folder of the third becomes the quorum, with what it holds, and voters are added again."""

import shutil
import subprocess
import sys
from collections.abc import Callable

from integration.cluster import Cluster, clean_environment, full_isr, until
from integration.load import read_all

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
TIMEOUT_S = 30


def recover(cluster: Cluster, node_id: int, *flags: str) -> subprocess.CompletedProcess[str]:
    config = str(cluster.nodes[node_id].config)
    command = [sys.executable, "-P", "-m", "barnabas", "cluster", "recover", "--config", config, *flags]
    return subprocess.run(
        command, capture_output=True, text=True, env=clean_environment(), timeout=TIMEOUT_S, check=False
    )


async def test_the_last_folder_becomes_the_quorum_and_others_are_added_again(new_cluster: Maker) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        # The promise covers min.insync.replicas - 1 lost disks.
        await admin.create_topic("t", assignment=[[0, 1, 2]], configs={"min.insync.replicas": "3"})
        await full_isr(admin, ["t"])
        cluster_id = (await admin.describe_cluster()).cluster_id
    async with Producer(cluster.bootstrap) as producer:
        for number in range(20):
            await (await producer.send("t", b"%d" % number))
    refused = recover(cluster, 0, "--accept-loss")
    assert refused.returncode == 1 and "another broker is running on it" in refused.stderr
    cluster.kill(0)
    before = (cluster.nodes[0].data / "__cluster_metadata").stat().st_mtime_ns
    alive = recover(cluster, 0, "--accept-loss")  # there would be two quorums
    assert alive.returncode == 1 and "most voters are not lost: 1 at 127.0.0.1:" in alive.stderr
    assert (cluster.nodes[0].data / "__cluster_metadata").stat().st_mtime_ns == before
    cluster.kill(1, 2)
    for node in cluster.nodes[1:]:
        shutil.rmtree(node.data)
    foreign = recover(cluster, 0, "--accept-loss", "--override", "node.id=1")
    assert foreign.returncode == 1 and "belongs to node 0, this is node 1: correct node.id" in foreign.stderr
    told = recover(cluster, 0)
    assert told.returncode == 2 and "Permanently lost" in told.stderr and "--accept-loss" in told.stderr
    assert recover(cluster, 0, "--accept-loss").returncode == 0
    cluster.start(0)
    await cluster.ready()
    async with cluster.admin() as admin:
        await until(lambda: leads(admin), "the surviving replica leads, before the emptied ones are there")
        cluster.start(1, 2)
        for node_id in (1, 2):
            # Refused as long as the metadata of old shows it as active, or the new controller as fenced.
            await until(lambda node_id=node_id: admin.add_voter(node_id), f"{node_id} is a voter")  # type: ignore[misc]
        await until(lambda: has_voters(cluster), "all three vote")
        await full_isr(admin, ["t"])
        assert (await admin.describe_cluster()).cluster_id == cluster_id
    assert len((await read_all(cluster.bootstrap, "t"))[TopicPartition("t", 0)]) == 20


async def leads(admin: Admin) -> bool:
    return (await admin.describe_topic("t")).partitions[0].leader == 0


async def has_voters(cluster: Cluster) -> bool:
    async with cluster.admin() as admin:
        return sorted((await admin.describe_quorum()).voters) == [0, 1, 2]

"""Voters whose quorum folders are restored from old copies: brokers that know more refuse them until the loss is accepted."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from integration.cluster import Cluster, Node, clean_environment, full_isr, until
from integration.load import read_all

from barnabas.kraft.metadata.replay import LOST_EPOCHS
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer

pytestmark = pytest.mark.timeout(300)  # each start of a cluster takes seconds on a busy machine
Maker = Callable[..., Cluster]
TIMEOUT_S = 30
QUORUM_FOLDER = "__cluster_metadata"
T0 = TopicPartition("t", 0)


def command(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "barnabas", *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=TIMEOUT_S,
        check=False,
    )


def recover(cluster: Cluster, node_id: int) -> subprocess.CompletedProcess[str]:
    config = str(cluster.nodes[node_id].config)
    return command(cluster, "cluster", "recover", "--config", config, "--accept-loss")


async def stop(nodes: Iterable[Node]) -> None:
    """As `systemctl stop` of each: a clean stop where the cluster allows it, a hard one where nobody is left to ask."""
    for node in nodes:
        if node.is_running:
            node.signal(signal.SIGTERM)
    for node in nodes:
        await until(lambda node=node: not node.is_running, f"broker {node.node_id} has stopped")  # type: ignore[misc]


async def produce(cluster: Cluster, topic: str, count: int) -> None:
    async with Producer(cluster.bootstrap) as producer:
        for number in range(count):
            await (await producer.send(topic, b"%d" % number))


async def move_leader(admin: Admin, target: int) -> None:
    """Again, if the controller, which balances leaders soon after a start, has taken the leadership back."""

    async def moved() -> bool:
        if not await leads(admin, target):
            await admin.elect_leader("t", 0, target=target)
        return await leads(admin, target)

    await until(moved, f"broker {target} leads")


async def leads(admin: Admin, node_id: int) -> bool:
    return (await admin.describe_topic("t")).partitions[0].leader == node_id


async def has_voters(cluster: Cluster, voters: list[int]) -> bool:
    async with cluster.admin() as admin:
        return sorted((await admin.describe_quorum()).voters) == voters


async def test_brokers_refuse_a_quorum_of_the_past_until_its_loss_is_accepted(
    new_cluster: Maker, tmp_path: Path
) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", assignment=[[0, 1, 2]], configs={"min.insync.replicas": "2"})
        await full_isr(admin, ["t"])
    await produce(cluster, "t", 10)
    cluster.kill(0, 1, 2)  # with a full ISR, so that every survivor may lead
    for node in cluster.nodes:
        shutil.copytree(node.data / QUORUM_FOLDER, tmp_path / str(node.node_id))
    cluster.start(0, 1, 2)
    await cluster.ready()
    async with cluster.admin() as admin:
        await full_isr(admin, ["t"])
        for target in (1, 2, 0, 1):  # leader epochs that the copies know nothing of, and that are in the logs
            await move_leader(admin, target)
            await produce(cluster, "t", 5)
        await admin.create_topic("later", assignment=[[0, 1, 2]])
        await full_isr(admin, ["t", "later"])
    await produce(cluster, "later", 3)
    await stop(cluster.nodes)
    for node in cluster.nodes:
        shutil.rmtree(node.data / QUORUM_FOLDER)
        shutil.copytree(tmp_path / str(node.node_id), node.data / QUORUM_FOLDER)
    sizes = [node.log_size() for node in cluster.nodes]
    cluster.start(0, 1, 2)
    await until(lambda: sum(not node.is_running for node in cluster.nodes) >= 2, "a majority has refused")
    ended = [node for node in cluster.nodes if not node.is_running]
    for node in ended:
        told = "\n".join(node.log_since(sizes[node.node_id]))
        assert "knows the metadata up to offset" in told and "cluster recover" in told
    assert any("event=broker_refused" in node.log() for node in cluster.nodes)
    assert not list(cluster.nodes[0].data.glob("*-stray"))
    await stop(cluster.nodes)

    assert recover(cluster, 0).returncode == 0
    for node in cluster.nodes[1:]:
        shutil.rmtree(node.data / QUORUM_FOLDER)
    cluster.start(0)
    await cluster.ready()
    assert "event=metadata_lost" in cluster.nodes[0].log()
    async with cluster.admin() as admin:
        await until(lambda: leads(admin, 0), "the survivor leads")
        cluster.start(1, 2)
        for node_id in (1, 2):
            await until(lambda node_id=node_id: admin.add_voter(node_id), f"{node_id} is a voter")  # type: ignore[misc]
        await until(lambda: has_voters(cluster, [0, 1, 2]), "all three vote")
        await full_isr(admin, ["t"])
        partition = (await admin.describe_topic("t")).partitions[0]
        assert partition.leader_epoch > LOST_EPOCHS
        assert "later" not in {topic.name for topic in await admin.describe_topics()}
    await produce(cluster, "t", 5)
    records = (await read_all(cluster.bootstrap, "t"))[T0]
    assert len(records) == 10 + 4 * 5 + 5
    assert all(list(node.data.glob("later-0.*-stray")) for node in cluster.nodes)  # kept, for whoever needs its records


async def test_a_running_broker_refuses_voters_that_went_back_to_a_snapshot(new_cluster: Maker, tmp_path: Path) -> None:
    """The voters' machines are restored as a whole, so only the fourth broker can know."""
    cluster = await new_cluster(4, voters=3).ready()
    voters, observer = cluster.nodes[:3], cluster.nodes[3]
    async with cluster.admin() as admin:
        await admin.create_topic("t", assignment=[[3]])
        await full_isr(admin, ["t"])
    await stop(voters)
    for node in voters:
        shutil.copytree(node.data, tmp_path / str(node.node_id))
    cluster.start(0, 1, 2)
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic("later", assignment=[[3]])
        await until(lambda: "event=leads partition=later-0" in observer.log(), "the observer knows of it")
    cluster.kill(0, 1, 2)
    for node in voters:
        shutil.rmtree(node.data)
        shutil.copytree(tmp_path / str(node.node_id), node.data)
    cluster.start(0, 1, 2)
    await until(lambda: not observer.is_running, "the broker that knows more has stopped")
    assert "knows the metadata up to offset" in observer.log()
    health = command(cluster, "cluster", "health", "--bootstrap", voters[0].address)
    assert health.returncode == 3, health.stdout
    assert "broker 3 knows the metadata up to offset" in health.stdout and "cluster recover" in health.stdout
    cluster.start(3)  # by its supervisor: what it has noted on its disk is enough
    await until(lambda: not observer.is_running, "it has stopped again")

    await stop(voters)
    assert recover(cluster, 0).returncode == 0
    for node in voters[1:]:
        shutil.rmtree(node.data / QUORUM_FOLDER)
    cluster.start(0, 3)
    await until(lambda: observer.is_running and "event=metadata_lost" in observer.log(), "it is taken")
    async with cluster.admin() as admin:
        await until(lambda: leads(admin, 3), "it leads again")

"""A broker with two data folders, one of which fails: the other serves on, its partitions fail over, and it comes back.

The faults are those of single writes, from a library that is preloaded into the broker (tests/faults/shim.py).
"""

import asyncio
import errno
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.shim import Shim, build, why_not
from integration.cluster import Cluster, Node, clean_environment, full_isr, partitions_of, until, write_properties
from integration.load import Load, read_all, send
from kafka import KafkaAdminClient

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
POOR = 2  # the broker with two folders
MIN_ISR_2 = {"min.insync.replicas": "2"}
FATAL_EXIT_CODE = 70


class TwoFolders:
    """Broker 2 of a cluster, started anew with a second folder whose disk does what the shim is told."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self.second = node.folder / "second"
        self.shim = Shim(build(folder), folder / "orders", self.second)

    def configure(self) -> None:
        lines = self.node.config.read_text(encoding="utf-8").splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        values["log.dirs"] = f"{self.node.data},{self.second}"
        write_properties(self.node.config, values)

    async def launch(self) -> None:
        """Start it, and wait until it takes part."""
        size = self.node.log_size()
        self.node.environment = self.shim.environment
        self.node.launch()
        await until(lambda: any("broker unfenced" in line for line in self.node.log_since(size)), "it takes part")

    def in_second(self, topic: str, count: int) -> set[int]:
        """The partitions of a topic that lie in the second folder."""
        return {number for number in range(count) if (self.second / f"{topic}-{number}").exists()}


def command(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "barnabas", *arguments, "--bootstrap", cluster.bootstrap],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
    )
    return done.returncode, done.stdout, done.stderr


async def commanded(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    return await asyncio.get_running_loop().run_in_executor(None, command, cluster, *arguments)


async def two_folders(cluster: Cluster, folder: Path) -> TwoFolders:
    if why_not():
        pytest.skip(why_not())
    await cluster.ready()
    poor = TwoFolders(cluster.nodes[POOR], folder)
    cluster.kill(POOR)
    poor.configure()
    await poor.launch()
    return poor


async def make_topic(admin: Admin, name: str = "orders", partitions: int = 4) -> None:
    """Broker 2 leads all of it."""
    await admin.create_topic(name, assignment=[[POOR, 0, 1]] * partitions, configs=MIN_ISR_2)


@pytest.mark.parametrize("fault", ["write_errno", "sync_errno"])
async def test_a_failing_folder_fails_over_alone_and_comes_back(new_cluster: Maker, tmp_path: Path, fault: str) -> None:
    cluster = new_cluster(3, log_segment_bytes="200000", auto_leader_rebalance_enable="false")
    poor = await two_folders(cluster, tmp_path)
    process = poor.node.process
    async with cluster.admin() as admin:
        await make_topic(admin)
        await send(cluster.bootstrap, "orders", [b"%d" % number for number in range(40)])
        bad = poor.in_second("orders", 4)
        assert len(bad) == 2, "partitions are spread over the folders by count"
        async with Load(cluster.bootstrap, "orders", partitions=4) as load:
            await until(lambda: load.count > 300, "the load runs")
            poor.shim.order(**{fault: errno.EIO})

            async def failed_over() -> bool:
                parts = await partitions_of(admin, "orders")
                return all(
                    (item.leader != POOR and POOR not in item.isr and POOR in item.offline) == (number in bad)
                    for number, item in enumerate(parts)
                )

            await until(failed_over, "the partitions of the bad folder, and no others, have other leaders")
            before = load.count
            await until(lambda: load.count > before + 300, "all partitions are written to")
            assert poor.node.process is process and poor.node.is_running
            code, out, err = await commanded(cluster, "cluster", "health")
            assert code == 3 and f"broker {POOR}: data folder {poor.second} is offline since" in out + err
            assert "bring-back" in out + err
            code, out, _ = await commanded(cluster, "broker", "storage", str(POOR), "-f", "json")
            states = {row["folder"]: row["state"] for row in json.loads(out)}
            assert code == 3 and states == {str(poor.node.data): "online", str(poor.second): "offline"}
            assert "barnabas_offline_log_directories 1" in await metrics_of(poor.node)
            errors = await asyncio.to_thread(folders_for_kafkas_clients, cluster)
            assert errors == {str(poor.node.data): 0, str(poor.second): ErrorCode.KAFKA_STORAGE_ERROR}
            poor.shim.order()
            code, out, err = await commanded(
                cluster, "broker", "bring-back", str(POOR), "--folder", str(poor.second), "-f", "json"
            )
            assert code == 0, err
            assert json.loads(out)[0]["state"] == "online"
            await full_isr(admin, ["orders"])
            before = load.count
            await until(lambda: load.count > before + 300, "writes go on")
        assert not load.failed
        await until(lambda: is_healthy(cluster), "the cluster is healthy again")
        for number in bad:  # what came back is whole: it leads, and is read
            await admin.transfer_leadership("orders", number, POOR)
        await until(lambda: leads_all(admin), "the broker leads all of it again")
    assert poor.node.process is process and poor.node.is_running
    load.check(await read_all(cluster.bootstrap, "orders"))


async def is_healthy(cluster: Cluster) -> bool:
    return (await commanded(cluster, "cluster", "health"))[0] == 0


def folders_for_kafkas_clients(cluster: Cluster) -> dict[str, int]:
    """The data folders of broker 2 with the error of each, as kafka-python is told."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        (described,) = admin.describe_log_dirs(brokers=[POOR])
        return {item["log_dir"]: item["error_code"] for item in described["log_dirs"]}
    finally:
        admin.close()


async def leads_all(admin: Admin) -> bool:
    return all(item.leader == POOR for item in await partitions_of(admin, "orders"))


async def metrics_of(node: Node) -> str:
    address = node.property("admin.listener")

    def get() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    return await asyncio.get_running_loop().run_in_executor(None, get)


async def test_a_start_without_a_folder_makes_no_replica_again_and_a_kill_changes_nothing(
    new_cluster: Maker, tmp_path: Path
) -> None:
    cluster = new_cluster(3, auto_leader_rebalance_enable="false")
    poor = await two_folders(cluster, tmp_path)
    async with cluster.admin() as admin:
        await make_topic(admin)
        await admin.create_topic("alone", assignment=[[POOR]] * 2)
        sent = {b"%d" % number for number in range(60)}
        async with Producer(cluster.bootstrap, acks="all") as producer:
            handles = [await producer.send("alone", value, partition=int(value) % 2) for value in sorted(sent)]
            await producer.flush()
            assert {(await handle).partition for handle in handles} == {0, 1}
        (lonely,) = poor.in_second("alone", 2)
        await send(cluster.bootstrap, "orders", sorted(sent))
        bad = poor.in_second("orders", 4)
        poor.node.kill()
        hidden = poor.second.with_name("hidden")
        poor.second.rename(hidden)
        poor.second.write_text("a disk that is not mounted", encoding="utf-8")
        for _ in range(2):  # a kill in the middle finds the same
            await poor.launch()

            async def known() -> bool:
                alone, orders = await partitions_of(admin, "alone"), await partitions_of(admin, "orders")
                return (
                    alone[lonely].leader == -1
                    and alone[1 - lonely].leader == POOR
                    and all((POOR in item.offline) == (number in bad) for number, item in enumerate(orders))
                )

            await until(known, "what lies in the missing folder is offline, the rest is served")
            assert not (poor.node.data / f"alone-{lonely}").exists(), "an empty replica would forget"
            poor.node.kill()
        await poor.launch()
        await until(known, "and again")
        await admin.create_topic("later", assignment=[[POOR, 0, 1]] * 2, configs=MIN_ISR_2)
        await full_isr(admin, ["later"])  # new replicas find a place
        poor.second.unlink()
        hidden.rename(poor.second)
        code, _, err = await commanded(cluster, "broker", "bring-back", str(POOR), "--folder", str(poor.second))
        assert code == 0, err
        await full_isr(admin, ["orders", "alone"])
    stored = await read_all(cluster.bootstrap, "alone")
    assert {value for values in stored.values() for value in values.values()} == sent
    assert TopicPartition("alone", lonely) in stored


async def test_the_folder_with_the_quorums_journal_stops_the_broker(new_cluster: Maker, tmp_path: Path) -> None:
    cluster = new_cluster(3)
    poor = await two_folders(cluster, tmp_path)
    async with cluster.admin() as admin:
        await make_topic(admin)
    poor.node.kill()
    lines = poor.node.config.read_text(encoding="utf-8").replace(
        f"log.dirs={poor.node.data},{poor.second}", f"log.dirs={poor.second},{poor.node.data}"
    )
    poor.node.config.write_text(f"{lines}metadata.log.dir={poor.node.data}/__cluster_metadata\n", encoding="utf-8")
    poor.shim.environment["DISKFAULT_PATH"] = str(poor.node.data)
    await poor.launch()
    size = poor.node.log_size()
    poor.shim.order(sync_errno=errno.EIO)
    await until(lambda: not poor.node.is_running, "the broker has ended")
    assert poor.node.process.returncode == FATAL_EXIT_CODE
    assert "this broker stops" in poor.node.log_since(size)[-1]

"""Faults of machines, disks and clocks on real brokers: the alerts of a real Prometheus and the findings of `barnabas doctor`."""

import asyncio
import errno
import os
import resource
import signal
import threading
from collections.abc import Iterator

import pytest
from faults.shim import why_not
from integration.cluster import SESSION, Cluster
from integration.faulty import (
    admins,
    launcher,
    limited_memory,
    open_descriptors,
    order,
    two_folders,
    wait_for_finding,
)
from integration.load import send
from integration.prometheus import Prometheus, needs_prometheus, watching
from integration.small_disk import SmallDisk, small_disks
from integration.test_command import run

CHUNK = b"x" * 100_000  # larger than what a page at a file's end still takes
POOR = 2  # the broker with a small disk and a second folder
pytestmark = [needs_prometheus, pytest.mark.timeout(300), pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, SmallDisk]]:
    """For all tests: each but the last undoes what it has done."""
    folder = tmp_path_factory.mktemp("machines")
    poor = folder / "cluster" / str(POOR)
    with small_disks() as mount:
        disk = mount(poor / "data", 64)
        mount(poor / "data" / "__cluster_metadata", 64)
        with Cluster(
            folder / "cluster",
            3,
            # A replica without room leaves the ISR soon; acks=all waits for that.
            overrides={**SESSION, "auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "5000"},
            own_keys={POOR: {"log.dirs": two_folders(poor)}},
            launcher=launcher(folder),
        ) as made:
            asyncio.run(made.ready())
            words = ("topic", "create", "orders", "-p", "4", "-r", "3", "-c", "min.insync.replicas=2")
            run(*words, bootstrap=made.bootstrap)
            asyncio.run(send(made.bootstrap, "orders", [b"%d" % number for number in range(20)]))
            yield made, disk


@pytest.fixture(scope="module")
def prometheus(cluster: tuple[Cluster, SmallDisk], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with watching(admins(cluster[0]), tmp_path_factory.mktemp("watched") / "prometheus") as started:
        yield started


@pytest.fixture
def watched(prometheus: Prometheus) -> Prometheus:
    prometheus.wait_quiet()
    return prometheus


def test_descriptors_memory_and_clocks(cluster: tuple[Cluster, SmallDisk], watched: Prometheus) -> None:
    made, _ = cluster
    node = made.nodes[1]
    usual = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (open_descriptors(node.process.pid) + 2, usual[1]))
    watched.wait_for("DescriptorsNearLimit")
    wait_for_finding(made.bootstrap, "problem: broker 1 has ")
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, usual)
    watched.wait_without("DescriptorsNearLimit")

    order(node, clock_ms=-3_000)
    watched.wait_for("ClockOff")
    wait_for_finding(made.bootstrap, "problem: the clock of broker ")
    order(node)
    watched.wait_without("ClockOff")


def test_memory_near_the_limit_of_its_control_group(cluster: tuple[Cluster, SmallDisk], watched: Prometheus) -> None:
    made, _ = cluster
    node = made.nodes[0]
    pid = node.process.pid
    try:
        with limited_memory(pid, f"barnabas-{pid}", lambda: int(node.rss_mib() * 1.06) << 20):
            watched.wait_for("MemoryNearLimit")
            wait_for_finding(made.bootstrap, "problem: broker 0 uses ")
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    watched.wait_without("MemoryNearLimit")


def test_a_process_that_stands_still_again_and_again(cluster: tuple[Cluster, SmallDisk], watched: Prometheus) -> None:
    made, _ = cluster
    pid, is_ended = made.nodes[1].process.pid, threading.Event()

    def stumble() -> None:
        while not is_ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            is_ended.wait(0.6)
            os.kill(pid, signal.SIGCONT)
            is_ended.wait(0.5)

    stumbling = threading.Thread(target=stumble)
    stumbling.start()
    try:
        watched.wait_for("EventLoopLate")
    finally:
        is_ended.set()
        stumbling.join()


def test_a_group_that_is_five_minutes_behind(cluster: tuple[Cluster, SmallDisk], watched: Prometheus) -> None:
    """Lag in seconds follows the clocks of brokers, all of which jump."""
    made, _ = cluster
    run("topic", "consume", "orders", "-g", "billing", "-n", "1", bootstrap=made.bootstrap)
    try:
        for node in made.nodes:
            order(node, clock_ms=400_000)
        watched.wait_for("GroupLagsBehind")
    finally:
        for node in made.nodes:
            order(node)


def test_disks_that_are_full_or_fail(cluster: tuple[Cluster, SmallDisk], watched: Prometheus) -> None:
    """The last one: a folder stays offline."""
    made, disk = cluster
    disk.fill()
    watched.wait_for("DiskNearlyFull")
    wait_for_finding(made.bootstrap, f"risk: broker {POOR}: 0.0 GiB are free for data folder ")
    asyncio.run(send(made.bootstrap, "orders", [CHUNK] * 40, batch_size=150_000))  # two replicas have room
    watched.wait_for("DiskFull")
    wait_for_finding(made.bootstrap, f"problem: broker {POOR}: data folder ")
    disk.free()
    watched.wait_without("DiskFull")
    watched.wait_without("DiskNearlyFull")

    order(made.nodes[POOR], write_errno=errno.EIO)
    for number in range(4):
        run("topic", "produce", "orders", "-p", str(number), given="x\n", bootstrap=made.bootstrap)
    watched.wait_for("FolderOffline")
    wait_for_finding(made.bootstrap, "problem: broker 2: data folder ")

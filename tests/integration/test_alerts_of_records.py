"""Faults of records, leaders and clients on real brokers: the alerts of a real Prometheus, and what `barnabas doctor` says."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from integration.cluster import SESSION, Cluster, partitions_of, until
from integration.faulty import admins, wait_for_finding
from integration.load import send
from integration.prometheus import LIMIT_S, Prometheus, needs_prometheus, watching
from integration.prometheus import until as wait_until
from integration.test_command import run
from integration.test_damage import flip
from integration.test_kafka_java_tools import write_stray_transaction
from integration.wire import produce
from simulation.log_building import batch_of

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

MAX_CONNECTIONS = 60
# While the follower is still taken to be in sync, acks=all waits for it.
UNTIL_REFUSED = (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS)
pytestmark = [needs_prometheus, pytest.mark.timeout(300)]


async def made(admin: Admin, bootstrap: str) -> None:
    """Broker 0 is the only voter, and has none of this."""
    await admin.create_topic("damaged", assignment=[[1]], configs={"segment.bytes": "30000"})
    await admin.create_topic("stray", assignment=[[1]])
    await admin.create_topic("undecided", assignment=[[1]])
    await admin.create_topic("lone", assignment=[[2]])
    await admin.create_topic("torn", assignment=[[1, 2]], configs={"min.insync.replicas": "1"})
    for _ in range(8):
        await send(bootstrap, "damaged", [b"x" * 1_000] * 10)
    await send(bootstrap, "torn", [b"1"])


async def test_damage_elections_transactions_and_brokers_without_a_controller(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = await new_cluster(3, voters=1, log_scrub_interval_ms="300").ready()
    async with cluster.admin() as admin:
        await made(admin, cluster.bootstrap)
    await asyncio.to_thread(_go_through_faults, cluster, tmp_path)


def _go_through_faults(cluster: Cluster, folder: Path) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    bootstrap = cluster.bootstrap
    with watching(admins(cluster), folder / "prometheus") as watched:
        flip(sorted((one.data / "damaged-0").glob("*.log"))[0])
        watched.wait_for("RecordsDamaged")

        asyncio.run(_left_prepared(bootstrap))
        watched.wait_for("TransactionsOverdue")
        wait_for_finding(bootstrap, "problem: 1 prepared transactions wait for their decision")
        run("transaction", "abort", "left", bootstrap=bootstrap)

        watched.wait_without("TransactionsOverdue")
        _left_open(bootstrap)
        cluster.kill(2)  # which must write that it is aborted
        asyncio.run(_written_by_one_alone(cluster))
        watched.wait_for("TransactionsOverdue")
        wait_for_finding(bootstrap, "problem: 1 transactions have outlived their timeout")
        cluster.kill(1)
        write_stray_transaction(one.data, "stray")
        two.launch()
        watched.wait_for("PartitionWithoutLeader")
        asyncio.run(_elected(cluster))
        watched.wait_for("UncleanElection")
        wait_for_finding(bootstrap, "risk: leaders were elected that did not have all records: ")

        one.launch()
        asyncio.run(cluster.ready())
        watched.wait_for("TransactionsHang")
        wait_for_finding(bootstrap, "problem: 1 transactions hang")

        cluster.kill(0, 1)  # the only voter
        one.launch()
        watched.wait_for("BrokerFenced", "NoController")


LEFT_OPEN = """
import asyncio, os, sys
from barnabas import Producer

async def main():
    producer = Producer(sys.argv[1], transactional_id="open", transaction_timeout_ms=10_000)
    await producer.start()
    transaction = producer.transaction()
    await transaction.begin()
    await (await transaction.send("lone", b"1"))
    os._exit(9)

asyncio.run(main())
"""


def _left_open(bootstrap: str) -> None:
    """By a program that is killed, in a partition of broker 2 alone."""
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN, bootstrap], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 9, done.stderr


async def _left_prepared(bootstrap: str) -> None:
    """By a program that does not come back to decide it."""
    async with Producer(bootstrap, transactional_id="left", transaction_timeout_ms=1_000) as producer:
        transaction = producer.transaction()
        await transaction.begin()
        await transaction.send("undecided", b"1")
        assert await transaction.prepare("a test") is not None


async def _written_by_one_alone(cluster: Cluster) -> None:
    async with cluster.admin() as admin:

        async def is_alone() -> bool:
            return [part.isr for part in await partitions_of(admin, "torn")] == [(1,)]

        await until(is_alone, "broker 2 is out of the ISR")
    await send(cluster.bootstrap, "torn", [b"2"])


async def _elected(cluster: Cluster) -> None:
    async def is_back() -> bool:
        async with cluster.admin() as admin:
            return any(item.node_id == 2 and not item.fenced for item in (await admin.describe_cluster()).brokers)

    await until(is_back, "broker 2 can lead")

    async def is_done() -> bool:
        words = ("partition", "elect", "torn", "0", "--accept-loss")
        await asyncio.to_thread(run, *words, bootstrap=cluster.nodes[0].address)
        return True

    await until(is_done, "the leader is elected")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """For the tests that undo what they have done: all but the first of this file."""
    keys = {**SESSION, "max.connections": str(MAX_CONNECTIONS), "group.consumer.session.timeout.ms": "45000"}
    with Cluster(tmp_path_factory.mktemp("records"), 3, overrides=keys) as made:
        asyncio.run(made.ready())
        run("topic", "create", "orders", "-p", "6", "-r", "3", bootstrap=made.bootstrap)
        run("topic", "create", "strict", "-r", "2", "-c", "min.insync.replicas=2", bootstrap=made.bootstrap)
        yield made


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with watching(admins(cluster), tmp_path_factory.mktemp("watched") / "prometheus") as started:
        yield started


@pytest.fixture
def watched(prometheus: Prometheus) -> Prometheus:
    prometheus.wait_quiet()
    return prometheus


def test_connections_that_are_refused(cluster: Cluster, watched: Prometheus) -> None:
    node = cluster.nodes[1]
    held: list[socket.socket] = []
    is_ended = threading.Event()

    def crowd() -> None:
        while not is_ended.wait(0.05):
            try:
                held.append(socket.create_connection((node.host, node.port), timeout=LIMIT_S))
            except OSError:
                continue
            if len(held) > 3 * MAX_CONNECTIONS:
                held.pop(0).close()

    crowding = threading.Thread(target=crowd)
    crowding.start()
    try:
        watched.wait_for("ConnectionsRefused")
    finally:
        is_ended.set()
        crowding.join()
        for each in held:
            each.close()


async def test_requests_that_end_with_errors(cluster: Cluster, watched: Prometheus) -> None:
    """Programs that write with acks=all where replicas are missing, and try again at once."""
    async with cluster.admin() as admin:
        (found,) = await partitions_of(admin, "strict")
    leader, follower = (cluster.nodes[node] for node in found.replicas)
    waiting = asyncio.create_task(asyncio.to_thread(watched.wait_for, "RequestErrors"))
    follower.kill()
    while not waiting.done():
        told = await produce((leader.host, leader.port), "strict", batch_of(b"x"))
        assert told.error in UNTIL_REFUSED
    await waiting
    await asyncio.to_thread(
        wait_for_finding,
        cluster.bootstrap,
        "critical: 1 partitions have fewer replicas in sync than min.insync.replicas: strict-0",
    )
    follower.launch()
    await cluster.ready()


async def _read(bootstrap: str, group: str) -> None:
    async with Consumer("orders", bootstrap=bootstrap, group=group, auto_offset_reset="earliest") as consumer:
        while not await consumer.poll():
            pass
        await consumer.commit()


async def test_a_broker_that_is_frozen_hides_no_other_metric(cluster: Cluster, watched: Prometheus) -> None:
    await send(cluster.bootstrap, "orders", [b"a", b"b"])
    await asyncio.gather(*(_read(cluster.bootstrap, group) for group in "abcdefgh"))  # each broker coordinates some
    await asyncio.to_thread(_freeze_two, cluster, watched)
    await cluster.ready()


def _freeze_two(cluster: Cluster, watched: Prometheus) -> None:
    try:
        for node in cluster.nodes[:2]:
            node.signal(signal.SIGSTOP)
        watched.wait_for("NoController")
        # Of the two, the one that is no controller may be scraped later.
        is_up = partial(watched.ask, "query", query="up == 1")
        wait_until(
            lambda: [item["metric"]["instance"] for item in is_up()["result"]] == [admins(cluster)[2]],
            lambda: str(is_up()),
        )
    finally:
        for node in cluster.nodes[:2]:
            node.signal(signal.SIGCONT)


async def test_a_partition_that_nobody_reads(cluster: Cluster, watched: Prometheus) -> None:
    """A static member that leaves for a while: its partitions wait for it, until after the end of this file."""
    async with Consumer("orders", bootstrap=cluster.bootstrap, group="g", client_id="here") as here:
        async with Consumer("orders", bootstrap=cluster.bootstrap, group="g", instance_id="i-1") as other:
            while not (here.assignment and other.assignment):
                await asyncio.gather(here.poll(timeout_ms=100), other.poll(timeout_ms=100))
        waiting = asyncio.create_task(asyncio.to_thread(watched.wait_for, "PartitionUnowned"))
        while not waiting.done():
            await here.poll(timeout_ms=100)
        await waiting

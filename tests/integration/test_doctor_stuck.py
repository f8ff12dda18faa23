"""What `barnabas doctor` finds where a reader or a voter stands still. Each by a real fault."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from integration.test_doctor import doctor, until_told

from barnabas.net.testing.cluster import Cluster
from barnabas.sync import Admin, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

LIMIT_S = 90.0
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with Cluster(brokers=3, backend="processes") as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    started.create_topic("orders", partitions=2, configs={"min.insync.replicas": "2", "retention.ms": "600000"})
    until_told(started, 0)
    yield started
    started.reset()


def until_found(cluster: Cluster, weight: str, words: str) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while True:
        _, found = doctor(cluster)
        if any(words in what and known == weight for what, known in found.items()):
            return
        assert time.monotonic() < ends_s, found


def test_a_reader_that_retention_will_overtake(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send_many("orders", [b"x"] * 3, partition=1).result(LIMIT_S)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.commit_offsets("billing", {("orders", 1): 1})
    until_told(cluster, 0)
    with cluster.advance_clock(500):
        until_found(cluster, "problem", "group 'billing' lags in orders-1: the oldest record that it has not read is 5")


WRITER = """
import asyncio, os, sys
from barnabas import Producer, TopicPartition

async def main():
    producer = Producer(sys.argv[1], transactional_id="left", transaction_timeout_ms=5_000)
    await producer.start()
    transaction = producer.transaction()
    await transaction.begin()
    for partition in range(3):
        await (await transaction.send("single", b"1", partition=partition))
    print("written", flush=True)
    os._exit(9)

asyncio.run(main())
"""


def test_a_transaction_that_no_timeout_ends(cluster: Cluster) -> None:
    """Its program is gone, and so is a broker that would have to write that it is aborted."""
    cluster.create_topic("single", partitions=3, replication_factor=1)
    done = subprocess.run(
        [sys.executable, "-c", WRITER, cluster.bootstrap_servers], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 9 and done.stdout == "written\n", done.stderr
    with cluster.pause(1):
        until_found(cluster, "problem", "1 transactions have outlived their timeout by more than 5 s: left (")
    until_told(cluster, 0, ("risk", "1 topics have partitions with one replica: single"))


def test_a_voter_that_hangs(cluster: Cluster) -> None:
    with cluster.pause(1):
        until_found(cluster, "problem", "voters [1] of the quorum do not answer")
    until_told(cluster, 0)

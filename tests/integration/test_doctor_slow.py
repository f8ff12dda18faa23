"""What `barnabas doctor` finds where a part of a cluster is slower than the rest. Each by a real fault."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from integration.test_doctor import until_told
from integration.test_doctor_stuck import LIMIT_S, until_found

from barnabas.net.testing.cluster import Cluster
from barnabas.sync import Consumer, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

LAG_MS = 2_000  # after which a follower leaves the ISR
SLOW_DISK_MS = 3_000
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with Cluster(brokers=3, backend="processes", config={"replica.lag.time.max.ms": str(LAG_MS)}) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    started.create_topic("orders", partitions=2, configs={"min.insync.replicas": "1"})
    until_told(started, 0)
    yield started
    started.reset()


@contextmanager
def written(cluster: Cluster) -> Iterator[None]:
    """Records arrive all the time: a follower is behind only if there is something to follow."""
    ended = threading.Event()

    def write() -> None:
        with Producer(cluster.bootstrap_servers) as producer:
            while not ended.is_set():
                producer.send_many("orders", [b"x" * 100] * 10).result(LIMIT_S)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def other_than_the_controller(cluster: Cluster) -> int:
    return min(set(cluster.brokers) - {cluster.controller})


def test_a_follower_whose_disk_is_slow(cluster: Cluster) -> None:
    slow = other_than_the_controller(cluster)
    with written(cluster), cluster.slow_disk(SLOW_DISK_MS, brokers=slow):
        until_found(cluster, "problem", f"broker {slow} is there, and does not keep up")
    until_told(cluster, 0)


def test_a_follower_that_does_not_reach_a_leader(cluster: Cluster) -> None:
    """It is not fenced, because the controller hears it."""
    behind = other_than_the_controller(cluster)
    (leader,) = set(cluster.brokers) - {cluster.controller, behind}
    with written(cluster), cluster.partition(leader, behind):
        until_found(cluster, "problem", "is there, and does not keep up")
    until_told(cluster, 0)


def test_a_member_that_polls_no_more(cluster: Cluster) -> None:
    with Consumer(
        "orders", bootstrap_servers=cluster.bootstrap_servers, group_id="billing", client_id="sleeper"
    ) as sleeper:
        while len(sleeper.assignment) < 2:
            sleeper.poll(timeout_ms=200)
        with Consumer("orders", bootstrap_servers=cluster.bootstrap_servers, group_id="billing"):
            until_found(
                cluster, "problem", "member sleeper on 127.0.0.1 of group 'billing' has not followed its new assignment"
            )
            until_found(cluster, "problem", "1 partitions of group 'billing' have no reader")
    until_told(cluster, 0)

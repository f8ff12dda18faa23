"""What `barnabas doctor` finds in machines and clients, each by a real fault on real broker processes; nothing before it."""

import os
import socket
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer as RdProducer
from integration.test_doctor import doctor, until_told

from barnabas.net.testing.cluster import Cluster
from barnabas.sync import Admin, Consumer, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

LIMIT_S = 60.0
MAX_CONNECTIONS = 60


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    # Leaders stay where a test has put them.
    config = {"max.connections": str(MAX_CONNECTIONS), "auto.leader.rebalance.enable": "false"}
    with Cluster(brokers=3, backend="processes", config=config) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    started.create_topic("orders", partitions=6, configs={"min.insync.replicas": "2"})
    until_told(started, 0)
    yield started
    started.close()
    started.start()  # habits of clients are remembered for two minutes


def repeated(seconds: float) -> Iterator[None]:
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        yield


def test_producers_with_few_acks_and_without_idempotence(cluster: Cluster) -> None:
    ways: tuple[dict[str, object], ...] = ({"acks": "1"}, {"acks": "all", "enable.idempotence": False})
    for number, settings in enumerate(ways):
        producer = RdProducer(
            {"bootstrap.servers": cluster.bootstrap_servers, "client.id": f"p{number}", "linger.ms": 0, **settings}
        )
        for _ in range(200):
            producer.produce("orders", b"x")
            producer.flush(LIMIT_S)
    until_told(
        cluster,
        0,
        ("risk", "1 producers send with acks=0 or acks=1: p0 on 127.0.0.1"),
        ("risk", "1 producers send without idempotence: p1 on 127.0.0.1"),
    )


def test_tiny_batches(cluster: Cluster) -> None:
    def drip() -> None:
        with Producer(cluster.bootstrap_servers, client_id="drops", linger_ms=0) as producer:
            for _ in repeated(10.0):
                producer.send("orders", b"x", partition=0).result(LIMIT_S)

    until_told(cluster, 0, ("risk", "producer drops on 127.0.0.1 sends"), harm=drip)


def test_a_hot_partition(cluster: Cluster) -> None:
    def heat() -> None:
        with Producer(cluster.bootstrap_servers) as producer:
            for _ in repeated(8.0):
                producer.send_many("orders", [os.urandom(50_000) for _ in range(100)], partition=4).result(LIMIT_S)

    until_told(cluster, 0, ("risk", "orders-4 is hot"), harm=heat)


def test_many_connections_and_a_storm_of_them(cluster: Cluster) -> None:
    host, _, port = cluster.address(1).rpartition(":")

    def connect() -> None:
        for _ in repeated(10.0):
            socket.create_connection((host, int(port)), timeout=LIMIT_S).close()

    until_told(cluster, 3, ("problem", "broker 1 is asked for"), harm=connect)


def test_connections_near_the_limit(cluster: Cluster) -> None:
    host, _, port = cluster.address(2).rpartition(":")
    held = [socket.create_connection((host, int(port)), timeout=LIMIT_S) for _ in range(MAX_CONNECTIONS - 8)]
    try:
        code, found = doctor(cluster)
        assert code == 3 and any("connections open, and its limit is 60" in what for what in found), found
    finally:
        for each in held:
            each.close()


def test_a_member_that_does_not_keep_up(cluster: Cluster) -> None:
    """It has got all records, and commits none."""
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send_many("orders", [b"x"] * 20, partition=3).result(LIMIT_S)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.commit_offsets("billing", {("orders", 3): 1})
    with Consumer(
        "orders", bootstrap=cluster.bootstrap_servers, group="billing", client_id="slow", auto_commit=False
    ) as reader:
        ends_s = time.monotonic() + LIMIT_S
        while not reader.poll(timeout_ms=200):
            assert time.monotonic() < ends_s
        until_told(cluster, 0)
        with cluster.advance_clock(400):
            until_told(cluster, 0, ("risk", "member slow on 127.0.0.1 of group 'billing' reads too slowly"))


def test_a_clock_that_is_wrong(cluster: Cluster) -> None:
    with cluster.advance_clock(3, brokers=1):
        until_told(cluster, 3, ("problem", "the clock of broker 1 is"))
    until_told(cluster, 0)


def test_a_paused_follower_is_named_with_the_reason(cluster: Cluster) -> None:
    with cluster.pause(2):
        ends_s = time.monotonic() + LIMIT_S
        while True:
            _, found = doctor(cluster)
            if any("broker 2 is fenced" in what or "broker 2 is there" in what for what in found):
                break
            assert time.monotonic() < ends_s, found


def test_leaders_that_are_on_one_broker(cluster: Cluster) -> None:
    cluster.create_topic("more", partitions=6)
    with Admin(cluster.bootstrap_servers) as admin:
        for topic in ("orders", "more"):
            for number in range(6):
                if cluster.leader(topic, number) != 0:
                    admin.transfer_leadership(topic, number, 0)
    until_told(cluster, 0, ("risk", "8 of 12 partitions are not led by their preferred replica; broker 0 leads 12"))

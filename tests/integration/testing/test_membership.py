"""Brokers that are added to a running cluster of `barnabas.testing`, and leave it; keys of single brokers. On both backends."""

from collections.abc import Iterator

import pytest

from barnabas.log.vocabulary.errors import InvalidReplicationFactorError
from barnabas.net.base.local.local_cluster import ClusterError
from barnabas.net.testing.cluster import Cluster
from barnabas.sync import Admin, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

LIMIT_S = 30.0
BACKENDS = ["in-process", "processes"]
RACKS = {0: {"broker.rack": "a"}, 1: {"broker.rack": "b"}}


@pytest.fixture(params=BACKENDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(3, backend=request.param, broker_config=RACKS) as started:
        yield started


def replicas(cluster: Cluster, topic: str) -> set[int]:
    with Admin(cluster.bootstrap_servers) as admin:
        return {broker for partition in admin.describe_topic(topic).partitions for broker in partition.replicas}


def test_brokers_come_and_go_while_a_program_writes(cluster: Cluster) -> None:
    cluster.create_topic("orders", partitions=6)
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send_many("orders", [b"1", b"2"]).result(LIMIT_S)
        added = cluster.add_broker({"broker.rack": "c"})
        assert added == 3 and cluster.brokers == [0, 1, 2, 3]
        leaving = next(broker for broker in (1, 0) if broker != cluster.controller)
        cluster.remove_broker(leaving)  # a voter
        assert cluster.brokers == [broker for broker in range(4) if broker != leaving]
        producer.send_many("orders", [b"3"] * 10).result(LIMIT_S)
        with cluster.kill(added):
            producer.send("orders", b"4").result(LIMIT_S)
    assert replicas(cluster, "orders") == {*cluster.brokers}
    cluster.assert_delivered("orders", [b"1", b"2", *[b"3"] * 10, b"4"], exactly_once=True)
    with Admin(cluster.bootstrap_servers) as admin:
        found = admin.describe_cluster().brokers
        assert {broker.node_id: broker.rack for broker in found} == {
            broker: {0: "a", 1: "b", 2: None, 3: "c"}[broker] for broker in cluster.brokers
        }
        assert leaving not in admin.describe_quorum().voters
    assert cluster.add_broker() == 4  # the number of a broker that has left is never used again
    with pytest.raises(ValueError, match=rf"there is no broker {leaving}; this cluster has the brokers"):
        cluster.kill(leaving)
    cluster.reset()


@pytest.mark.parametrize("key", ["node.id", "controller.quorum.voters"])
def test_no_broker_takes_the_identity_of_another_one(cluster: Cluster, key: str) -> None:
    """An added broker with the number of a running one took its place, and the cluster had no broker any more."""
    said = f"{key}=0: the cluster sets this key itself"
    with pytest.raises(ValueError, match=said):
        cluster.add_broker({key: "0"})
    for keys in ({"config": {key: "0"}}, {"broker_config": {1: {key: "0"}}}):
        with pytest.raises(ValueError, match=said):
            Cluster(2, **keys)
    cluster.create_topic("orders")
    assert cluster.leader("orders") in cluster.brokers == [0, 1, 2]


def test_a_new_broker_has_the_faults_that_hold_for_others(cluster: Cluster) -> None:
    with cluster.kill(2):
        added = cluster.add_broker()
        assert not cluster.is_running(2) and cluster.is_running(added)
    assert cluster.is_running(2)


def test_what_cannot_leave_stays(cluster: Cluster) -> None:
    cluster.create_topic("orders", replication_factor=3)
    with pytest.raises(InvalidReplicationFactorError):
        cluster.remove_broker(1)
    assert cluster.brokers == [0, 1, 2] and cluster.is_running(1)
    with pytest.raises(ValueError, match=r"there is no broker 7; this cluster has the brokers \[0, 1, 2\]"):
        cluster.remove_broker(7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_broker_that_cannot_start_leaves_the_cluster_as_it_was(backend: str) -> None:
    with Cluster(1, backend=backend, timeout_s=20) as cluster:
        with pytest.raises(ClusterError, match=r"num\.partitions"):
            cluster.add_broker({"num.partitions": "none"})
        assert cluster.brokers == [0]
        cluster.create_topic("orders")
        cluster.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_secure_cluster_grows(backend: str) -> None:
    with Cluster(1, backend=backend, tls=True, users={"alice": "secret"}) as cluster:
        added = cluster.add_broker()
        cluster.create_topic("orders", replication_factor=2)
        with Producer(cluster.address(added), **cluster.login("alice")) as producer:
            producer.send("orders", b"1").result(LIMIT_S)
        cluster.assert_delivered("orders", [b"1"])

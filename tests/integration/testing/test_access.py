"""Secure clusters of `barnabas.testing`, on both backends: logins of all clients; permissions that are missing or withdrawn."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as RdProducer
from kafka import KafkaProducer

from barnabas.log.vocabulary.errors import (
    AuthorizationError,
    GroupAuthorizationError,
    SaslAuthenticationError,
    TopicAuthorizationError,
)
from barnabas.net.testing.cluster import Cluster
from barnabas.sync import Admin, Consumer, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

LIMIT_S = 30.0
USERS = {"alice": "secret of Alice", "bob": "secret of Bob"}
PERMISSIONS = {
    "alice": ["WRITE TOPIC orders*"],
    "bob": ["READ TOPIC orders", "READ GROUP bill*"],
}


@pytest.fixture(scope="module", params=["in-process", "processes"])
def made(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(backend=request.param, tls=True, users=USERS, permissions=PERMISSIONS) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: Cluster) -> Iterator[Cluster]:
    made.create_topic("orders")
    yield made
    made.reset()


def send(cluster: Cluster, value: bytes, **login: Any) -> None:
    with Producer(cluster.bootstrap_servers, **login) as producer:
        producer.send("orders", value).result(LIMIT_S)


def test_each_user_may_do_what_its_permissions_say_and_nothing_else(cluster: Cluster) -> None:
    send(cluster, b"1", **cluster.login("alice"))
    with pytest.raises(AuthorizationError):
        send(cluster, b"2", **cluster.login("bob"))
    with pytest.raises(SaslAuthenticationError):
        send(cluster, b"3", **cluster.login("alice", password="guessed"))
    options = {"bootstrap": cluster.bootstrap_servers, "auto_offset_reset": "earliest", **cluster.login("bob")}
    with Consumer("orders", group="billing", **options) as consumer:
        assert bytes(next(iter(consumer)).value) == b"1"
        consumer.commit()
    with pytest.raises(GroupAuthorizationError), Consumer("orders", group="shipping", **options) as consumer:
        next(iter(consumer))
    cluster.wait_until_caught_up("billing", "orders")
    cluster.assert_delivered("orders", [b"1"], exactly_once=True)


def test_other_clients_log_in(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    rd = RdProducer({"bootstrap.servers": servers, **cluster.login("alice", client="confluent-kafka")})
    rd.produce("orders", b"rd")
    assert rd.flush(LIMIT_S) == 0
    python = KafkaProducer(bootstrap_servers=servers, **cluster.login("alice", client="kafka-python"))
    python.send("orders", b"python").get(LIMIT_S)
    python.close()

    async def aio() -> None:
        options = cluster.login("alice", client="aiokafka")
        async with AIOKafkaProducer(bootstrap_servers=servers, **options) as producer:
            await producer.send_and_wait("orders", b"aio")

    asyncio.run(aio())
    cluster.assert_delivered("orders", [b"rd", b"python", b"aio"], exactly_once=True)
    stranger = cluster.login("alice", password="guessed", client="confluent-kafka")
    wrong = RdProducer({"bootstrap.servers": servers, "error_cb": lambda error: None, **stranger})
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=2)


def test_a_permission_that_is_withdrawn_stops_a_running_program_for_a_while(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, **cluster.login("alice")) as producer:
        producer.send("orders", b"1").result(LIMIT_S)
        with cluster.deny("alice", "WRITE TOPIC orders"), pytest.raises(TopicAuthorizationError):
            producer.send("orders", b"2").result(LIMIT_S)
        producer.send("orders", b"3").result(LIMIT_S)
    with cluster.allow("bob", "WRITE TOPIC orders"):
        send(cluster, b"4", **cluster.login("bob"))
    with pytest.raises(AuthorizationError):
        send(cluster, b"5", **cluster.login("bob"))
    cluster.assert_delivered("orders", [b"1", b"3", b"4"], exactly_once=True)


def test_faults_hit_encrypted_connections_as_well(cluster: Cluster) -> None:
    values = [b"%d" % number for number in range(20)]
    with Producer(cluster.bootstrap_servers, **cluster.login("alice")) as producer:
        with cluster.lose_answer("PRODUCE"):
            producer.send_many("orders", values[:5]).result(LIMIT_S)
        leader, controller = cluster.leader("orders"), cluster.controller
        follower = next(broker for broker in cluster.brokers if broker not in (leader, controller))
        with cluster.partition(follower, [broker for broker in cluster.brokers if broker != follower]):
            producer.send_many("orders", values[5:10]).result(LIMIT_S)
        with cluster.kill(cluster.leader("orders")):
            producer.send_many("orders", values[10:]).result(LIMIT_S)
        assert cluster.drop_connections() > 0
    cluster.assert_delivered("orders", values, exactly_once=True)


def test_a_reset_brings_users_and_permissions_back(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap_servers, **cluster.login()) as admin:
        admin.users.remove("bob")
        admin.users.add("alice", "another one")
        admin.users.add("carol", "secret of Carol")
        cluster.allow("carol", *(f"READ TOPIC t{number}" for number in range(50)))  # more than one request removes
        cluster.deny("alice", "ALL TOPIC *")
        cluster.reset()
        assert {item.user for item in admin.users.list()} == {"alice", "bob"}
        assert len(admin.acls.find()) == 3 and admin.quotas.find() == []
    cluster.create_topic("orders")
    send(cluster, b"1", **cluster.login("alice"))


@pytest.mark.parametrize("backend", ["in-process", "processes"])
def test_tls_alone_needs_no_login_and_certificates_name_users(backend: str) -> None:
    with Cluster(1, backend=backend, tls=True) as cluster:
        cluster.create_topic("orders")
        anonymous = {name: value for name, value in cluster.login().items() if name != "ssl_certfile"}
        send(cluster, b"1", **anonymous)
        with cluster.deny("alice", "WRITE TOPIC orders"):
            send(cluster, b"2", **anonymous)
            with pytest.raises(TopicAuthorizationError):
                send(cluster, b"3", **cluster.login("alice"))
        send(cluster, b"4", **cluster.login("alice"))
        rd = RdProducer(
            {"bootstrap.servers": cluster.bootstrap_servers, **cluster.login("bob", client="confluent-kafka")}
        )
        rd.produce("orders", b"5")
        assert rd.flush(LIMIT_S) == 0
        cluster.assert_delivered("orders", [b"1", b"2", b"4", b"5"], exactly_once=True)


def test_logins_without_tls_and_without_permissions() -> None:
    with Cluster(1, users={"alice": "secret"}) as cluster:
        login = cluster.login("alice")
        assert login["security_protocol"] == "SASL_PLAINTEXT" and "ssl_cafile" not in login
        with Admin(cluster.bootstrap_servers, **login) as admin:
            admin.create_topic("orders")
        send(cluster, b"1", **login)
        cluster.assert_delivered("orders", [b"1"])


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"permissions": {"alice": []}}, "permissions need users"),
        ({"users": {"alice": ""}}, "a password that are not empty"),
        ({"users": {"admin": "x"}}, "'admin' is the administrator"),
        ({"users": {"alice": "x"}, "permissions": {"bob": []}}, "'bob' is none of users"),
        ({"tls": True, "permissions": {"alice": "READ TOPIC x"}}, "give a list of permissions"),
        ({"tls": True, "permissions": {"alice": ["RAED TOPIC x"]}}, "did you mean READ"),
        ({"tls": True, "permissions": {"alice": ["READ x"]}}, "write OPERATION KIND NAME"),
        ({"tls": True, "permissions": {"alice": ["WRITE GROUP x"]}}, "WRITE does not exist for GROUP"),
        ({"broker_config": {3: {}}}, "there is no broker 3"),
    ],
)
def test_what_cannot_be_is_refused_before_a_broker_starts(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Cluster(**options)


def test_users_that_are_not_there() -> None:
    with Cluster(1, users={"alice": "secret"}) as cluster:
        with pytest.raises(ValueError, match=r"users of this cluster are 'alice'; for another one, give password="):
            cluster.login("bob")
        with pytest.raises(ValueError, match="choose one of barnabas, kafka-python"):
            cluster.login("alice", client="sarama")
    with Cluster(1) as cluster:
        assert cluster.login() == {}
        with pytest.raises(ValueError, match="this cluster has no users"):
            cluster.login("alice")
        with pytest.raises(ValueError, match="this cluster has no users"):
            cluster.allow("alice", "READ TOPIC x")

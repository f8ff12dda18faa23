"""Brokers that log in to each other by SASL over TLS, at the port of the clients: with certificate and login."""

import asyncio
import datetime
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from integration.cluster import SESSION, Cluster, Node, active_brokers, full_isr, until, write_properties
from integration.load import Load, read_all
from integration.test_permissions import AS_A_BROKER, ask, call, forged, outcome

from barnabas.kraft.metadata.requests import AllocateProducerIds, BrokerHeartbeat
from barnabas.log.disk.secret_files import write_secret
from barnabas.log.vocabulary.errors import ErrorCode, IllegalSaslStateError
from barnabas.net.base.local.certificates import broker_certificate, read_authority
from barnabas.net.base.sasl.credentials import Credentials
from barnabas.net.base.settings.properties import parse_properties
from barnabas.net.client.admin.admin import Admin
from barnabas.net.wire.protocol.requests import Request
from barnabas.net.wire.rpc import RpcPool
from barnabas.net.wire.tcp import LoginNetwork, TcpNetwork
from barnabas.net.wire.tls import TlsContexts, TlsFiles

pytestmark = pytest.mark.timeout(300)
PASSWORD, PARTITIONS = "open; se=same", 6
MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-512": "scram.ScramLoginModule"}
OF_BROKER_2: tuple[Request, ...] = (
    *AS_A_BROKER[:2],
    call(BrokerHeartbeat(node_id=2, broker_epoch=1, metadata_offset=0, want_fence=True)),
    forged(2, 1, "0" * 32),
)
DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def settings(mechanism: str, password: str = PASSWORD, user: str = "brokers") -> dict[str, str]:
    module = f"org.apache.kafka.common.security.{MODULES[mechanism]}"
    return {
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": mechanism,
        f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config": (
            f'{module} required username="{user}" password="{password}";'
        ),
        "super.users": "User:admin;User:CN=admin;User:brokers;User:brokers-2",
        "connections.max.reauth.ms": "2000",  # brokers log in again and again while the tests run
        **SESSION,
    }


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Cluster]]:
    """A cluster of four, the last of which is no voter: it reads the metadata from the others."""
    started: list[Cluster] = []

    def make(mechanism: str) -> Cluster:
        cluster = Cluster(tmp_path / "c", 4, voters=3, overrides=settings(mechanism), secure=True)
        started.append(cluster)
        cluster.__enter__()
        cluster.security, security = cluster.login, cluster.security
        for node, address in zip(cluster.nodes, cluster.logins.split(","), strict=True):
            node.address = address
        authority, now = read_authority(home(cluster)), datetime.datetime.now(datetime.UTC)
        write_secret(home(cluster) / "node-1.pem", broker_certificate(authority, 1, ("127.0.0.1",), now=now))
        assert security["ssl_certfile"] == str(home(cluster) / "admin.pem")
        return cluster

    yield make
    for cluster in started:
        cluster.__exit__()


def home(cluster: Cluster) -> Path:
    return cluster.folder.absolute() / "security"


@pytest.mark.parametrize("mechanism", MODULES)
async def test_a_cluster_whose_brokers_log_in_loses_its_controller(
    start: Callable[[str], Cluster], mechanism: str
) -> None:
    cluster = await start(mechanism).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        controller = (await admin.describe_cluster()).controller_id
    async with Load(cluster.bootstrap, "t", partitions=PARTITIONS, **cluster.login) as load:
        await until(lambda: load.count > 200, "records are acknowledged")
        cluster.kill(controller)
        await until(lambda: load.count > 600, "records are acknowledged without the former controller")
        cluster.start(controller)
        async with cluster.admin() as admin:
            await full_isr(admin, ["t"])
    assert not load.failed
    cluster.kill(0, 1, 2, 3)
    cluster.start(0, 1, 2, 3)  # none of them knows the newest users yet
    await cluster.ready()
    async with cluster.admin() as admin:
        await full_isr(admin, ["t"])
    load.check(await read_all(cluster.bootstrap, "t", **cluster.login))
    assert all("open; se" not in node.log() for node in cluster.nodes)


# --- who is a broker --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def speaking(
    cluster: Cluster, *, certificate: bool, user: str = "", password: str = ""
) -> AsyncIterator[RpcPool]:
    """With the certificate of broker 1, and as a user."""
    own = str(home(cluster) / "node-1.pem") if certificate else None
    tls = TlsContexts(TlsFiles(certificate=own, authorities=str(home(cluster) / "ca.pem")))
    login = Credentials(mechanism="SCRAM-SHA-512", user=user, password=password)
    pool = RpcPool(LoginNetwork(login, tls) if user else TcpNetwork(tls), client_id="attacker", random=Random(1))
    try:
        yield pool
    finally:
        await pool.close()


async def test_a_broker_needs_both_its_certificate_and_the_login(start: Callable[[str], Cluster]) -> None:
    cluster = await start("SCRAM-SHA-512").ready()
    async with cluster.admin() as admin:
        await admin.users.add("alice", "pencil")
        await admin.create_topic("secret", partitions=1, replication_factor=3)
    own: Request = call(AllocateProducerIds(node_id=1, broker_epoch=0))
    for certificate, user, password in ((True, "alice", "pencil"), (False, "brokers", PASSWORD)):
        async with speaking(cluster, certificate=certificate, user=user, password=password) as pool:
            for node_id in range(4):
                for request in (*AS_A_BROKER, own):
                    assert await outcome(ask(pool, cluster, node_id, request)) == DENIED, (user, request)
    async with speaking(cluster, certificate=True, user="brokers", password=PASSWORD) as pool:
        for request in OF_BROKER_2:
            assert await outcome(ask(pool, cluster, 0, request)) == DENIED, request
        controller = await controller_of(cluster)
        assert await outcome(ask(pool, cluster, controller, own)) == 0, "whoever has both is broker 1"
    assert await asyncio.to_thread(http_status, cluster) == 403, "no request of a broker comes by HTTP"
    async with speaking(cluster, certificate=True) as pool:
        with pytest.raises(IllegalSaslStateError):
            await ask(pool, cluster, 0, own)
        for node in cluster.nodes:
            node.address = node.property("listeners").rpartition("//")[
                2
            ]  # the port of certificates, where brokers do not meet
        for request in (*AS_A_BROKER, own):
            assert await outcome(ask(pool, cluster, 0, request)) == DENIED, request


def http_status(cluster: Cluster) -> int:
    context = ssl.create_default_context(cafile=home(cluster) / "ca.pem")
    context.load_cert_chain(home(cluster) / "node-1.pem")
    url = f"https://{cluster.nodes[0].property('admin.listener').removeprefix('HTTPS://')}/metrics"
    try:
        with urllib.request.urlopen(url, context=context, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


async def controller_of(cluster: Cluster) -> int:
    async with cluster.admin() as admin:
        return (await admin.describe_cluster()).controller_id


async def test_another_user_of_brokers_while_the_cluster_runs(start: Callable[[str], Cluster]) -> None:
    """The steps of docs/security.md."""
    cluster = await start("SCRAM-SHA-512").ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        await admin.users.add("brokers", PASSWORD)
        await admin.users.add("brokers-2", "another")
    async with Load(cluster.bootstrap, "t", partitions=PARTITIONS, **cluster.login) as load:
        for node in cluster.nodes:
            node.kill()
            before = parse_properties(node.config.read_text(encoding="utf-8"))
            write_properties(node.config, {**before, **settings("SCRAM-SHA-512", "another", "brokers-2")})
            node.launch()
            await cluster.ready()
            async with cluster.admin() as admin:
                await full_isr(admin, ["t"])
        async with cluster.admin() as admin:
            await admin.users.remove("brokers")
        count = load.count
        await until(lambda: load.count > count + 500, "records are acknowledged without the former user")
        assert await active_brokers(cluster) == {0, 1, 2, 3}
    assert not load.failed
    load.check(await read_all(cluster.bootstrap, "t", **cluster.login))


async def test_a_broker_with_a_wrong_password_stays_outside_and_says_why(start: Callable[[str], Cluster]) -> None:
    cluster = await start("SCRAM-SHA-512").ready()
    outside: Node = cluster.nodes[3]
    cluster.kill(3)
    right = parse_properties(outside.config.read_text(encoding="utf-8"))
    write_properties(outside.config, {**right, **settings("SCRAM-SHA-512", "wrong")})
    size = outside.log_size()
    outside.launch()
    refused = "event=broker_login_refused"
    await until(lambda: any(refused in line for line in outside.log_since(size)), "the broker says that it is refused")

    async def is_outside() -> bool:
        return await active_brokers(cluster) == {0, 1, 2}  # the registration of the killed one lasts for a session

    await until(is_outside, "the others are without broker 3")
    assert outside.is_running
    assert "wrong" not in "".join(outside.log_since(size))
    outside.kill()
    write_properties(outside.config, right)
    outside.launch()
    await cluster.ready()
    async with Admin(outside.address, **cluster.login) as admin:
        assert len((await admin.describe_cluster()).brokers) == 4

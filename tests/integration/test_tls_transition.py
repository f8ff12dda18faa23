"""A running cluster in plain text gets TLS, then logins and permissions, broker by broker: under load, beside a stranger."""

import asyncio
import contextlib
import datetime
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile.quorum_strangers import forgeries, speak
from integration.cluster import Cluster, Node, full_isr, until, write_properties
from integration.load import Load, read_all, send

from barnabas.kraft.raft.net.directory import DirectoryUnavailableError, ask_directory
from barnabas.kraft.raft.net.network import LoopNetwork
from barnabas.log.disk.secret_files import write_secret
from barnabas.log.vocabulary.access.acls import Acl, Operation, ResourceKind
from barnabas.log.vocabulary.errors import AuthorizationError
from barnabas.net.base.local.certificates import broker_certificate, make_authority
from barnabas.net.base.local.ports import free_ports
from barnabas.net.base.settings.properties import parse_properties
from barnabas.net.cli.main import main
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import NoBrokersAvailableError
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.wire.tcp import MAX_HANDSHAKES

Maker = Callable[..., Cluster]
PLAIN = SecurityOptions()
PARTITIONS = 6
pytestmark = pytest.mark.timeout(300)
BEGUN = b"\x16\x03\x01"  # of a handshake


class Transition:
    """The steps of an operator, with certificates of `barnabas security`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self.logins: list[str] = []  # the addresses where clients log in
        self.security = SecurityOptions(
            security_protocol="SSL", ssl_cafile=str(folder / "ca.pem"), ssl_certfile=str(folder / "alice.pem")
        )
        self._run("ca", str(folder))
        for user in ("alice", "mallory"):
            self._run("client", str(folder), user)
        for node in cluster.nodes:
            self._run("broker", str(folder), str(node.node_id), node.host)

    def _run(self, *words: str) -> None:
        assert main(["security", *words]) == 0

    def _settings(self, node: Node, step: str) -> dict[str, str]:
        return {
            "listener.security.protocol.map": "PLAINTEXT:SSL",
            "ssl.keystore.location": str(self._folder / f"broker-{node.node_id}.pem"),
            "ssl.truststore.location": str(self._folder / "ca.pem"),
            "ssl.client.auth": "required",
            "tls.transition": step,
        }

    def login(self, user: str, password: str) -> SecurityOptions:
        return SecurityOptions(
            security_protocol="SASL_SSL",
            ssl_cafile=str(self._folder / "ca.pem"),
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username=user,
            sasl_plain_password=password,
        )

    async def add_logins(self, node: Node, security: SecurityOptions) -> None:
        """A listener for them, and permissions that so far open what has none."""
        self.logins.append(f"{node.host}:{free_ports(1)[0]}")
        changes = {
            "listeners": f"{node.property('listeners')},SASL_SSL://{self.logins[-1]}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:SSL,SASL_SSL:SASL_SSL",
            "authorizer.class.name": "acl",
            "super.users": "User:root",
            "allow.everyone.if.no.acl.found": "true",
        }
        await self.restart(node, changes, security)

    async def restart(self, node: Node, step: str | dict[str, str], security: SecurityOptions) -> None:
        """Give the leaderships away, stop, change the file, start, wait for the replicas. `step` is one of the transition, or the
        settings to change."""
        changes = self._settings(node, step) if isinstance(step, str) else step
        async with Admin(self.cluster.bootstrap, **security) as admin:
            await admin.shut_down_broker(node.node_id)
            assert await asyncio.to_thread(node.process.wait, 60) == 0
            before = parse_properties(node.config.read_text(encoding="utf-8"))
            write_properties(node.config, {**before, **changes})
            node.launch()

            async def is_active() -> bool:
                assert node.is_running, node.log()[-600:]
                found = {item.node_id: item for item in (await admin.describe_cluster()).brokers}
                return node.node_id in found and not found[node.node_id].fenced

            await until(is_active, f"broker {node.node_id} is active")
            await full_isr(admin, ["t"])


class Stranger:
    """Reaches all ports during the whole change, and has what clients have: the file of authorities, and the certificate of a
    user. Its own authority has signed a certificate with the name of a voter."""

    def __init__(self, change: Transition, folder: Path) -> None:
        self._cluster = change.cluster
        now = datetime.datetime.now(datetime.UTC)
        authority = make_authority(folder, "stranger", now=now)
        write_secret(folder / "node-1.pem", broker_certificate(authority, 1, ["127.0.0.1"], now=now))
        trusted = change.security["ssl_cafile"]
        self._ways: list[ssl.SSLContext | None] = [None]
        for certificate in (change.security["ssl_certfile"], str(folder / "node-1.pem")):
            context = ssl.create_default_context(cafile=trusted)
            context.load_cert_chain(certificate)
            self._ways.append(context)
        self._crowd: list[socket.socket] = []

    async def attack(self, load: Load, security: SecurityOptions) -> None:
        """Votes, terms and entries in the names of all voters, in plain text and by TLS; then a crowd that says nothing, or does
        not end its handshake, and stays during the next restarts. The quorum notices nothing."""
        async with Admin(self._cluster.bootstrap, **security) as admin:
            before = await admin.describe_quorum()
            count = load.count
            for node in self._cluster.nodes:
                address = quorum_address(node)
                for tls in self._ways:
                    claims = (claimed for claimed in range(3) if claimed != node.node_id)
                    said = [speak(address, claimed, words, tls) for claimed in claims for words in forgeries()]
                    await asyncio.gather(*said, return_exceptions=True)
            self.leave()
            victim = self._cluster.nodes[before.leader_id]
            for address in (quorum_address(victim), (victim.host, victim.port)):
                self._crowd += [socket.create_connection(address) for _ in range(MAX_HANDSHAKES + 40)]
            for one in self._crowd[::2]:
                with contextlib.suppress(OSError):
                    one.send(BEGUN)
            await until(lambda: load.count > count + 200, "records are acknowledged beside the stranger")
            after = await admin.describe_quorum()
            assert (after.leader_id, after.term) == (before.leader_id, before.term)

    def leave(self) -> None:
        for one in self._crowd:
            one.close()
        self._crowd.clear()


def quorum_address(node: Node) -> tuple[str, int]:
    host, _, port = node.property("quorum.listener").rpartition(":")
    return host, int(port)


async def check_plain_text_is_refused(node: Node) -> None:
    host, port = quorum_address(node)
    with pytest.raises(NoBrokersAvailableError):
        async with Admin(node.address, timeout_ms=3_000):
            pass
    with pytest.raises(DirectoryUnavailableError):
        await ask_directory(LoopNetwork(), host, port)


async def test_a_running_cluster_becomes_a_secure_one_broker_by_broker(new_cluster: Maker, tmp_path: Path) -> None:
    cluster = await new_cluster(3).ready()
    change = await asyncio.to_thread(Transition, cluster, tmp_path / "authority")
    secure, bootstrap = change.security, cluster.bootstrap
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        await admin.create_topic("early", partitions=1, replication_factor=3)
        await send(bootstrap, "early", [b"in plain text"])
    stranger = await asyncio.to_thread(Stranger, change, tmp_path / "stranger")
    async with Load(bootstrap, "t", partitions=PARTITIONS) as plain:
        for node in cluster.nodes:
            await change.restart(node, "accept", PLAIN)
        await stranger.attack(plain, PLAIN)
        async with Load(bootstrap, "t", partitions=PARTITIONS, **secure) as encrypted:
            for node in cluster.nodes:
                await change.restart(node, "use", secure)
            await stranger.attack(encrypted, secure)
            await plain.stop()  # the last moment for clients
            for node in cluster.nodes:
                await change.restart(node, "off", secure)
                await check_plain_text_is_refused(node)
            await stranger.attack(encrypted, secure)
            leader = await leader_of_the_quorum(bootstrap, secure)
            cluster.kill(leader)  # what is encrypted now forms a quorum without it, and takes it back
            count = encrypted.count
            await until(lambda: encrypted.count > count + 200, "records are acknowledged without the former controller")
            cluster.start(leader)
            async with Admin(bootstrap, **secure) as admin:
                await full_isr(admin, ["t", "early"])
            root = await logins_and_permissions(change, encrypted)
    stranger.leave()
    assert not plain.failed and not encrypted.failed and plain.count > 1_000 and encrypted.count > 1_000
    logins = ",".join(change.logins)
    found = await read_all(logins, "t", **root)
    plain.check(found)
    encrypted.check(found)
    (early,) = (await read_all(logins, "early", **root)).values()
    assert list(early.values()) == [b"in plain text"]


async def logins_and_permissions(change: Transition, load: Load) -> SecurityOptions:
    """The last two rounds: first a permission opens what has none, then nothing is open. Returns who may do everything."""
    cluster, secure = change.cluster, change.security
    root, bob = change.login("root", "pencil"), change.login("bob", "eraser")
    async with Admin(cluster.bootstrap, **secure) as admin:
        for user, password in (("root", "pencil"), ("bob", "eraser")):
            await admin.users.add(user, password)
    for node in cluster.nodes:
        await change.add_logins(node, secure)
    logins = ",".join(change.logins)
    async with Admin(logins, **root) as admin:
        permissions = [
            Acl(kind=ResourceKind.TOPIC, name="t", principal="User:CN=alice", operation=Operation.WRITE),
            Acl(kind=ResourceKind.TOPIC, name="*", principal="User:CN=alice", operation=Operation.DESCRIBE),
            Acl(kind=ResourceKind.CLUSTER, name="kafka-cluster", principal="User:CN=alice", operation=Operation.ALTER),
            Acl(
                kind=ResourceKind.CLUSTER, name="kafka-cluster", principal="User:CN=alice", operation=Operation.DESCRIBE
            ),
            Acl(kind=ResourceKind.TOPIC, name="early", principal="User:bob", operation=Operation.READ),
        ]
        await admin.acls.add(permissions)
    for node in cluster.nodes:
        await change.restart(node, {"allow.everyone.if.no.acl.found": "false"}, secure)
    count = load.count
    await until(lambda: load.count > count + 200, "a client with a permission goes on writing")
    mallory = SecurityOptions(**secure)
    mallory["ssl_certfile"] = secure["ssl_certfile"].replace("alice", "mallory")
    for bootstrap, who, topic in ((cluster.bootstrap, mallory, "t"), (logins, bob, "t"), (logins, bob, "early")):
        with pytest.raises(AuthorizationError):
            await send(bootstrap, topic, [b"without a permission"], **who)
    (early,) = (await read_all(logins, "early", **bob)).values()
    assert list(early.values()) == [b"in plain text"]
    return root


async def leader_of_the_quorum(bootstrap: str, security: SecurityOptions) -> int:
    async with Admin(bootstrap, **security) as admin:
        return (await admin.describe_cluster()).controller_id

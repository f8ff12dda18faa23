"""TLS on every port of a real cluster: our SDK, librdkafka, HTTP, the quorum; wrong, missing, old and replaced certificates."""

import asyncio
import contextlib
import datetime
import http.client
import json
import re
import socket
import ssl
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.cluster import SESSION, Cluster, Node, until
from integration.librdkafka_roundtrip import check_roundtrip

from barnabas.kraft.raft.net.directory import DirectoryUnavailableError, ask_directory
from barnabas.kraft.raft.net.network import LoopNetwork
from barnabas.log.disk.secret_files import write_secret
from barnabas.net.base.local.certificates import (
    broker_certificate,
    client_certificate,
    make_authority,
    read_authority,
)
from barnabas.net.cli.main import main
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import InvalidConfigError, NoBrokersAvailableError
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.testing.access import options_for
from barnabas.net.wire.tcp import MAX_HANDSHAKES

LIMIT_S = 30.0
API_VERSIONS = 18
CERTIFICATES_S = (3, 10, 30)  # that a client's certificate is still valid; a busy machine needs the longer ones
RELOADED = "event=certificates_reloaded"
TOLD = 1_048_576  # bytes of a record that is larger than any buffer of TLS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("secure") / "c", 3, overrides=SESSION, secure=True) as started:
        yield started


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def home(cluster: Cluster) -> Path:
    return cluster.folder.absolute() / "security"


def context(cluster: Cluster) -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=home(cluster) / "ca.pem")
    found.load_cert_chain(home(cluster) / "admin.pem")
    return found


async def topic(cluster: Cluster, name: str) -> str:
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic(name, partitions=3, replication_factor=3)
    return name


async def refusal(cluster: Cluster, **options: object) -> str:
    await cluster.ready()
    with pytest.raises(NoBrokersAvailableError) as refused:
        async with Admin(cluster.nodes[0].address, **options):  # type: ignore[arg-type]
            pass
    return refused.value.message


async def test_records_go_through_tls_and_a_leader_may_die(cluster: Cluster) -> None:
    name = await topic(cluster, "orders")
    large = b"x" * (TOLD - 4_096)
    async with Producer(cluster.bootstrap, **cluster.security) as producer:
        for number in range(300):
            await producer.send(name, b"%d" % number, partition=number % 3)
        handle = await producer.send(name, large, partition=0)
        assert (await handle).offset >= 0
        async with cluster.admin() as admin:
            leader = (await admin.describe_topic(name)).partitions[1].leader
        cluster.kill(leader)
        after = await producer.send(name, b"after", partition=1)
        assert (await after).offset >= 0
    cluster.start(leader)
    await cluster.ready()
    found: list[bytes] = []
    async with Consumer(
        name, bootstrap=cluster.bootstrap, group="readers", auto_offset_reset="earliest", **cluster.security
    ) as consumer:
        async with asyncio.timeout(LIMIT_S):
            async for record in consumer:
                found.append(record.value or b"")
                if len(found) == 302:
                    break
    assert sorted(found, key=len)[-1] == large
    assert {b"%d" % number for number in range(300)} | {b"after", large} == set(found)


async def test_librdkafka_writes_and_reads(cluster: Cluster) -> None:
    name = await topic(cluster, "rd")
    secure = {"bootstrap.servers": cluster.bootstrap, **options_for("confluent-kafka", cluster.security)}

    await check_roundtrip(secure, name)


async def test_commands_take_the_file_that_up_has_written(cluster: Cluster) -> None:
    name = await topic(cluster, "commands")
    file = str(cluster.folder / "client.properties")

    def run(*arguments: str, text: bytes = b"") -> bytes:
        command = [sys.executable, "-P", "-m", "barnabas", *arguments, "--command-config", file]
        return subprocess.run(command, input=text, capture_output=True, check=True, timeout=2 * LIMIT_S).stdout

    assert name.encode() in await asyncio.to_thread(run, "topic", "list")
    await asyncio.to_thread(run, "topic", "produce", name, text=b"hello\n")
    told = await asyncio.to_thread(run, "topic", "consume", name, "-o", "start", "-n", "1")
    assert told == b"hello\n"
    counted = await asyncio.to_thread(run, "sql", f'select count(*) as n from "{name}"', "--csv")
    assert counted.split() == [b"n", b"1"]


async def test_the_http_api_answers_by_tls_only(cluster: Cluster) -> None:
    await cluster.ready()
    address = cluster.nodes[0].property("admin.listener").removeprefix("HTTPS://")

    def get(scheme: str) -> object:
        with urllib.request.urlopen(
            f"{scheme}://{address}/v3/clusters", context=context(cluster), timeout=LIMIT_S
        ) as told:
            return json.load(told)

    found = await asyncio.to_thread(get, "https")
    assert isinstance(found, dict) and len(found["data"]) == 1
    with pytest.raises(OSError):
        await asyncio.to_thread(get, "http")


async def test_who_speaks_plain_text_is_told_why_it_is_not_answered(cluster: Cluster) -> None:
    assert "demands TLS, set security_protocol" in await refusal(cluster)


async def test_who_shows_no_certificate_is_refused(cluster: Cluster) -> None:
    told = await refusal(cluster, security_protocol="SSL", ssl_cafile=str(home(cluster) / "ca.pem"))
    assert "ssl_certfile" in told


async def test_certificates_of_strangers_and_old_ones_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    stranger = make_authority(tmp_path / "other", "other", now=now())
    write_secret(tmp_path / "stranger.pem", client_certificate(stranger, "admin", now=now()))
    long_ago = now() - datetime.timedelta(days=30)
    old = client_certificate(read_authority(home(cluster)), "admin", now=long_ago, days=7)
    write_secret(tmp_path / "old.pem", old)
    trusted = str(home(cluster) / "ca.pem")
    for name in ("stranger", "old"):
        options = SecurityOptions(
            security_protocol="SSL", ssl_cafile=trusted, ssl_certfile=str(tmp_path / f"{name}.pem")
        )
        assert "was lost" in await refusal(cluster, **options), name
    # And this side does not talk to brokers whose authority it does not know.
    wrong = SecurityOptions(**cluster.security)
    wrong["ssl_cafile"] = str(tmp_path / "other" / "ca.pem")
    assert "the server's certificate is not accepted" in await refusal(cluster, **wrong)


async def test_the_quorum_wants_a_certificate(cluster: Cluster) -> None:
    await cluster.ready()
    host, _, port = cluster.nodes[0].property("quorum.listener").rpartition(":")

    async def ask(tls: ssl.SSLContext | None) -> int:
        told = await ask_directory(LoopNetwork(), host, int(port), tls=tls, server_hostname=host if tls else None)
        return told.node_id

    assert await ask(context(cluster)) == 0
    for stranger in (None, ssl.create_default_context(cafile=home(cluster) / "ca.pem")):
        with pytest.raises(DirectoryUnavailableError):
            await ask(stranger)


async def test_connections_that_say_nothing_keep_nobody_out_of_any_port(cluster: Cluster) -> None:
    await cluster.ready()
    node = cluster.nodes[0]
    addresses = [
        (host, int(port))
        for key in ("listeners", "quorum.listener", "admin.listener")
        for host, _, port in [node.property(key).rpartition("//")[2].rpartition(":")]
    ]
    before = descriptors(node)
    silent = [socket.create_connection(address) for address in addresses for _ in range(MAX_HANDSHAKES + 50)]
    try:
        async with Admin(node.address, **cluster.security) as admin:
            assert len((await admin.describe_cluster()).brokers) == 3
        host, port = addresses[1]
        told = await ask_directory(LoopNetwork(), host, port, tls=context(cluster), server_hostname=host)
        assert told.node_id == 0
        assert await asyncio.to_thread(http_status, cluster, node) == 200
        assert descriptors(node) - before <= len(addresses) * (MAX_HANDSHAKES + 10)
    finally:
        for one in silent:
            one.close()


def descriptors(node: Node) -> int:
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


def http_status(cluster: Cluster, node: Node) -> int:
    url = f"https://{node.property('admin.listener').removeprefix('HTTPS://')}/healthz"
    with urllib.request.urlopen(url, context=context(cluster), timeout=LIMIT_S) as told:
        return int(told.status)


async def test_a_new_certificate_is_used_without_a_restart(cluster: Cluster) -> None:
    await cluster.ready()
    node = cluster.nodes[1]
    path = node.folder / "broker.pem"
    before = await asyncio.to_thread(serial, cluster, node)
    async with Producer(node.address, **cluster.security) as producer:
        await (await producer.send(await topic(cluster, "rotation"), b"1"))
        size = node.log_size()

        def has_said(event: str) -> bool:
            return any(event in line for line in node.log_since(size))

        path.write_text("not a certificate", encoding="ascii")
        await until(lambda: has_said("event=certificates_not_reloaded"), "the wrong file is reported")
        assert await asyncio.to_thread(serial, cluster, node) == before
        fresh = broker_certificate(read_authority(home(cluster)), node.node_id, (node.host,), now=now())
        write_secret(path, fresh)
        await until(lambda: has_said(RELOADED), "the new certificate is loaded")
        assert await asyncio.to_thread(serial, cluster, node) != before
        await (await producer.send("rotation", b"2"))  # over the connection that it had
    assert node.is_running


async def test_the_authority_is_replaced_while_the_cluster_runs(cluster: Cluster) -> None:
    """In the order of docs/security.md: trust in both, new certificates, trust in the new one alone."""
    await cluster.ready()
    folder = home(cluster)

    before = [node.log().count(RELOADED) for node in cluster.nodes]

    async def run(*words: str) -> None:
        assert await asyncio.to_thread(main, ["security", *words]) == 0

    async def loaded(times: int) -> None:
        wanted = [count + times for count in before]
        await until(lambda: [node.log().count(RELOADED) for node in cluster.nodes] == wanted, "files are loaded")

    async with Producer(cluster.bootstrap, **cluster.security) as producer:
        name = await topic(cluster, "authority")
        await (await producer.send(name, b"1", partition=0))
        await run("ca", str(folder), "--rotate", "--name", "second")
        await loaded(1)
        for node in cluster.nodes:
            await run("broker", str(folder), str(node.node_id), node.host, "--out", str(node.folder / "broker.pem"))
        await run("client", str(folder), "admin")
        await loaded(2)
        await run("ca", str(folder), "--retire")
        await loaded(3)
        await (await producer.send(name, b"2", partition=0))  # over the connection that it had
    async with Producer(cluster.bootstrap, **cluster.security) as producer:
        await (await producer.send(name, b"3"))
    cluster.kill(0)
    cluster.start(0)
    await cluster.ready()  # with brokers that have certificates of the new authority only


def serial(cluster: Cluster, node: Node) -> object:
    plain = socket.create_connection((node.host, node.port), timeout=LIMIT_S)
    with context(cluster).wrap_socket(plain, server_hostname=node.host) as encrypted:
        told = encrypted.getpeercert()
        assert told is not None
        return told["serialNumber"]


def test_a_broker_whose_certificate_others_would_refuse_does_not_start(cluster: Cluster, tmp_path: Path) -> None:
    """The certificate of another node, and one of another authority: found before the others see it."""
    wrong_node = broker_certificate(read_authority(home(cluster)), 7, ("127.0.0.1",), now=now())
    other = make_authority(tmp_path / "other", "other", now=now())
    wrong_authority = broker_certificate(other, 0, ("127.0.0.1",), now=now())
    for number, (certificate, reason) in enumerate(
        ((wrong_node, "contain the DNS name node-0"), (wrong_authority, "must be signed by"))
    ):
        with Cluster(tmp_path / f"c{number}", 1, overrides=SESSION, secure=True) as one:
            node = one.nodes[0]
            node.kill()
            authority = tmp_path / f"c{number}" / "security" / "ca.pem"
            authority.write_bytes((home(cluster) / "ca.pem").read_bytes())
            write_secret(node.folder / "broker.pem", certificate)
            node.launch()
            assert node.process.wait(LIMIT_S) == 1
            assert reason in node.log().splitlines()[-1]


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("hello", encoding="ascii")
    with pytest.raises(InvalidConfigError, match=r"x\.pem.*PEM format"):
        Producer("localhost:1", security_protocol="SSL", ssl_cafile=str(tmp_path / "x.pem"))
    with pytest.raises(InvalidConfigError, match="No such file"):
        Producer("localhost:1", security_protocol="SSL", ssl_certfile=str(tmp_path / "y.pem"))
    with pytest.raises(InvalidConfigError, match="no effect without"):
        Producer("localhost:1", ssl_cafile="x")
    with pytest.raises(TypeError, match="ssl_cafiles"):
        Producer("localhost:1", ssl_cafiles="x")  # type: ignore[call-arg]


def asks_again(
    tls: ssl.SSLContext, address: str, session: ssl.SSLSession | None
) -> tuple[ssl.SSLSession | None, bool, bool]:
    """The session to resume next, whether this one was resumed, and whether a request is answered."""
    host, _, port = address.rpartition(":")
    with tls.wrap_socket(socket.create_connection((host, int(port)), LIMIT_S), session=session) as connection:
        connection.sendall(struct.pack(">ihhih", 11, API_VERSIONS, 0, 1, 1) + b"x")
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(TOLD)
        found = connection.session, bool(connection.session_reused), bool(answer)
        with contextlib.suppress(OSError):  # the end of a session that is to be resumed is a clean one
            connection.unwrap()
        return found


async def test_a_certificate_that_has_ended_opens_no_connection_and_no_call(cluster: Cluster, tmp_path: Path) -> None:
    """A session of TLS 1.2 is resumed without a look at the certificate."""
    await cluster.ready()
    (address,) = re.findall(r"BROKERS://([^,]+)", cluster.nodes[0].property("listeners"))
    admin = cluster.nodes[0].property("admin.listener").removeprefix("HTTPS://")
    for valid_s in CERTIFICATES_S:
        ends = now() + datetime.timedelta(seconds=valid_s)
        tls = short_lived(cluster, tmp_path / f"{valid_s}.pem", ends)
        calls = http.client.HTTPSConnection(admin, timeout=LIMIT_S, context=tls)
        with contextlib.suppress(OSError):  # of a certificate that has ended
            session, _, is_answered = asks_again(tls, address, None)
            if is_answered and status(calls) == 200:
                break
        calls.close()
        assert now() > ends
    connection = calls.sock
    assert connection is not None
    await until(lambda: status(calls) == 401, "the certificate has ended")
    assert calls.sock is connection, "no new handshake was made"
    _, is_resumed, is_answered = asks_again(tls, address, session)
    assert is_resumed and not is_answered
    calls.close()


def short_lived(cluster: Cluster, path: Path, ends: datetime.datetime) -> ssl.SSLContext:
    """Of an administrator whose certificate ends then."""
    began = ends - datetime.timedelta(days=1)
    write_secret(path, client_certificate(read_authority(home(cluster)), "admin", now=began, days=1))
    tls = ssl.create_default_context(cafile=home(cluster) / "ca.pem")
    tls.check_hostname, tls.maximum_version = False, ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(path)
    return tls


def status(calls: http.client.HTTPSConnection) -> int:
    calls.request("GET", "/metrics")
    answer = calls.getresponse()
    answer.read()
    return answer.status

"""Mutual TLS between voters: a certificate names one voter, and an observer's names none."""

import asyncio
import contextlib
import logging
import pathlib
import random
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from simulation.raft_files import PlainFiles

from barnabas.kraft.quorum.quorum import Leadership
from barnabas.kraft.quorum.voters import VoterSet
from barnabas.kraft.raft.net.directory import ask_directory
from barnabas.kraft.raft.net.mutual_tls import MutualTls, tls_name
from barnabas.kraft.raft.net.network import LoopNetwork
from barnabas.kraft.raft.net.transport import RaftTransport
from barnabas.kraft.raft.net.wire import Directory, Hello, encode_hello
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.log.vocabulary.quorum import CommittedCommand
from barnabas.net.broker.tls import QuorumNetwork

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make certificates"
)


class Listener:
    def __init__(self) -> None:
        self.leads = asyncio.Event()

    def committed(self, commands: list[CommittedCommand]) -> None:
        pass

    def restore(self, index: int, chunks: Iterable[bytes]) -> None:
        pass

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        return list

    def leadership_changed(self, leadership: Leadership) -> None:
        if leadership.is_self:
            self.leads.set()


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    where = tmp_path_factory.mktemp("certificates")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    signs = ("-addext", "keyUsage=critical,keyCertSign")  # Python 3.13 asks for it
    openssl(
        "req", "-x509", *new_key, *signs, "-keyout", f"{where}/ca.key", "-out", f"{where}/ca.crt", "-subj", "/CN=ca"
    )
    for name in (tls_name(0), tls_name(1), "observer-9"):
        key, request, extra = f"{where}/{name}.key", f"{where}/{name}.csr", where / f"{name}.ext"
        extra.write_text(f"subjectAltName=DNS:{name}")
        openssl("req", *new_key, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", f"{where}/ca.crt", "-CAkey", f"{where}/ca.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signer, "-extfile", str(extra), "-out", f"{where}/{name}.crt")
    return where


def tls_of(certificates: pathlib.Path, name: str) -> MutualTls:
    contexts = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        context = ssl.create_default_context(purpose, cafile=str(certificates / "ca.crt"))
        context.load_cert_chain(certificates / f"{name}.crt", certificates / f"{name}.key")
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        contexts.append(context)
    return MutualTls(server=lambda: contexts[0], client=lambda: contexts[1])


def at_step(tls: MutualTls, step: str) -> MutualTls | None:
    """`step`: "plain" (TLS is not configured), or a value of `tls.transition`."""
    if step == "plain":
        return None
    return replace(tls, also_plain=step != "off", dials_plain=step == "accept")


class Pair:
    """Voters 0 and 1, each with the certificate of the given name. `steps`: how far each is on its way to TLS."""

    def __init__(
        self,
        path: pathlib.Path,
        ports: list[int],
        certificates: pathlib.Path,
        names: list[str],
        steps: tuple[str, str] = ("off", "off"),
    ) -> None:
        loop = asyncio.get_running_loop()
        self.executor = ThreadPoolExecutor(1)
        self.listeners = [Listener() for _ in names]
        self.quorums = [
            RaftQuorum(
                node_id=node_id,
                voters={peer: ("127.0.0.1", port) for peer, port in enumerate(ports)},
                directory=str(path / str(node_id)),
                storage=PlainFiles(),
                network=QuorumNetwork(),
                executor=self.executor,
                loop=loop,
                rng=random.Random(node_id),
                clock=loop.time,
                listener=self.listeners[node_id],
                fatal=lambda _reason: None,
                tls=at_step(tls_of(certificates, name), steps[node_id]),
            )
            for node_id, name in enumerate(names)
        ]

    async def __aenter__(self) -> "Pair":
        for quorum in self.quorums:
            await quorum.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        for quorum in self.quorums:
            await quorum.close()
        self.executor.shutdown()


async def test_voters_with_their_certificates_form_a_cluster(
    tmp_path: pathlib.Path, unused_tcp_port_factory: Callable[[], int], certificates: pathlib.Path
) -> None:
    ports = [unused_tcp_port_factory() for _ in range(2)]
    async with Pair(tmp_path, ports, certificates, [tls_name(0), tls_name(1)]) as pair:
        await asyncio.wait_for(pair.listeners[0].leads.wait(), 10)
        client = tls_of(certificates, "observer-9").client()
        directory = await ask_directory(LoopNetwork(), "127.0.0.1", ports[0], tls=client, server_hostname=tls_name(0))
        assert directory.leader_id == 0


async def test_an_observers_certificate_is_no_voter(
    tmp_path: pathlib.Path,
    unused_tcp_port_factory: Callable[[], int],
    certificates: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = asyncio.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "its certificate is for ['observer-9']" in record.getMessage():
                refused.set()

    watch = Watch()
    logging.getLogger("barnabas.quorum").addHandler(watch)
    ports = [unused_tcp_port_factory() for _ in range(2)]
    try:
        with caplog.at_level(logging.WARNING):
            async with Pair(tmp_path, ports, certificates, [tls_name(0), "observer-9"]) as pair:
                await asyncio.wait_for(refused.wait(), 10)
                assert pair.quorums[0].connected_voters == []
    finally:
        logging.getLogger("barnabas.quorum").removeHandler(watch)


STEPS = ("plain", "accept", "use", "off")


@pytest.mark.parametrize(
    "steps", [pair for pair in product(STEPS, STEPS) if abs(STEPS.index(pair[0]) - STEPS.index(pair[1])) <= 1]
)
async def test_voters_of_neighbouring_steps_form_a_quorum(
    tmp_path: pathlib.Path,
    unused_tcp_port_factory: Callable[[], int],
    certificates: pathlib.Path,
    steps: tuple[str, str],
) -> None:
    """While a cluster changes to TLS, each broker is one step ahead of the next one, or behind."""
    ports = [unused_tcp_port_factory() for _ in range(2)]
    async with Pair(tmp_path, ports, certificates, [tls_name(0), tls_name(1)], steps) as pair:
        leaders = [asyncio.ensure_future(listener.leads.wait()) for listener in pair.listeners]
        done, waiting = await asyncio.wait(leaders, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        assert done


@pytest.mark.parametrize("step", ["accept", "use"])
async def test_a_certificate_counts_also_where_plain_text_is_accepted(
    tmp_path: pathlib.Path, unused_tcp_port_factory: Callable[[], int], certificates: pathlib.Path, step: str
) -> None:
    """A voter that comes by TLS must show its own certificate, and one that comes without must be found at its address."""
    ports = [unused_tcp_port_factory() for _ in range(2)]
    async with Pair(tmp_path, ports, certificates, [tls_name(0), "observer-9"], (step, "off")) as pair:
        for closed in (hello_by_tls(certificates, ports[0]), hello_in_plain_text(ports[0])):
            await asyncio.wait_for(closed, 10)
        assert pair.quorums[0].connected_voters == []


async def hello_by_tls(certificates: pathlib.Path, port: int) -> None:
    context = tls_of(certificates, "observer-9").client()
    await say_hello(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=tls_name(0)))


async def hello_in_plain_text(port: int) -> None:
    await say_hello(*await asyncio.open_connection("127.0.0.1", port))


async def say_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As voter 1; return when the other side has closed the connection."""
    writer.write(encode_hello(Hello(voter_id=1, token=1 << 62)))
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


class Directories:
    """A core that only answers observers."""

    def hello(self) -> Hello:
        return Hello(voter_id=0)

    def directory(self, endpoints: dict[int, bytes]) -> Directory:
        voters = VoterSet(voters=())
        return Directory(node_id=0, cluster_id="", leader_id=0, endpoints=endpoints, voters=voters)


def asks(client: ssl.SSLContext, port: int, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool, bool]:
    """As an observer: the session to resume next, whether this one was resumed, and whether the voter answers."""
    plain = socket.create_connection(("127.0.0.1", port), 10)
    with client.wrap_socket(plain, server_hostname=tls_name(0), session=session) as connection:
        answer = b""
        with contextlib.suppress(OSError):
            connection.sendall(encode_hello(Hello(voter_id=None)))
            answer = connection.recv(100)
        found = connection.session, bool(connection.session_reused), bool(answer)
        with contextlib.suppress(OSError):  # a session may be resumed if its end was a clean one
            connection.unwrap()
        return found


async def test_a_resumed_session_ends_with_its_certificate(unused_tcp_port: int, certificates: pathlib.Path) -> None:
    """TLS 1.2 resumes a session without another look at the certificate."""
    loop, core, now_s = asyncio.get_running_loop(), Directories(), time.time()
    server, client = tls_of(certificates, tls_name(0)).server(), tls_of(certificates, "observer-9").client()
    server.minimum_version, client.minimum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    handler: Any = core
    transport = RaftTransport(
        node_id=0,
        listen=("127.0.0.1", unused_tcp_port),
        contacts={},
        network=QuorumNetwork(),
        loop=loop,
        rng=random.Random(1),
        handler=handler,
        tls=MutualTls(server=lambda: server, client=lambda: client),
        wall_s=lambda: now_s,
    )
    await transport.start()
    session, _, is_answered = await asyncio.to_thread(asks, client, unused_tcp_port, None)
    assert is_answered
    assert (await asyncio.to_thread(asks, client, unused_tcp_port, session))[1:] == (True, True)
    now_s += 366 * 86_400
    assert (await asyncio.to_thread(asks, client, unused_tcp_port, session))[1:] == (True, False)
    await transport.close()

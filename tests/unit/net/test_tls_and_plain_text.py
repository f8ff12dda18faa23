"""A port that accepts TLS and plain text while a cluster changes from one to the other (`tls.transition`)."""

import asyncio
import datetime
import socket
from pathlib import Path

import pytest

from barnabas.log.disk.secret_files import write_secret
from barnabas.net.base.local.certificates import AUTHORITY, broker_certificate, make_authority
from barnabas.net.wire import tcp
from barnabas.net.wire.network import Listener
from barnabas.net.wire.tcp import TcpNetwork
from barnabas.net.wire.tls import TlsContexts, TlsFiles

LIMIT_S = 30.0
HOST = "127.0.0.1"


class Greeter(asyncio.Protocol):
    """Says "encrypted" or "plain", and what it has received."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        kind = "plain" if transport.get_extra_info("sslcontext") is None else "encrypted"
        transport.write(kind.encode())

    def data_received(self, data: bytes) -> None:
        self._transport.write(b" " + data)
        self._transport.close()


@pytest.fixture
def contexts(tmp_path: Path) -> TlsContexts:
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(tmp_path, "test", now=now)
    write_secret(tmp_path / "own.pem", broker_certificate(authority, 0, [HOST], now=now))
    return TlsContexts(TlsFiles(certificate=str(tmp_path / "own.pem"), authorities=str(tmp_path / AUTHORITY)))


class Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(self.received)


async def answer(network: TcpNetwork, listener: Listener) -> bytes:
    client = await network.connect(Collect, *listener.address)
    assert isinstance(client, Collect)
    return await asyncio.wait_for(client.ended, LIMIT_S)


async def test_one_port_serves_both_and_a_broker_dials_as_told(contexts: TlsContexts) -> None:
    listener = await TcpNetwork(contexts, also_plain=True).listen(Greeter, HOST, 0)
    assert await answer(TcpNetwork(), listener) == b"plain hello"
    assert await answer(TcpNetwork(contexts), listener) == b"encrypted hello"
    assert await answer(TcpNetwork(contexts, also_plain=True), listener) == b"encrypted hello"
    assert await answer(TcpNetwork(contexts, also_plain=True, dials_plain=True), listener) == b"plain hello"
    await listener.close()


async def test_without_a_transition_plain_text_is_refused(contexts: TlsContexts) -> None:
    listener = await TcpNetwork(contexts).listen(Greeter, HOST, 0)
    assert await answer(TcpNetwork(), listener) == b""
    await listener.close()


async def test_a_client_that_says_nothing_is_served_in_plain_text_in_the_end(
    contexts: TlsContexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "HANDSHAKE_TIMEOUT_S", 0.05)
    listener = await TcpNetwork(contexts, also_plain=True).listen(Greeter, HOST, 0)
    silent = socket.create_connection(listener.address)
    silent.setblocking(False)
    told = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(silent, 100), LIMIT_S)
    assert told == b"plain"
    silent.close()
    await listener.close()


async def test_clients_that_leave_or_are_turned_away_leave_nothing_behind(contexts: TlsContexts) -> None:
    """More silent connections than have room: the oldest end, and a client that speaks is served."""
    listener = await TcpNetwork(contexts, also_plain=True).listen(Greeter, HOST, 0)
    socket.create_connection(listener.address).close()
    crowd = [socket.create_connection(listener.address) for _ in range(tcp.MAX_HANDSHAKES + 8)]
    assert await answer(TcpNetwork(contexts), listener) == b"encrypted hello"
    for client in crowd:
        client.setblocking(False)
    assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(crowd[0], 1), LIMIT_S) == b""
    with pytest.raises(BlockingIOError):
        crowd[-1].recv(1)  # it still has its place
    for _ in range(4):  # the descriptors of those that were turned away serve again
        assert await answer(TcpNetwork(), listener) == b"plain hello"
        assert await answer(TcpNetwork(contexts), listener) == b"encrypted hello"
    await listener.close()
    for client in crowd:
        client.close()

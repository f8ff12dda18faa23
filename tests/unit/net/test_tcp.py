import asyncio
import errno
import socket
import struct

import pytest

from barnabas.log.vocabulary.errors import NetworkError
from barnabas.net.base.clock import SystemClock
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import ACCEPTS_PER_TURN, USER_TIMEOUT_MS, TcpListener, TcpNetwork


async def test_both_ends_are_tuned_and_ports_are_real() -> None:
    accepted: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

    class Accept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)

    network = TcpNetwork()
    listener = await network.listen(Accept, "localhost", 0)
    host, port = listener.address
    assert host == "127.0.0.1" and port > 0
    opened: list[asyncio.BaseTransport] = []

    class Connect(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opened.append(transport)

    await network.connect(Connect, host, port)
    for transport in (await accepted, opened[0]):
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == USER_TIMEOUT_MS
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    with pytest.raises(OSError, match="in use"):
        await network.listen(Accept, "127.0.0.1", port)
    await listener.close()
    with pytest.raises(ConnectionRefusedError):
        await network.connect(Connect, host, port)
    for transport in (accepted.result(), opened[0]):
        transport.abort()  # type: ignore[attr-defined]
    await asyncio.sleep(0)


async def test_the_clock_is_the_loops() -> None:
    clock = SystemClock()
    assert abs(clock.now_ms() - asyncio.get_running_loop().time() * 1000) < 50
    assert clock.wall_ms() > 1_700_000_000_000


class NoDescriptorLeft(socket.socket):
    """A listening socket whose first accepts fail, as in a process that has used up its descriptors."""

    failures = 2

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_accepts_that_fail_are_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Accept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            arrived.set_result(None)

    sock = NoDescriptorLeft(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    sock.setblocking(False)
    listener = TcpListener(sock, Accept)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *listener.address)
    async with asyncio.timeout(30):
        await arrived
    assert caplog.text.count("cannot accept connections") == 1 and "Traceback" not in caplog.text
    await listener.close()
    transport.abort()
    await asyncio.sleep(0)


async def test_a_crowd_is_accepted_a_few_at_a_time() -> None:
    """Between two turns of the loop at most ACCEPTS_PER_TURN connections are made, however many wait."""
    made: list[int] = []
    transports: list[asyncio.BaseTransport] = []
    turn = 0

    class Accept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(turn)
            transports.append(transport)

    crowd = 5 * ACCEPTS_PER_TURN
    listener = await TcpNetwork().listen(Accept, "127.0.0.1", 0)
    clients = [socket.create_connection(listener.address) for _ in range(crowd)]
    async with asyncio.timeout(30):
        while len(made) < crowd:
            turn += 1
            await asyncio.sleep(0)
    assert max(made.count(number) for number in set(made)) <= ACCEPTS_PER_TURN
    await listener.close()
    for client in clients:
        client.close()
    for transport in transports:
        transport.abort()  # type: ignore[attr-defined]
    await asyncio.sleep(0)


async def test_a_reset_before_the_greeting_is_explained_like_an_end() -> None:
    """A broker whose TLS does not fit closes the connection with our hello unread: the kernel sends a reset."""

    class Reset(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            self._transport.abort()  # type: ignore[attr-defined]

    network = TcpNetwork()
    listener = await network.listen(Reset, "127.0.0.1", 0)
    with pytest.raises(NetworkError, match="set security_protocol"):
        await RpcConnection.open(network, *listener.address, client_id="test")
    await listener.close()

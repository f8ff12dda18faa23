import asyncio
import socket

import pytest

from barnabas.net.clock import SystemClock
from barnabas.net.tcp import USER_TIMEOUT_MS, TcpNetwork


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

"""The real network: TCP on the running asyncio loop (asyncio's own or uvloop)."""

import asyncio
import socket

from .network import Listener, ProtocolFactory

USER_TIMEOUT_MS = 30_000  # Unacknowledged data kills the connection after this, not after the kernel's 15 minutes.
KEEPALIVE_IDLE_S = 60  # A peer that vanished without a word is noticed while nothing is being sent, too.
KEEPALIVE_INTERVAL_S = 10
BACKLOG = 1024  # Connections that wait for accept: a whole fleet of clients may come back at once.


class TcpListener:
    def __init__(self, server: asyncio.Server, address: tuple[str, int]) -> None:
        self._server = server
        self._address = address

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def close(self) -> None:
        # Not wait_closed(): from Python 3.12 on it waits for the connections, which are not ours to end.
        self._server.close()
        await asyncio.sleep(0)


class TcpNetwork:
    """Implements net.network.Network."""

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        loop = asyncio.get_running_loop()
        family, address = await _resolve(loop, host or "0.0.0.0", port)
        sock = socket.create_server(address, family=family, backlog=BACKLOG)  # Sets SO_REUSEADDR.
        try:
            sock.setblocking(False)
            _tune(sock)  # Linux hands these options on to the sockets that accept returns.
            server = await loop.create_server(factory, sock=sock, backlog=BACKLOG)
        except BaseException:
            sock.close()
            raise
        bound = sock.getsockname()
        return TcpListener(server, (bound[0], bound[1]))

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(factory, host, port)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            _tune(sock)
        return protocol


async def _resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> tuple[int, tuple[str, int]]:
    """One address for one listener: with port 0, two families would get two different ports. IPv4 goes first."""
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
    ):
        option = getattr(socket, name, None)  # Not every system has them; without them TCP just takes longer.
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

"""The real network: TCP on the running event loop (asyncio's own or uvloop)."""

import asyncio
import logging
import socket

from .network import Listener, ProtocolFactory

logger = logging.getLogger("barnabas.network")

USER_TIMEOUT_MS = 30_000  # Unacknowledged data closes the connection after this, not after the kernel's 15 minutes.
KEEPALIVE_IDLE_S = 60  # A peer that vanished without closing is detected even if no data is sent.
KEEPALIVE_INTERVAL_S = 10
BACKLOG = 1024  # Connections that wait for accept: many clients may reconnect at once.
ACCEPTS_PER_TURN = (
    16  # Per listener; an accepted connection costs 0.1 ms, and asyncio itself would accept the whole backlog.
)
ACCEPT_PAUSE_S = 1.0  # After a failed accept (no descriptor, no memory): the next pass would fail, too.
LOG_AGAIN_AFTER_S = 60.0  # The same problem is logged once a minute, not once a second.


class TcpListener:
    """Accepts a few connections per pass of the loop. The others wait in the kernel's backlog."""

    def __init__(self, sock: socket.socket, factory: ProtocolFactory) -> None:
        self._sock = sock
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._address: tuple[str, int] = sock.getsockname()[:2]
        self._pause: asyncio.TimerHandle | None = None
        self._logged_at: float | None = None
        # Tasks that turn accepted connections into transports; each ends within two passes of the loop.
        self._arriving: dict[asyncio.Task[None], None] = {}
        self._loop.add_reader(sock, self._accept)

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        await asyncio.gather(*self._arriving, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_later(error)
                return
            task = self._loop.create_task(self._arrive(connection))
            self._arriving[task] = None
            task.add_done_callback(lambda done: self._arriving.pop(done, None))

    async def _arrive(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except OSError as error:  # The client has disconnected meanwhile.
            logger.debug("connection lost before it was served reason=%s", error)
            connection.close()

    def _accept_later(self, error: OSError) -> None:
        """Pause accepting: the listening socket stays readable, so the loop would spin on it."""
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
        now = self._loop.time()
        if self._logged_at is None or now - self._logged_at >= LOG_AGAIN_AFTER_S:
            self._logged_at = now
            logger.warning(
                "cannot accept connections address=%s:%d reason=%s; check ulimit -n and max.connections",
                *self._address, error.strerror or error,
            )  # fmt: skip

    def _accept_again(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)


class TcpNetwork:
    """Implements `net.wire.network.Network`."""

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        loop = asyncio.get_running_loop()
        family, address = await _resolve(loop, host or "0.0.0.0", port)
        sock = socket.create_server(address, family=family, backlog=BACKLOG)  # Sets SO_REUSEADDR.
        try:
            sock.setblocking(False)
            _tune(sock)  # On Linux, accepted sockets inherit these options.
            return TcpListener(sock, factory)
        except BaseException:
            sock.close()
            raise

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(factory, host, port)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            _tune(sock)
        return protocol


async def _resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> tuple[int, tuple[str, int]]:
    """One address for one listener: with port 0, two families would get two different ports. IPv4 is preferred."""
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
        option = getattr(socket, name, None)  # Not every system has these options; without them, TCP only takes longer.
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

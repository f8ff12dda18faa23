"""The real network: TCP on the running event loop (asyncio's own or uvloop)."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from barnabas.log.vocabulary.errors import BarnabasError, NetworkError

from ..base.sasl.credentials import Credentials
from ..base.sasl.exchange import ClientMechanism
from .network import Listener, ProtocolFactory
from .tls import HANDSHAKE_TIMEOUT_S, TlsContexts, explain_handshake, explain_refusal

logger = logging.getLogger("barnabas.network")

USER_TIMEOUT_MS = 30_000  # Unacknowledged data closes the connection after this, not after the kernel's 15 minutes.
KEEPALIVE_IDLE_S = 60  # A peer that vanished without closing is detected even if no data is sent.
KEEPALIVE_INTERVAL_S = 10
BACKLOG = 1024  # Connections that wait for accept: many clients may reconnect at once.
# Per listener: a connection and its first requests cost up to 0.3 ms, and asyncio itself would accept the whole backlog.
ACCEPTS_PER_TURN = 4
ACCEPT_PAUSE_S = 1.0  # After a failed accept (no descriptor, no memory): the next pass would fail, too.
# Connections of one listener in the TLS handshake; the oldest gives way to a new one. A connection that says nothing holds a
# place for the time of a handshake at most, and honest clients need a few milliseconds.
MAX_HANDSHAKES = 256
TLS_HANDSHAKE = (
    b"\x16"  # first byte of a ClientHello; no request of Kafka's or ours, which would announce 350 MB, and no HTTP
)
LOG_AGAIN_AFTER_S = 60.0  # The same problem is logged once a minute, not once a second.


class TcpListener:
    """Accepts a few connections per pass of the loop. The others wait in the kernel's backlog."""

    def __init__(
        self,
        sock: socket.socket,
        factory: ProtocolFactory,
        tls: Callable[[], ssl.SSLContext | None] | None = None,
        *,
        also_plain: bool = False,
    ) -> None:
        """`sock` listens, and does not block. `tls` returns the context for a connection that arrives now. `also_plain`: a
        connection that does not begin with a handshake of TLS is served in plain text."""
        self._sock = sock
        self._factory = factory
        self._tls = tls
        self._also_plain = also_plain
        self._loop = asyncio.get_running_loop()
        self._address: tuple[str, int] = sock.getsockname()[:2]
        self._pause: asyncio.TimerHandle | None = None
        self._logged_at: dict[str, float] = {}  # By problem.
        # Tasks that turn accepted connections into transports, the oldest first. Each ends within two passes of the loop, with
        # TLS within the time of a handshake.
        self._arriving: dict[asyncio.Task[None], None] = {}
        self._loop.add_reader(sock, self._accept)

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*self._arriving, return_exceptions=True)

    def stop(self) -> None:
        """Accept no more. Connections in the TLS handshake end; others that have just arrived will be served."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        if self._tls is not None:
            for task in self._arriving:
                task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_later(error)
                return
            if len(self._arriving) >= MAX_HANDSHAKES:
                oldest = next(iter(self._arriving))
                del self._arriving[oldest]  # now: it ends later, and the next one to arrive takes the place of another
                oldest.cancel()
            task = self._loop.create_task(self._arrive(connection, peer))
            self._arriving[task] = None
            task.add_done_callback(lambda done: self._arriving.pop(done, None))

    async def _arrive(self, connection: socket.socket, peer: Any) -> None:
        options: dict[str, Any] = {}
        try:
            if self._tls is not None and not (self._also_plain and await self._begins_in_plain_text(connection)):
                options = {"ssl": self._tls(), "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S}
            await self._loop.connect_accepted_socket(self._factory, connection, **options)
        except ssl.SSLError as error:
            connection.close()
            self._log_refusal(peer, error)
        except OSError as error:  # The client has disconnected meanwhile, or has not ended the handshake.
            logger.debug("connection lost before it was served reason=%s", error)
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    async def _begins_in_plain_text(self, connection: socket.socket) -> bool:
        """Look at the first byte, and leave it there. A client of TLS speaks first, so one that says nothing has none."""
        connection.setblocking(False)
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await readable.wait()
            return connection.recv(1, socket.MSG_PEEK) != TLS_HANDSHAKE
        except TimeoutError:
            return True
        finally:
            self._loop.remove_reader(connection)

    def _log_refusal(self, peer: Any, error: ssl.SSLError) -> None:
        if self._is_due("refused"):
            logger.warning(
                "event=tls_refused port=%d client=%s:%d reason=%s; further refusals are not logged for %d s",
                self._address[1], *peer[:2], explain_refusal(error), LOG_AGAIN_AFTER_S,
            )  # fmt: skip

    def _is_due(self, problem: str) -> bool:
        """Whether to log it now: the same one, once a minute."""
        now = self._loop.time()
        before = self._logged_at.get(problem)
        if before is not None and now - before < LOG_AGAIN_AFTER_S:
            return False
        self._logged_at[problem] = now
        return True

    def _accept_later(self, error: OSError) -> None:
        """Pause accepting: the listening socket stays readable, so the loop would spin on it."""
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
        if self._is_due("not accepted"):
            logger.warning(
                "cannot accept connections address=%s:%d reason=%s; check ulimit -n and max.connections",
                *self._address, error.strerror or error,
            )  # fmt: skip

    def _accept_again(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)


class ListeningServer:
    """A `TcpListener` where one of asyncio's servers is expected."""

    def __init__(self, listener: TcpListener, sock: socket.socket) -> None:
        self._listener = listener
        self.sockets = (sock,)

    def close(self) -> None:
        self._listener.stop()


class TcpNetwork:
    """Implements `net.wire.network.Network`; with `tls`, every connection is encrypted.

    While a cluster changes to TLS, a listener may also accept plain text (`also_plain`), and others may not accept TLS yet
    (`dials_plain`).
    """

    def __init__(self, tls: TlsContexts | None = None, *, also_plain: bool = False, dials_plain: bool = False) -> None:
        self._tls = tls
        self._also_plain = also_plain
        self._dials_plain = dials_plain

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        loop = asyncio.get_running_loop()
        family, address = await _resolve(loop, host or "0.0.0.0", port)
        sock = socket.create_server(address, family=family, backlog=BACKLOG)  # Sets SO_REUSEADDR.
        try:
            sock.setblocking(False)
            _tune(sock)  # On Linux, accepted sockets inherit these options.
            tls = self._tls
            if tls is None:
                return TcpListener(sock, factory)
            return TcpListener(sock, factory, lambda: tls.server, also_plain=self._also_plain)
        except BaseException:
            sock.close()
            raise

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {}
        if self._tls is not None and not self._dials_plain:
            options = {"ssl": self._tls.client, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S}
        try:
            transport, protocol = await loop.create_connection(factory, host, port, **options)
        except ssl.SSLError as error:
            raise ConnectionError(errno.EPROTO, explain_handshake(error)) from error
        sock = transport.get_extra_info("socket")
        if sock is not None:
            _tune(sock)
        return protocol


class LoginNetwork(TcpNetwork):
    """Every connection that it opens logs in."""

    def __init__(self, credentials: Credentials, tls: TlsContexts | None = None) -> None:
        super().__init__(tls)
        self._credentials = credentials

    def new_login(self) -> ClientMechanism:
        return self._credentials.new_login()

    def refusal(self, error: BarnabasError) -> BarnabasError:
        return error


class BrokerLoginNetwork(LoginNetwork):
    """Brokers go on trying: a refusal ends when both sides know the same password again, and concerns no client whose request a
    broker hands on."""

    def __init__(self, credentials: Credentials, tls: TlsContexts | None = None) -> None:
        super().__init__(credentials, tls)
        self._logged_s = -LOG_AGAIN_AFTER_S

    def refusal(self, error: BarnabasError) -> BarnabasError:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= LOG_AGAIN_AFTER_S:
            self._logged_s = now_s
            logger.warning(
                "event=broker_login_refused reason=%s; all brokers must know the user of "
                "sasl.mechanism.inter.broker.protocol with this password; not logged again for %d s",
                error.message, LOG_AGAIN_AFTER_S,
            )  # fmt: skip
        return NetworkError(f"the other broker refuses the login of this one: {error.message}")


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

"""The network port of the quorum, and its default on the running asyncio loop. Simulation hands in another one."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

ACCEPTS_PER_TURN: Final = 16  # each takes a descriptor before it can be refused; asyncio alone would accept the backlog
BACKLOG: Final = (
    128  # connections that wait for accept; many clients must not fill it between two iterations of the event loop
)
HANDSHAKE_TIMEOUT_S: Final = 10.0  # of TLS: as long as this, a silent connection holds a descriptor

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Listener(Protocol):
    def close(self) -> None: ...


class RaftNetwork(Protocol):
    """`connect` and `listen` work like the loop's create_connection and create_server; `tls` of `listen` returns the context for
    a connection that arrives now, unless it begins in plain text and `also_plain` allows it."""

    async def connect(
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Raises OSError if no process listens there."""

    async def listen(
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        sock: socket.socket | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        also_plain: bool = False,
    ) -> Listener: ...


class LoopNetwork:
    """TCP on the loop that runs."""

    async def connect(
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(protocol_factory, host, port, ssl=tls, server_hostname=server_hostname)

    async def listen(
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        sock: socket.socket | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        also_plain: bool = False,
    ) -> Listener:
        assert not also_plain, "a broker has another network for this"
        loop = asyncio.get_running_loop()
        where = {"host": host, "port": port} if sock is None else {"sock": sock}
        limit = None if tls is None else HANDSHAKE_TIMEOUT_S
        context = None if tls is None else tls()  # for all connections: a broker has another network
        server = await loop.create_server(
            protocol_factory, **where, ssl=context, ssl_handshake_timeout=limit, backlog=ACCEPTS_PER_TURN
        )
        for listening in server.sockets:
            with listening.dup() as same:
                same.listen(BACKLOG)  # asyncio takes one number for both
        return server

"""The network port of the quorum, and its default on the running asyncio loop. Simulation hands in another one."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Listener(Protocol):
    def close(self) -> None: ...


class RaftNetwork(Protocol):
    """`connect` and `listen` work like the loop's create_connection and create_server."""

    async def connect(
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Raises OSError where there is nobody."""

    async def listen(
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        sock: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
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
        tls: ssl.SSLContext | None = None,
    ) -> Listener:
        loop = asyncio.get_running_loop()
        if sock is not None:
            return await loop.create_server(protocol_factory, sock=sock, ssl=tls)
        return await loop.create_server(protocol_factory, host, port, ssl=tls)

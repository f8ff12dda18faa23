"""Requests of Kafka's protocol over the simulated network, as a foreign client sends them: framed, in any version."""

import asyncio
import struct
from collections.abc import Callable
from itertools import count
from typing import Any

from barnabas.log.vocabulary.errors import NetworkError
from barnabas.net.testing.simulation.cluster import CLIENT_PORT
from barnabas.net.testing.simulation.network import NodeNetwork
from barnabas.net.wire.protocol.kafka.apis import SERVED, is_flexible
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of

_SIZE = struct.Struct(">i")


def made(message: str, name: str | None = None, /, **fields: Any) -> Any:
    """A message, or (`name`) one of its structs."""
    return types_of(message)[name or message](**fields)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[bytes]] = {}  # by correlation id
        self.is_lost = False
        self.transport: Any = None
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._received)
            if len(self._received) < _SIZE.size + size:
                return
            frame = bytes(self._received[_SIZE.size : _SIZE.size + size])
            del self._received[: _SIZE.size + size]
            waiting = self.waiting.pop(_SIZE.unpack_from(frame)[0], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        waiting, self.waiting = self.waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(NetworkError("the connection was lost"))


class KafkaWire:
    """One connection to each broker. After a timeout, the next request takes a new one: the old one may still deliver."""

    def __init__(self, network: NodeNetwork) -> None:
        self._network = network
        self._connections: dict[int, _Connection] = {}
        self._numbers = count(1)

    async def ask(self, node_id: int, key: int, version: int, body: Any, *, timeout_s: float) -> Any:
        """Raises NetworkError, TimeoutError."""
        name, number = SERVED[key].name, next(self._numbers)
        chunks: list[Any] = [struct.pack(">hhih", key, version, number, -1)]
        if is_flexible(f"{name}Request", version):
            chunks.append(b"\0")
        encoder(f"{name}Request", version)(body, chunks)
        whole = b"".join(chunks)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected(node_id)
                answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                connection.waiting[number] = answer
                connection.transport.write(_SIZE.pack(len(whole)) + whole)
                frame = await answer
        except TimeoutError:
            self._connections.pop(node_id, None)
            raise
        except OSError as error:
            raise NetworkError(f"node {node_id} cannot be reached: {error}") from error
        read: Callable[..., Any] = decoder(f"{name}Response", version)
        position = _SIZE.size + (1 if is_flexible(f"{name}Response", version) else 0)
        found, _ = read(memoryview(frame), position)
        return found

    async def _connected(self, node_id: int) -> _Connection:
        known = self._connections.get(node_id)
        if known is None or known.is_lost:
            made_now = await self._network.connect(_Connection, f"node-{node_id}", CLIENT_PORT)
            assert isinstance(made_now, _Connection)
            known = self._connections[node_id] = made_now
        return known

    def forget(self) -> None:
        """As a client that dies: what it has sent is on its way."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            if not connection.is_lost:
                connection.transport.close()

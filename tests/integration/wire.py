"""Raw sockets for clients that do not keep to the protocol, and single requests for those that do."""

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import msgpack

from barnabas.net.wire.protocol.msgpack import PREAMBLE, ClientHello, write_hello
from barnabas.net.wire.protocol.requests import ProducePartition, ProduceRequest, Request
from barnabas.net.wire.protocol.responses import ProducePartitionResponse
from barnabas.net.wire.rpc import RpcPool
from barnabas.net.wire.tcp import TcpNetwork

TIMEOUT_S = 20.0
HELLO = PREAMBLE + write_hello(ClientHello(versions=(1,), client_id="stranger"))
SIZE = struct.Struct(">I")


@contextmanager
def connected(address: tuple[str, int], source: str = "127.0.0.1") -> Iterator[socket.socket]:
    """`source`: any address of 127/8, so that a broker can tell one stranger from another."""
    with socket.create_connection(address, timeout=TIMEOUT_S, source_address=(source, 0)) as sock:
        yield sock


@contextmanager
def greeted(address: tuple[str, int], source: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A connection that has shaken hands, and may go wrong from here on."""
    with connected(address, source) as sock:
        sock.sendall(HELLO)
        read_frame(sock)
        yield sock


def read_frame(sock: socket.socket) -> bytes:
    (size,) = SIZE.unpack(_read(sock, SIZE.size))
    return _read(sock, size)


def _read(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = sock.recv(size - len(found))
        if not more:
            raise ConnectionError(f"closed after {len(found)} of {size} bytes")
        found += more
    return found


def until_closed(sock: socket.socket) -> bytes:
    """What the other side says until it closes; a reset is a close too. Raises TimeoutError when it stays open."""
    found = b""
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline_s:
            more = sock.recv(65_536)
            if not more:
                return found
            found += more
    except ConnectionError:
        return found
    raise TimeoutError("the connection was not closed")


def frame(envelope: bytes) -> bytes:
    """A request's frame around an envelope of any bytes."""
    return SIZE.pack(SIZE.size + len(envelope)) + SIZE.pack(len(envelope)) + envelope


def request(correlation_id: int, api: int, body: Any, *, version: int = 1) -> bytes:
    packed: bytes = msgpack.packb([correlation_id, api, version, body])
    return frame(packed)


def answer(sock: socket.socket) -> list[Any]:
    """The envelope of the next answer: [correlation id, api, body]."""
    read = read_frame(sock)
    (size,) = SIZE.unpack_from(read)
    found: list[Any] = msgpack.unpackb(read[SIZE.size : SIZE.size + size], raw=False)
    return found


async def call(address: tuple[str, int], wanted: Request) -> Any:
    """One well-formed request, as brokers and the SDK send it; an error is raised."""
    pool = RpcPool(TcpNetwork(), client_id="stranger", random=Random(1))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await (await pool.get(*address)).call(wanted, timeout_ms=10_000)
    finally:
        await pool.close()


async def produce(
    address: tuple[str, int], topic: str, records: bytes | bytearray, *, partition: int = 0, acks: int = -1
) -> ProducePartitionResponse:
    """The answer of the broker about one partition, as it came."""
    item = ProducePartition(topic=topic, partition=partition, records=records)
    response = await call(address, ProduceRequest(acks=acks, timeout_ms=5_000, partitions=(item,)))
    (found,) = response.partitions
    assert isinstance(found, ProducePartitionResponse)
    return found

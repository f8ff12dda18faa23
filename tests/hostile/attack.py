"""What an attack is: something that a hostile or careless client does to brokers, and that honest clients must survive."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum

Address = tuple[str, int]
_SIZE = struct.Struct(">i")
_LARGEST_ANSWER_BYTES = 100 << 20
# Kafka's ApiVersions, version 0, correlation id 7, client id "stranger".
API_VERSIONS = struct.pack(">ihhih", 18, 18, 0, 7, 8) + b"stranger"


class Port(Enum):
    """Which port of every broker an attack needs. Its value is the setting that names the port."""

    CLIENT = "advertised"
    QUORUM = "quorum.listener"
    ADMIN = "admin.listener"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`run(brokers)` is a context: the attack is under way inside of it and ends with it. It needs no secret.

    `run` raises AssertionError where a broker did what it should have refused. Broker n is `brokers[n]`.
    """

    name: str
    what: str
    run: Callable[[Sequence[Address]], AbstractAsyncContextManager[None]]
    port: Port = Port.CLIENT
    descriptors: int | None = None  # how many files each broker may open; None: as many as the machine allows
    hangs_disk: bool = False  # no fsync of the controller's broker returns meanwhile


async def api_versions(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection over which one ApiVersions request was answered. Raises OSError where the broker refuses it."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        await ping(reader, writer)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await ask(reader, writer, API_VERSIONS)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> int:
    """Send a whole frame and read the next answer. Returns its size; raises OSError where the broker hangs up."""
    writer.write(frame)
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        assert 0 < size <= _LARGEST_ANSWER_BYTES, f"an answer of {size} bytes"
        left = size
        while left:
            read = await reader.read(min(left, 1 << 16))
            if not read:
                raise ConnectionResetError("the broker closed the connection within an answer")
            left -= len(read)
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the broker closed the connection") from error
    return int(size)

"""What an attack is: something that a hostile or careless client does to brokers, and that honest clients must survive."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

Address = tuple[str, int]
_SIZE = struct.Struct(">i")
# Kafka's ApiVersions, version 0, correlation id 7, client id "stranger".
API_VERSIONS = struct.pack(">ihhih", 18, 18, 0, 7, 8) + b"stranger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`run(brokers)` is a context: the attack is under way inside of it and ends with it. It needs no secret."""

    name: str
    what: str
    run: Callable[[Sequence[Address]], AbstractAsyncContextManager[None]]


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
    writer.write(API_VERSIONS)
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the broker closed the connection") from error

"""Bytes that are almost requests, and names that would forge lines of a broker's log."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

from fuzz.kafka_targets import any_version, kafka_frame
from fuzz.mutations import mutated
from fuzz.wire_targets import ODD_REQUESTS, request_frame
from integration.kafka_wire import METADATA, asked, join_group, metadata

from barnabas.net.wire.protocol.msgpack import PREAMBLE, ClientHello, write_hello

from .attack import Address, Attack

CONNECTIONS = 400  # to each broker, one after the other, some at a time
AT_A_TIME = 20
FORGED = "FORGED LINE"
_EVIL = f"x\n{FORGED}: all data lost\x1b[31m"
_SIZE = struct.Struct(">i")
_ANSWER_S = 2.0
_JOIN_GROUP = 11


def garbage(rng: Random) -> bytes:
    """What one connection sends."""
    match rng.randrange(4):
        case 0:
            return rng.randbytes(rng.randrange(1, 5_000))
        case 1:
            hello = PREAMBLE + write_hello(ClientHello(versions=(1,), client_id="stranger"))
            return hello + b"".join(mutated(rng, request_frame(rng, ODD_REQUESTS)) for _ in range(5))
        case 2:
            body = mutated(rng, kafka_frame(rng, *any_version(rng)))
            return _SIZE.pack(len(body)) + body
        case _:
            body = kafka_frame(rng, METADATA, 8)
            return _SIZE.pack(len(body)) + body[: rng.randrange(len(body))]  # truncated


async def _throw(address: Address, data: bytes) -> None:
    """Send, and wait for what the broker says to it or for its end."""
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(data)
            if writer.can_write_eof():
                writer.write_eof()
            async with asyncio.timeout(_ANSWER_S):
                await reader.read()
        finally:
            writer.transport.abort()


async def _all(brokers: Sequence[Address], data: list[bytes]) -> None:
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(address: Address, item: bytes) -> None:
        async with turns:
            await _throw(address, item)

    await asyncio.gather(*(one(address, item) for address in brokers for item in data))


@asynccontextmanager
async def damaged_frames(brokers: Sequence[Address]) -> AsyncIterator[None]:
    rng = Random(1)
    await _all(brokers, [garbage(rng) for _ in range(CONNECTIONS)])
    yield


@asynccontextmanager
async def forged_lines(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """As client id, as name of a topic, and as group id: with a line's end and an order to the terminal."""
    evil = _EVIL.encode()
    hello = PREAMBLE + write_hello(ClientHello(versions=(1,), client_id=_EVIL))
    await _all(
        brokers,
        [
            asked(METADATA, 8, metadata(_EVIL), correlation_id=1, client_id=evil),
            asked(_JOIN_GROUP, 3, join_group(_EVIL), correlation_id=1, client_id=evil),
            asked(METADATA, 8, metadata("t"), correlation_id=1, client_id=evil) + b"\x7f\xff\xff\xff",
            hello + _SIZE.pack(2**31 - 1),
            hello + b"\0\0\0\x08\0\0\0\x04\xc1\xc1\xc1\xc1",
        ],
    )
    yield


ATTACKS = (
    Attack(
        name="garbage",
        what=f"{CONNECTIONS} connections to each broker with random, damaged and truncated frames",
        run=damaged_frames,
    ),
    Attack(
        name="forged lines",
        what="client ids, topics and groups with the end of a line and orders to a terminal",
        run=forged_lines,
    ),
)

"""Bytes from strangers: whatever comes, the codec answers with BarnabasError and the server lives in bounded memory."""

import asyncio
import resource
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.net.wire_world import (
    World,
    fetch_request,
    fetch_response,
    produce_request,
    produce_response,
    raw_client,
    request_bytes,
    run_in_simulation,
)

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.message import MAX_ARRAY_LENGTH
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.server.server import Server
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.codec import DecodedRequest
from barnabas.net.wire.protocol.framing import FrameReader
from barnabas.net.wire.protocol.msgpack import PREAMBLE, ClientHello, MsgpackCodec, ServerHello, read_hello, write_hello
from barnabas.net.wire.protocol.requests import FetchRequest, ProduceRequest, Request
from barnabas.net.wire.rpc import RpcConnection

CODEC = MsgpackCodec()
SEEDS = [
    request_bytes(1, produce_request(b"some records")),
    request_bytes(2, fetch_request(7)),
    b"".join(
        bytes(chunk)  # type: ignore[arg-type]
        for chunk in CODEC.encode_response(DecodedRequest(3, 1, 1, BarnabasError()), fetch_response(b"ab", b"cde"))
    ),
    b"".join(
        bytes(chunk)  # type: ignore[arg-type]
        for chunk in CODEC.encode_response(DecodedRequest(3, 0, 1, BarnabasError()), produce_response(2**40))
    ),
]


def decode_anyhow(frame: memoryview) -> None:
    """Everything that reads bytes from the wire; nothing but BarnabasError may come out."""
    try:
        decoded = CODEC.decode_request(frame)
        assert isinstance(decoded.payload, Request | BarnabasError)
    except BarnabasError:
        pass
    request_types: tuple[Any, ...] = (ProduceRequest, FetchRequest)
    for request_type in request_types:
        try:
            CODEC.response_body(request_type, CODEC.decode_response(frame))
        except BarnabasError:
            pass
    hello_types: tuple[Any, ...] = (ClientHello, ServerHello)
    for hello_type in hello_types:
        try:
            read_hello(hello_type, frame)
        except BarnabasError:
            pass


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    decode_anyhow(memoryview(bytearray(data)))
    decode_anyhow(memoryview(bytearray(len(data).to_bytes(4, "big") + data)))


def mutated(random: Random, seed: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(random.randint(1, 6)):
        position = random.randrange(len(data))
        match random.randrange(5):
            case 0:
                data[position] = random.randrange(256)
            case 1:
                data[position] ^= 1 << random.randrange(8)
            case 2:
                del data[position : position + random.randint(1, 8)]
                data = data or bytearray(b"\0")
            case 3:
                data[position:position] = random.randbytes(random.randint(1, 8))
            case _:
                data[position] = random.choice((0xDD, 0xDF, 0xC6, 0xDB, 0xC1, 0xC9, 0xFF, 0x80, 0xC0))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_frames(seed: int) -> None:
    random = Random(seed)
    for _ in range(4000):
        decode_anyhow(memoryview(bytearray(mutated(random, SEEDS[seed])))[4:])


def test_mutated_streams_never_break_the_server() -> None:
    async def body(world: World) -> None:
        def answer(request: Any, context: Any, reply: Any) -> None:
            assert isinstance(request, ProduceRequest | FetchRequest)
            reply(produce_response(0) if isinstance(request, ProduceRequest) else fetch_response(b"x"))

        server = Server(world.server, Dispatcher({ApiKey.PRODUCE: answer, ApiKey.FETCH: answer}))
        await server.start(world.host, 0)
        random = Random(11)
        for number in range(300):
            client = await raw_client(world, server.address, greet=number % 3 > 0)
            if number % 3 == 0:
                hello = write_hello(ClientHello(versions=(1,), client_id="x"))
                client.transport.write(mutated(random, PREAMBLE + hello + SEEDS[0]))
            else:
                client.transport.write(SEEDS[1] + mutated(random, SEEDS[0] + SEEDS[1] + SEEDS[0]))
            await asyncio.sleep(0.01)
            client.transport.abort()
        connection = await RpcConnection.open(world.client, *server.address, client_id="c")
        assert await connection.call(produce_request(), timeout_ms=1000) == produce_response(0)
        await connection.close()
        await asyncio.sleep(1)
        assert server.connection_count == 0
        await server.close()

    run_in_simulation(body)


HOSTILE = {
    "long lists within each other": (b"\xdd" + MAX_ARRAY_LENGTH.to_bytes(4, "big")) * 1000 + b"\xc0" * 300_000,
    "a few long lists": (b"\xdd" + MAX_ARRAY_LENGTH.to_bytes(4, "big")) * 60 + b"\xc0" * 300_000,
    "short lists within each other": b"\x91" * 8_000_000,
    "many long lists one after the other": b"\xdd\x00\x01\x00\x00" + b"\xdc\x00\x01\xc0" * 65_536,
    "maps": (b"\xdf" + MAX_ARRAY_LENGTH.to_bytes(4, "big")) * 1000,
    "an announced gigabyte": b"\xc6\x40\x00\x00\x00" + b"x" * 100_000,
    "items without end": b"\xdd\x00\x02\x00\x00" + b"\xdc" * 100 + b"\x00" * 15_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_is_bounded(name: str) -> None:
    envelope = HOSTILE[name]
    frame = memoryview(bytearray(len(envelope).to_bytes(4, "big") + envelope))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decode_anyhow(frame)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 * 1024


def test_thirty_announced_frames_of_90_mib_cost_nothing() -> None:
    readers = [FrameReader() for _ in range(30)]
    for reader in readers:
        for data in ((90 << 20).to_bytes(4, "big"), b"x" * 30_000):
            reader.get_buffer()[: len(data)] = data
            reader.received(len(data))
            assert reader.next_frame() is None
        reader.get_buffer()
    assert sum(reader.capacity for reader in readers) < 4 << 20

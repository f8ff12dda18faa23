"""The server and strangers: bytes that are no request, other codecs and versions, too many and silent connections."""

import asyncio
import logging
import struct
from collections.abc import Callable

import pytest
from unit.net.wire_world import (
    Body,
    Parked,
    World,
    connect,
    count_up,
    fetch_request,
    produce_request,
    produce_response,
    raw_client,
    request_bytes,
    run_in_simulation,
    serve,
)

from barnabas.log.vocabulary.errors import (
    ErrorCode,
    NetworkError,
)
from barnabas.net.base.settings.server_limits import ServerLimits
from barnabas.net.handlers.kafka.versions import api_versions
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.codec import Chunk, DecodedRequest
from barnabas.net.wire.protocol.kafka.apis import KafkaApi, KafkaResponse
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.kafka.compiler import decoder
from barnabas.net.wire.protocol.msgpack import PREAMBLE
from barnabas.net.wire.protocol.responses import ProduceResponse, Response

Run = Callable[[Body], None]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00\x00\x00\x00",
        b"\x80\x00\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff\x00\x12\x00\x00",
        b"\x00\x00\x00\x20\x7f\xff\x00\x00\x00\x00\x00\x01",
        PREAMBLE + b"\x7f\xff\xff\xff",
        PREAMBLE + b"\x00\x00\x00\x02\xff\xff",
        PREAMBLE + b"\x00\x01\x00\x00" + b"\x00" * 65536,
    ],
)
def test_strangers_are_closed_without_an_answer(run: Run, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: count_up()})
        for _ in range(3):
            client = await raw_client(world, server.address, greet=False)
            client.transport.write(data)
            await client.closed
            assert client.received == b""
        connection = await connect(world, server)
        assert await connection.call(produce_request(), timeout_ms=9000) == produce_response(0)
        await connection.close()
        await server.close()

    run(body)
    assert caplog.text.count("connection refused") == 1


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**32 - 1, 0, 3])
def test_an_impossible_frame_ends_the_connection_at_once(run: Run, size: int) -> None:
    async def body(world: World) -> None:
        server = await serve(world, {})
        client = await raw_client(world, server.address)
        client.transport.write(size.to_bytes(4, "big") + b"\x00\x00\x00\x01")
        await client.closed
        assert client.received == b""
        await server.close()

    run(body)


def test_a_server_without_kafka_s_codec_refuses_its_clients_clearly(run: Run) -> None:
    async def body(world: World) -> None:
        server = await serve(world, {})
        client = await raw_client(world, server.address, greet=False)
        api_versions = b"\x00\x12\x00\x03" + (77).to_bytes(4, "big") + b"\x00\x07rdkafka\x00"
        client.transport.write(len(api_versions).to_bytes(4, "big") + api_versions)
        frame = await client.frame()
        assert frame == (77).to_bytes(4, "big") + (35).to_bytes(2, "big") + b"\x00\x00\x00\x00"
        await client.closed
        metadata = await raw_client(world, server.address, greet=False)
        metadata.transport.write(b"\x00\x00\x00\x10\x00\x03\x00\x01\x00\x00\x00\x05\x00\x01x\x00\x00\x00\x00\x00")
        await metadata.closed
        assert metadata.received == b""
        assert server.metrics.strangers == 2
        await server.close()

    run(body)


@pytest.mark.parametrize("version", [5, 31, 32, 99, 0x7FFF])
def test_a_version_of_api_versions_that_nobody_knows_yet_is_answered_and_the_connection_lives(
    run: Run, version: int
) -> None:
    """Also where it is the first that is heard of the client (KIP-511)."""

    async def body(world: World) -> None:
        server = await serve(world, {KafkaApi.API_VERSIONS: api_versions(lambda: 9)}, kafka_codec=KafkaCodec())
        client = await raw_client(world, server.address, greet=False)
        request = struct.pack(">hhi", 18, version, 77) + b"\x00\x01x\x00\x01\x01\x00"
        client.transport.write(len(request).to_bytes(4, "big") + request)
        frame = await client.frame()
        assert struct.unpack_from(">ih", frame) == (77, ErrorCode.UNSUPPORTED_VERSION)
        answer, end = decoder("ApiVersionsResponse", 0)(memoryview(frame), 4)
        assert end == len(frame) and 18 in [item.api_key for item in answer.api_keys]
        known = struct.pack(">hhi", 18, 0, 78) + b"\x00\x01x"
        client.transport.write(len(known).to_bytes(4, "big") + known)
        assert struct.unpack_from(">ih", await client.frame()) == (78, ErrorCode.NONE)
        client.transport.close()
        await server.close()

    run(body)


class OrderedCodec:
    """Stands for Kafka's codec: any frame is a produce request, answers are the offset, and order is strict."""

    ordered_replies = True

    def decode_request(self, frame: memoryview) -> DecodedRequest:
        return DecodedRequest(int.from_bytes(frame[4:8], "big"), 0, 0, produce_request(bytes(frame)))

    def encode_response(
        self, request: DecodedRequest, response: Response | KafkaResponse[object], throttle_ms: int = 0
    ) -> list[Chunk]:
        assert isinstance(response, ProduceResponse)
        return [(4).to_bytes(4, "big") + request.correlation_id.to_bytes(4, "big")]


def test_another_codec_plugs_in_and_may_ask_for_strict_order(run: Run) -> None:
    async def body(world: World) -> None:
        parked = Parked()
        server = await serve(world, {ApiKey.PRODUCE: parked}, kafka_codec=OrderedCodec())
        client = await raw_client(world, server.address, greet=False)
        for number in range(3):
            client.transport.write(b"\x00\x00\x00\x08\x00\x00\x00\x09" + number.to_bytes(4, "big"))
        await parked.until(lambda: len(parked.calls) == 3)
        for index in (2, 1, 0):
            parked.calls[index][2](produce_response(index))
        frames = [await client.frame() for _ in range(3)]
        assert [int.from_bytes(frame, "big") for frame in frames] == [0, 1, 2]
        client.transport.close()
        await server.close()

    run(body)


def test_more_connections_than_allowed_are_closed(run: Run) -> None:
    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: count_up()}, limits=ServerLimits(max_connections=2))
        first, second = await connect(world, server), await connect(world, server)
        with pytest.raises(NetworkError):
            await connect(world, server)
        assert server.metrics.connections_refused == 1
        assert await first.call(produce_request(), timeout_ms=9000)
        await second.close()
        third = await connect(world, server)
        assert await third.call(produce_request(), timeout_ms=9000)
        await first.close()
        await third.close()
        await server.close()

    run(body)


def test_silent_and_idle_connections_are_closed_in_simulated_time() -> None:
    async def body(world: World) -> None:
        parked = Parked()
        limits = ServerLimits(handshake_timeout_ms=10_000, idle_timeout_ms=60_000)
        server = await serve(world, {ApiKey.FETCH: parked}, limits=limits)
        loop = asyncio.get_running_loop()
        silent = await raw_client(world, server.address, greet=False)
        dripping = await raw_client(world, server.address, greet=False)
        idle = await raw_client(world, server.address)
        polling = await raw_client(world, server.address)
        polling.transport.write(request_bytes(1, fetch_request()))
        for byte in b"BNB1\0\0\1":
            dripping.transport.write(bytes([byte]))
            await asyncio.sleep(1)
        await silent.closed
        await dripping.closed
        assert 9 < loop.time() < 13
        await idle.closed
        assert 59 < loop.time() < 64
        await asyncio.sleep(300)
        assert not polling.closed.done() and server.connection_count == 1
        [connection] = server._connections
        assert connection.intake.reader.own_bytes == server.memory.used_bytes == 0
        polling.transport.close()
        await server.close()

    run_in_simulation(body)


def test_logging_about_strangers_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await serve(world, {})
        with caplog.at_level(logging.WARNING):
            for number in range(2000):
                server.log_once(f"peer {number}", "stranger")
            assert len(server._logged_at) <= 256
        await server.close()

    run_in_simulation(body)

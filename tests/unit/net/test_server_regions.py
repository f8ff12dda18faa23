"""Answers that lie in files: sendfile, pread, and what happens when the client is slow or goes, or the file shrinks."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.net.wire_world import (
    Body,
    World,
    connect,
    count_up,
    fetch_request,
    fetch_response,
    produce_request,
    raw_client,
    request_bytes,
    run_real,
    serve,
)

from barnabas.log.vocabulary.errors import (
    DiskFailedError,
    NetworkError,
)
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.msgpack import MsgpackCodec
from barnabas.net.wire.protocol.requests import FetchRequest

Run = Callable[[Body], None]


class ReadRegion:
    """A file region without a file, as the simulation has it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.size_bytes = len(data)

    def fileno(self) -> int | None:
        return None

    def read(self) -> bytes:
        return self.data


class FileOnDisk:
    def __init__(self, file: Any, position: int, size_bytes: int) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes

    def fileno(self) -> int | None:
        descriptor: int = self.file.fileno()
        return descriptor

    def read(self) -> bytes:
        return os.pread(self.file.fileno(), self.size_bytes, self.position)


def test_regions_without_a_file_are_read(run: Run) -> None:
    data = os.urandom(1 << 20)

    def fetch(request: FetchRequest, context: RequestContext, reply: Any) -> None:
        reply(fetch_response(ReadRegion(data), b"small", ReadRegion(b"s")))

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.FETCH: fetch})
        connection = await connect(world, server)
        for _ in range(3):
            assert await connection.call(fetch_request(), timeout_ms=9000) == fetch_response(data, b"small", b"s")
        await connection.close()
        await server.close()

    run(body)


@pytest.fixture
def segment(tmp_path: Path) -> Any:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(8 << 20))
    with path.open("rb") as file:
        yield file


def test_large_regions_reach_a_client_that_reads_slowly(segment: Any) -> None:
    """Mixed with small answers, more than the socket takes at once: order and bytes must be right."""
    whole = os.pread(segment.fileno(), 8 << 20, 0)
    asked = 0

    def fetch(request: FetchRequest, context: RequestContext, reply: Any) -> None:
        nonlocal asked
        position = request.partitions[0].fetch_offset
        size = request.partitions[0].max_bytes
        asked += 1
        reply(fetch_response(FileOnDisk(segment, position, size), b"tail", FileOnDisk(segment, 5, 300)))

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.FETCH: fetch, ApiKey.PRODUCE: count_up()})
        client = await raw_client(world, server.address)
        sock: socket.socket = client.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        client.transport.pause_reading()
        wanted: list[bytes | None] = []
        for number in range(1, 61):
            size = (1 << 20, 300, 256 << 10, 100_000)[number % 4]
            position = number * 10_001
            if number % 5:
                client.transport.write(request_bytes(number, fetch_request(position, size)))
                wanted.append(whole[position : position + size] + b"tail" + whole[5:305])
            else:
                client.transport.write(request_bytes(number, produce_request()))
                wanted.append(None)
        probe = await connect(world, server)
        await probe.call(produce_request(), timeout_ms=9000)
        client.transport.resume_reading()
        for number, records in enumerate(wanted, 1):
            frame = await client.frame()
            assert MsgpackCodec().decode_response(memoryview(frame)).correlation_id == number
            assert records is None or frame.endswith(records)
        client.transport.close()
        await probe.close()
        await server.close()
        assert asked == 48

    run_real(body)


def test_a_client_that_goes_while_a_region_is_being_sent(segment: Any) -> None:
    def fetch(request: FetchRequest, context: RequestContext, reply: Any) -> None:
        reply(fetch_response(FileOnDisk(segment, 0, 8 << 20)))

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.FETCH: fetch})
        client = await raw_client(world, server.address)
        client.transport.pause_reading()
        client.transport.write(b"".join(request_bytes(number, fetch_request()) for number in range(1, 9)))
        probe = await connect(world, server)
        await probe.call(fetch_request(), timeout_ms=9000)
        client.transport.abort()
        await client.closed
        while server.connection_count > 1:
            await probe.call(fetch_request(), timeout_ms=9000)
        await probe.close()
        await server.close()

    run_real(body)


class UnreadableRegion(ReadRegion):
    """The disk refuses the first read, and takes the next one."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads = 0

    def read(self) -> bytes:
        self.reads += 1
        if self.reads == 1:
            raise DiskFailedError("cannot read the segment: Input/output error")
        return self.data


def test_a_region_that_cannot_be_read_ends_the_connection(run: Run) -> None:
    """The head of the answer was lost, the connection stayed, and the client was sent the rest as if it were whole."""
    regions = [UnreadableRegion(bytes(100)), ReadRegion(bytes(100))]

    def fetch(request: FetchRequest, context: RequestContext, reply: Any) -> None:
        reply(fetch_response(regions.pop(0)))

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.FETCH: fetch})
        connection = await connect(world, server)
        with pytest.raises(NetworkError, match=r"clos|lost|reset"):
            await connection.call(fetch_request(max_bytes=100), timeout_ms=9000)
        again = await connect(world, server)
        answer = await again.call(fetch_request(max_bytes=100), timeout_ms=9000)
        assert answer is not None
        await server.close()

    run(body)


def test_a_file_that_became_shorter_ends_the_connection(segment: Any, tmp_path: Path) -> None:
    def fetch(request: FetchRequest, context: RequestContext, reply: Any) -> None:
        reply(fetch_response(FileOnDisk(segment, (8 << 20) - 100_000, request.max_bytes)))

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.FETCH: fetch})
        for size in (1 << 20, 150_000):  # By sendfile and by pread.
            connection = await connect(world, server)
            with pytest.raises(NetworkError):
                await connection.call(fetch_request(max_bytes=size), timeout_ms=9000)
        await server.close()

    run_real(body)

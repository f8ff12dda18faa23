"""Speed of the wire alone: small requests one by one and five at a time, 64 KB produce, 1 MB and 64 KB fetch.

Run: python tests/performance/measure_wire.py [--seconds 1.5] [--uvloop]. The server runs in a process of its own, with
handlers that do nothing; `--one-core` pins both to one core. The client of produce and fetch uses blocking sockets, as
in research/hot_path_prototype, so that it is the server that is measured; `rpc` lines measure RpcConnection.
"""

import argparse
import asyncio
import gc
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from typing import Any

from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.server.server import Server
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.msgpack import PREAMBLE, ClientHello, MsgpackCodec, write_hello
from barnabas.net.wire.protocol.requests import FetchPartition, FetchRequest, ProducePartition, ProduceRequest
from barnabas.net.wire.protocol.responses import (
    FetchPartitionResponse,
    FetchResponse,
    ProducePartitionResponse,
    ProduceResponse,
)
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

FILE_BYTES = 256 << 20


class Region:
    __slots__ = ("descriptor", "position", "size_bytes")

    def __init__(self, descriptor: int, position: int, size_bytes: int) -> None:
        self.descriptor, self.position, self.size_bytes = descriptor, position, size_bytes

    def fileno(self) -> int | None:
        return self.descriptor

    def read(self) -> bytes:
        return os.pread(self.descriptor, self.size_bytes, self.position)


def tune() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def run_loop(main: Any, use_uvloop: bool) -> None:
    if use_uvloop:
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


def serve(pipe: Any, path: str, use_uvloop: bool) -> None:
    descriptor = os.open(path, os.O_RDONLY)

    def produce(request: ProduceRequest, context: Any, reply: Any) -> None:
        [item] = request.partitions
        reply(
            ProduceResponse(
                partitions=(ProducePartitionResponse(topic=item.topic, partition=item.partition, base_offset=1),)
            )
        )

    def fetch(request: FetchRequest, context: Any, reply: Any) -> None:
        [item] = request.partitions
        region = Region(descriptor, item.fetch_offset, item.max_bytes)
        reply(
            FetchResponse(
                partitions=(FetchPartitionResponse(topic=item.topic, partition=item.partition, records=region),)
            )
        )

    async def main() -> None:
        server = Server(TcpNetwork(), Dispatcher({ApiKey.PRODUCE: produce, ApiKey.FETCH: fetch}))
        pipe.send(await server.start("127.0.0.1", 0))
        tune()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)
        await ended.wait()

    run_loop(main(), use_uvloop)


def produce_frame(size: int) -> bytes:
    request = ProduceRequest(
        acks=1, timeout_ms=1000, partitions=(ProducePartition(topic="orders", partition=0, records=bytes(size)),)
    )
    return b"".join(MsgpackCodec().encode_request(1, request))  # type: ignore[arg-type]


def fetch_frame(position: int, size: int) -> bytes:
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=size,
        partitions=(FetchPartition(topic="orders", partition=0, fetch_offset=position, max_bytes=size),),
    )
    return b"".join(MsgpackCodec().encode_request(1, request))  # type: ignore[arg-type]


class Client:
    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.view = memoryview(bytearray(4 << 20))
        self.sock.sendall(PREAMBLE + write_hello(ClientHello(versions=(1,), client_id="measure")))
        self.read_frame()

    def exactly(self, size: int, at: int = 0) -> None:
        got = 0
        while got < size:
            count = self.sock.recv_into(self.view[at + got : at + size])
            if not count:
                sys.exit("the server closed the connection")
            got += count

    def read_frame(self) -> int:
        self.exactly(4)
        size = int.from_bytes(self.view[:4], "big")
        self.exactly(size)
        return size

    def pump(self, frames: list[bytes], depth: int, seconds: float) -> tuple[int, float, int]:
        """Keep `depth` requests in flight. Return requests, seconds and bytes received."""
        sent = received = got_bytes = 0
        buffered = 0
        started = time.perf_counter()
        ends = started + seconds
        for _ in range(depth):
            self.sock.sendall(frames[sent % len(frames)])
            sent += 1
        while received < sent:
            if len(frames) > 1:  # Fetch: answers are large, take them one by one.
                got_bytes += self.read_frame()
                count = 1
            else:
                buffered, count = self.count_answers(buffered)
            received += count
            if time.perf_counter() < ends and count:
                self.send_more([frames[(sent + index) % len(frames)] for index in range(count)])
                sent += count
        return received, time.perf_counter() - started, got_bytes

    def send_more(self, frames: list[bytes]) -> None:
        if len(frames[0]) > 8192:
            for frame in frames:
                self.sock.sendall(frame)
        else:
            self.sock.sendall(b"".join(frames))

    def count_answers(self, buffered: int) -> tuple[int, int]:
        """Receive once. Return how many bytes of a cut answer are kept, and how many whole answers came."""
        buffered += self.sock.recv_into(self.view[buffered:])
        position = count = 0
        while buffered - position >= 4:
            size = 4 + int.from_bytes(self.view[position : position + 4], "big")
            if buffered - position < size:
                break
            position += size
            count += 1
        self.view[: buffered - position] = self.view[position:buffered]
        return buffered - position, count


def latencies(client: Client, frame: bytes, seconds: float) -> list[float]:
    found = []
    ends = time.perf_counter() + seconds
    while (before := time.perf_counter()) < ends:
        client.sock.sendall(frame)
        client.read_frame()
        found.append(time.perf_counter() - before)
    return sorted(found)


async def measure_rpc(address: tuple[str, int], seconds: float) -> None:
    connection = await RpcConnection.open(TcpNetwork(), *address, client_id="measure")

    def request(size: int) -> ProduceRequest:
        return ProduceRequest(
            acks=1, timeout_ms=1000, partitions=(ProducePartition(topic="orders", partition=0, records=bytes(size)),)
        )

    tune()
    small, large = request(100), request(65536)
    found = []
    ends = time.perf_counter() + seconds
    while (before := time.perf_counter()) < ends:
        await connection.send(small, timeout_ms=30_000)
        found.append(time.perf_counter() - before)
    found.sort()
    print(f"rpc   100 B   depth 1  p50 {found[len(found) // 2] * 1e6:6.1f} us")
    for name, one, depth in (("100 B", small, 5), ("100 B", small, 100), ("64 KB", large, 5)):
        count = 0
        started = time.perf_counter()
        ends = started + seconds
        futures = [connection.send(one, timeout_ms=30_000) for _ in range(depth)]
        while time.perf_counter() < ends:
            await futures.pop(0)
            count += 1
            futures.append(connection.send(one, timeout_ms=30_000))
        for future in futures:
            await future
        elapsed = time.perf_counter() - started
        rate = count * len(one.partitions[0].records) / elapsed / 1e6
        print(f"rpc   {name:7} depth {depth:<3} {count / elapsed:9.0f} requests/s {rate:7.0f} MB/s")
    for size in (1 << 20, 65536):
        got = position = 0
        started = time.perf_counter()
        ends = started + seconds
        while time.perf_counter() < ends:
            wanted = FetchPartition(topic="orders", partition=0, fetch_offset=position, max_bytes=size)
            position = (position + size) % (FILE_BYTES - size)
            fetch = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=size, partitions=(wanted,))
            response: Any = await connection.send(fetch, timeout_ms=30_000)
            got += len(response.partitions[0].records)
        print(f"rpc   fetch {size >> 10} KB depth 1 {got / (time.perf_counter() - started) / 1e6:7.0f} MB/s")
    await connection.close()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=1.5)
    arguments.add_argument("--uvloop", action="store_true")
    arguments.add_argument("--one-core", action="store_true")
    options = arguments.parse_args()
    if options.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(b"x" * (1 << 20))
        file.flush()
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(
            target=serve, args=(theirs, file.name, options.uvloop), daemon=True
        )
        process.start()
        address = ours.recv()
        tune()
        try:
            measure(address, options.seconds)
            run_loop(measure_rpc(address, options.seconds), options.uvloop)
        finally:
            ours.send("end")
            process.join()


def measure(address: tuple[str, int], seconds: float) -> None:
    client = Client(address)
    small = produce_frame(100)
    found = latencies(client, small, seconds)
    print(
        f"plain 100 B   depth 1  p50 {found[len(found) // 2] * 1e6:6.1f} us  p99 {found[-len(found) // 100] * 1e6:.0f}"
    )
    for name, size, depth in (("100 B", 100, 5), ("100 B", 100, 50), ("16 KB", 1 << 14, 5), ("64 KB", 1 << 16, 5),
                              ("1 MB", 1 << 20, 5)):  # fmt: skip
        count, elapsed, _ = client.pump([produce_frame(size)], depth, seconds)
        rate = count * size / elapsed / 1e6
        print(f"plain {name:7} depth {depth:<3} {count / elapsed:9.0f} requests/s {rate:7.0f} MB/s")
    for name, size in (("1 MB", 1 << 20), ("64 KB", 1 << 16)):
        frames = [fetch_frame(position, size) for position in range(0, FILE_BYTES - size, size)]
        _, elapsed, got = client.pump(frames, 2, seconds)
        print(f"plain fetch {name:6} depth 2 {got / elapsed / 1e6:7.0f} MB/s")


if __name__ == "__main__":
    main()

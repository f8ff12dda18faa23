"""The limits of the machine itself, which bound every figure of Barnabas. `python machine.py ROLE DIR`."""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from measure import Metrics, percentiles

CHUNK_BYTES = 1 << 20
STREAM_SECONDS = 1.0
WRITTEN_BYTES = 1 << 30
SYNCED_BYTES = 64 * 1024
SYNCS = 500
ECHOES = 5_000


def tcp_stream(_: Path) -> Metrics:
    """One loopback connection, between two processes, in writes of 1 MB."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if os.fork() == 0:
            _send_stream(server.getsockname()[1])
        connection, _address = server.accept()
        buffer = bytearray(CHUNK_BYTES)
        received = connection.recv_into(buffer)
        began = time.perf_counter()
        while count := connection.recv_into(buffer):
            received += count
        seconds = time.perf_counter() - began
        os.wait()
    return {"MB/s": received / seconds / 1e6}


def _send_stream(port: int) -> None:
    chunk = bytes(CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        deadline = time.perf_counter() + STREAM_SECONDS
        while time.perf_counter() < deadline:
            connection.sendall(chunk)
    os._exit(0)


def tcp_echo(_: Path) -> Metrics:
    """100 bytes there and back between two processes that wait for each other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if os.fork() == 0:
            connection = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(100):
                connection.sendall(data)
            os._exit(0)
        connection, _address = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        taken = []
        for _number in range(ECHOES):
            began = time.perf_counter()
            connection.sendall(bytes(100))
            connection.recv(100)
            taken.append(time.perf_counter() - began)
        connection.close()
        os.wait()
    return percentiles(taken)


def write_sequentially(folder: Path) -> Metrics:
    """Into the page cache, as an append without a flush is."""
    chunk = os.urandom(CHUNK_BYTES)
    with (folder / "sequential").open("wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(WRITTEN_BYTES // CHUNK_BYTES):
            file.write(chunk)
        seconds = time.perf_counter() - began
    return {"MB/s": WRITTEN_BYTES / seconds / 1e6}


def fdatasync(folder: Path) -> Metrics:
    """64 KB and a flush, again and again, as flush.messages=1 asks for."""
    chunk = os.urandom(SYNCED_BYTES)
    taken = []
    with (folder / "synced").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(chunk)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return {"MB/s": SYNCS * SYNCED_BYTES / sum(taken) / 1e6, **percentiles(taken)}


def python_loop(_: Path) -> Metrics:
    """An empty coroutine awaited and an append, per step: what any asyncio API pays before it does anything."""
    import asyncio

    kept: list[int] = []

    async def step(number: int) -> None:
        kept.append(number)

    async def run() -> float:
        began = time.perf_counter()
        for number in range(1_000_000):
            await step(number)
        return time.perf_counter() - began

    return {"msg/s": 1_000_000 / asyncio.run(run())}


ROLES = {
    "tcp-stream": tcp_stream,
    "tcp-echo": tcp_echo,
    "write": write_sequentially,
    "fdatasync": fdatasync,
    "await": python_loop,
}


if __name__ == "__main__":
    assert threading.active_count() == 1  # it forks
    print(json.dumps(ROLES[sys.argv[1]](Path(sys.argv[2]))))

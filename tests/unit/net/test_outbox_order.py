"""What an outbox sends through a real socket, whatever its reader does: every byte, once, in the order in which it was put."""

import asyncio
import random
import socket
from pathlib import Path
from typing import cast

import pytest

from barnabas.log.disk.files import RealFiles
from barnabas.log.segment.segment import FileSlice
from barnabas.net.base.limits import SENDFILE_MIN_BYTES, SENDMSG_MIN_BYTES, WRITE_RUN_BYTES
from barnabas.net.wire.outbox import Outbox
from barnabas.net.wire.protocol.codec import Chunk

STEPS = 200
FILE_BYTES = 3 * SENDFILE_MIN_BYTES
# Between them lie all ways of an outbox: one small chunk, joined ones, gathered ones, and regions by pread and by sendfile.
SIZES = (1, 300, 5_000, SENDMSG_MIN_BYTES - 1, SENDMSG_MIN_BYTES, 3 * SENDMSG_MIN_BYTES)
REGION_SIZES = (1, 5_000, SENDFILE_MIN_BYTES - 1, SENDFILE_MIN_BYTES, 2 * SENDFILE_MIN_BYTES)
MOST_IN_TRANSPORT_BYTES = WRITE_RUN_BYTES + max(SIZES)


class Sender(asyncio.Protocol):
    outbox: Outbox

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.outbox = Outbox(self.transport, lambda: None)
        self.outbox.watch_transport()

    def pause_writing(self) -> None:
        self.outbox.pause_writing()

    def resume_writing(self) -> None:
        self.outbox.resume_writing()


class Traffic:
    def __init__(self, rng: random.Random, path: Path, reader: socket.socket) -> None:
        self.rng = rng
        self.content = rng.randbytes(FILE_BYTES)
        path.write_bytes(self.content)
        self.file = RealFiles().open_append(str(path))
        self.reader = reader
        self.wanted = bytearray()
        self.received = bytearray()

    def chunk(self) -> Chunk:
        rng = self.rng
        if rng.random() < 0.3:
            size = rng.choice(REGION_SIZES)
            position = rng.randrange(FILE_BYTES - size)
            self.wanted += self.content[position : position + size]
            return FileSlice(file=self.file, position=position, size_bytes=size)
        data = rng.randbytes(rng.choice(SIZES))
        self.wanted += data
        return memoryview(data) if rng.random() < 0.3 else data

    def read(self, most_bytes: int) -> None:
        try:
            self.received += self.reader.recv(most_bytes)
        except BlockingIOError:
            return


@pytest.mark.parametrize("seed", range(6))
async def test_every_byte_arrives_once_and_in_order(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    _, sender = await asyncio.get_running_loop().create_connection(Sender, sock=ours)
    traffic, outbox = Traffic(rng, tmp_path / "log", theirs), sender.outbox
    for _ in range(STEPS):
        outbox.put([traffic.chunk() for _ in range(rng.choice((0, 0, 1, 1, 2, 5)))])
        outbox.flush()
        assert sender.transport.get_write_buffer_size() <= MOST_IN_TRANSPORT_BYTES, "the rest waits in the queue"
        assert outbox.sent_bytes + outbox.queued_bytes == len(traffic.wanted)
        traffic.read(rng.choice((0, 1_000, 100_000, 1 << 20)) or 1)
        await asyncio.sleep(0)
    while len(traffic.received) < len(traffic.wanted):
        traffic.read(1 << 20)
        await asyncio.sleep(0)
    assert traffic.received == traffic.wanted
    assert outbox.is_empty and outbox.queued_bytes == 0
    outbox.close()
    sender.transport.abort()
    theirs.close()
    traffic.file.close()
    await asyncio.sleep(0)

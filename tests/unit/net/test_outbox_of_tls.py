"""What a slow reader costs on an encrypted connection, where sendfile cannot be used."""

import asyncio
from pathlib import Path

import pytest

from barnabas.log.disk.files import RealFiles
from barnabas.log.segment.segment import FileSlice
from barnabas.net.base.limits import WRITE_RUN_BYTES
from barnabas.net.wire.outbox import Outbox
from barnabas.net.wire.protocol.codec import Chunk

SIZE = 20 * WRITE_RUN_BYTES + 12_345
HEAD, TAIL = b"head", b"tail"


class SlowTls(asyncio.Transport):
    """Asks its protocol to pause at each byte, as asyncio's TLS does when the socket takes no more."""

    def __init__(self) -> None:
        super().__init__({"sslcontext": object(), "socket": object()})
        self.outbox: Outbox | None = None
        self.written: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        assert self.outbox is not None
        self.outbox.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_aborted = True

    def empty(self) -> None:
        assert self.outbox is not None
        self.outbox.resume_writing()


def outbox_of(transport: SlowTls) -> Outbox:
    transport.outbox = Outbox(transport, lambda: None)
    return transport.outbox


def region(path: Path, size_bytes: int) -> FileSlice:
    return FileSlice(file=RealFiles().open_append(str(path)), position=0, size_bytes=size_bytes)


async def test_a_large_part_of_a_file_leaves_in_runs(tmp_path: Path) -> None:
    content = bytes(number % 251 for number in range(SIZE))
    (tmp_path / "log").write_bytes(content)
    transport = SlowTls()
    outbox = outbox_of(transport)
    outbox.put([HEAD, region(tmp_path / "log", SIZE), TAIL])
    outbox.flush()
    while not outbox.is_empty:
        assert sum(map(len, transport.written)) == outbox.sent_bytes
        transport.empty()
    assert max(map(len, transport.written)) == WRITE_RUN_BYTES
    assert b"".join(transport.written) == HEAD + content + TAIL
    assert outbox.queued_bytes == 0


async def test_a_file_that_is_too_short_ends_the_connection(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(SIZE - 1))
    transport = SlowTls()
    outbox = outbox_of(transport)
    outbox.put([region(tmp_path / "log", SIZE)])
    outbox.flush()
    while not transport.is_aborted:
        transport.empty()
    assert outbox.queued_bytes == 0
    assert sum(map(len, transport.written)) == SIZE - 1


@pytest.mark.parametrize("answers", [[HEAD], [HEAD, TAIL]])
async def test_answers_wait_while_the_transport_is_full(answers: list[Chunk]) -> None:
    """Also one that is small: a client that does not read would fill the buffer of the transport, which has no limit."""
    transport = SlowTls()
    outbox = outbox_of(transport)
    for _ in range(3):
        outbox.put(answers)
        outbox.flush()
    assert b"".join(transport.written) == b"".join(answers), "the first ones, which have filled the transport"
    assert outbox.sent_bytes == len(b"".join(answers))
    assert (outbox.queued_chunks, outbox.queued_bytes) == (2 * len(answers), 2 * outbox.sent_bytes)
    while not outbox.is_empty:
        transport.empty()
    assert b"".join(transport.written) == 3 * b"".join(answers)


@pytest.mark.parametrize("answers", [[HEAD], [HEAD, TAIL]])
async def test_nothing_leaves_a_closed_outbox(answers: list[Chunk]) -> None:
    transport = SlowTls()
    outbox = outbox_of(transport)
    outbox.close()
    outbox.put(answers)
    outbox.flush()
    assert (transport.written, outbox.sent_bytes) == ([], 0)

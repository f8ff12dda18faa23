"""The sending side of a connection, for servers and clients: an ordered queue of data that the socket does not accept yet.

Small buffers of one wake-up are sent in one write of the transport. Large buffers are sent by a gathering write, and file regions
by sendfile: both directly on a non-blocking duplicate of the transport's socket, and only while the transport's own buffer is
empty, which preserves the order. Without a socket (simulation, TLS), all data goes through the transport, and a large file region
in parts, the next one when the transport is empty. A file region uses no memory while it waits in the queue.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable

from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.errors import StorageError

from ..base.limits import SENDFILE_MIN_BYTES, SENDMSG_MIN_BYTES, WRITE_RUN_BYTES
from .protocol.codec import Chunk
from .protocol.responses import FileRegion

MAX_GATHERED = 64  # Buffers per gathering write; far below the kernel's IOV_MAX of 1024.


class _PartOfFile:
    """The rest of a large file region that was not sent at once. It keeps a reference to the region, and so to its file."""

    __slots__ = ("left", "position", "region")

    def __init__(self, region: FileRegion) -> None:
        self.region = region
        self.position = region.position
        self.left = region.size_bytes


_Waiting = Buffer | FileRegion | _PartOfFile


class Outbox:
    __slots__ = (
        "_closed",
        "_duplicate",
        "_is_encrypted",
        "_loop",
        "_on_drained",
        "_queue",
        "_socket",
        "_transport",
        "_transport_is_full",
        "_waits_for_socket",
        "queued_bytes",
        "sent_bytes",
    )

    def __init__(self, transport: asyncio.Transport, on_drained: Callable[[], None]) -> None:
        self.queued_bytes = 0  # Of the chunks in the queue, including file regions, although these hold no memory.
        self.sent_bytes = 0
        self._transport = transport
        self._on_drained = on_drained
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Waiting] | None = None  # None is empty: an idle connection has none.
        self._transport_is_full = False
        self._duplicate: socket.socket | None = None
        self._waits_for_socket = False
        self._closed = False
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._socket = None if self._is_encrypted else transport.get_extra_info("socket")

    def watch_transport(self) -> None:
        """Be told when the transport's buffer is not empty; at once, if the end of a TLS handshake is in it. The protocol must
        have this outbox by then."""
        # Any byte in the transport's buffer pauses the outbox, an empty buffer resumes it: only an empty buffer may be bypassed.
        # asyncio's TLS pauses at `high`, its TCP above it.
        self._transport.set_write_buffer_limits(high=1 if self._is_encrypted else 0, low=0)

    @property
    def is_empty(self) -> bool:
        """Return whether no data waits, neither here nor in the transport."""
        return not self._queue and not self._transport_is_full

    @property
    def queued_chunks(self) -> int:
        return len(self._queue) if self._queue else 0

    @property
    def memory_bytes(self) -> int:
        """The memory of waiting data, here and in the transport. With TLS, a run of WRITE_RUN_BYTES may lie below it, too."""
        waiting = sum(len(chunk) for chunk in self._queue or () if isinstance(chunk, bytes | bytearray | memoryview))
        return waiting + self._transport.get_write_buffer_size()

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Queue chunks without sending: call `flush` at the end of the wake-up."""
        queue = self._queue
        if queue is None:
            queue = self._queue = deque()
        for chunk in chunks:
            queue.append(chunk)
            self.queued_bytes += len(chunk) if isinstance(chunk, bytes | bytearray | memoryview) else chunk.size_bytes

    def shrink(self) -> None:
        """Fall back to the memory of an idle connection, if nothing waits in the queue."""
        if not self._queue:
            self._queue = None

    def flush(self) -> None:
        """Send as much as the socket accepts. Raises OSError, also if a file is shorter than its region or cannot be read: then
        no more data is sent, because the other side expects the missing bytes."""
        queue = self._queue
        if queue is not None and len(queue) == 1 and type(queue[0]) is bytes:  # the usual answer: one small chunk
            chunk = queue[0]
            # Where the socket is waited for, this chunk is all that waits: the transport, whose buffer is empty, may have it.
            if len(chunk) < SENDMSG_MIN_BYTES and not (self._transport_is_full or self._closed):
                queue.popleft()
                self.queued_bytes -= len(chunk)
                self.sent_bytes += len(chunk)
                self._transport.write(chunk)
                return
        try:
            while queue and not (self._transport_is_full or self._waits_for_socket or self._closed):
                head = queue[0]
                if isinstance(head, bytes | bytearray | memoryview):
                    self._send_buffers(queue)
                elif isinstance(head, _PartOfFile):
                    if self._socket is None:
                        self._send_part(queue, head)
                    else:
                        self._send_file(queue, head)
                elif _goes_in_parts(head):
                    queue[0] = _PartOfFile(head)
                else:
                    self._send_buffers(queue)
        except OSError:
            self.close()
            raise

    def pause_writing(self) -> None:
        self._transport_is_full = True

    def resume_writing(self) -> None:
        self._transport_is_full = False
        self._continue()

    def close_when_sent(self) -> None:
        """Close the transport when all data has left this queue; it sends its own buffer before."""
        self._on_drained = self._close_transport
        self._continue()

    def close(self) -> None:
        """Drop all data: the connection is closed."""
        self._closed = True
        self._on_drained = _nothing  # A reference cycle would keep the connection until the next full collection.
        if self._queue is not None:
            self._queue.clear()  # `flush` may be working on it.
        self.queued_bytes = 0
        if self._duplicate is not None:
            self._loop.remove_writer(self._duplicate.fileno())  # no error if it is not watched
            self._duplicate.close()
            self._duplicate = None

    def _send_buffers(self, queue: deque[_Waiting]) -> None:
        """Send the buffers at the head of the queue, up to a run; small file regions between them are read and sent with them."""
        run: list[Buffer] = []
        run_bytes = 0
        while queue and run_bytes < WRITE_RUN_BYTES and len(run) < MAX_GATHERED:
            chunk = queue[0]
            if not isinstance(chunk, bytes | bytearray | memoryview):
                if isinstance(chunk, _PartOfFile) or _goes_in_parts(chunk):
                    break
                region = chunk
                chunk = _read(region)
                if len(chunk) != region.size_bytes:
                    raise _shortened(region)
            run.append(chunk)
            run_bytes += len(chunk)
            queue.popleft()
        self.queued_bytes -= run_bytes
        self.sent_bytes += run_bytes
        file_follows = bool(queue) and not isinstance(queue[0], bytes | bytearray | memoryview)
        if (run_bytes >= SENDMSG_MIN_BYTES or file_follows) and self._socket is not None:
            self._send_gathered(queue, run, run_bytes, socket.MSG_MORE if file_follows else 0)
        elif len(run) == 1:
            self._transport.write(run[0])
        else:
            self._transport.writelines(run)

    def _send_gathered(self, queue: deque[_Waiting], run: list[Buffer], run_bytes: int, flags: int) -> None:
        try:
            sent = self._direct().sendmsg(run, (), flags)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent == run_bytes:
            return
        left = run_bytes - sent
        self.queued_bytes += left
        self.sent_bytes -= left
        for chunk in reversed(run):  # Put the rest back at the head of the queue, the last chunk first.
            size = len(chunk)
            if left <= 0:
                break
            queue.appendleft(chunk if left >= size else memoryview(chunk)[size - left :])
            left -= size
        self._wait_for_socket()

    def _send_file(self, queue: deque[_Waiting], part: _PartOfFile) -> None:
        descriptor = part.region.fileno()
        assert descriptor is not None
        out = self._direct().fileno()
        try:
            while part.left:
                sent = os.sendfile(out, descriptor, part.position, part.left)
                if sent == 0:
                    raise _shortened(part.region)
                part.position += sent
                part.left -= sent
                self.queued_bytes -= sent
                self.sent_bytes += sent
        except (BlockingIOError, InterruptedError):
            self._wait_for_socket()
            return
        queue.popleft()

    def _send_part(self, queue: deque[_Waiting], part: _PartOfFile) -> None:
        """A client that does not read holds the memory of this part, not of the whole region."""
        descriptor = part.region.fileno()
        assert descriptor is not None
        data = os.pread(descriptor, min(part.left, WRITE_RUN_BYTES), part.position)
        if not data:
            raise _shortened(part.region)
        part.position += len(data)
        part.left -= len(data)
        self.queued_bytes -= len(data)
        self.sent_bytes += len(data)
        if not part.left:
            queue.popleft()
        self._transport.write(data)

    def descriptors(self) -> list[int]:
        """The number of the transport's socket and that of its duplicate; -1: it is closed."""
        sockets = (self._transport.get_extra_info("socket"), self._duplicate)
        return [item.fileno() for item in sockets if item is not None]

    def _direct(self) -> socket.socket:
        """The duplicate of the socket: asyncio does not allow watching the transport's own descriptor."""
        if self._duplicate is None:
            assert self._socket is not None
            self._duplicate = socket.socket(fileno=os.dup(self._socket.fileno()))
            self._duplicate.setblocking(False)
        return self._duplicate

    def _wait_for_socket(self) -> None:
        self._waits_for_socket = True
        self._loop.add_writer(self._direct().fileno(), self._socket_is_writable)

    def _socket_is_writable(self) -> None:
        assert self._duplicate is not None
        self._waits_for_socket = False
        self._continue()
        if not self._waits_for_socket and self._duplicate is not None:
            self._loop.remove_writer(self._duplicate.fileno())

    def _continue(self) -> None:
        try:
            self.flush()
        except OSError:
            self._transport.abort()
            return
        self._on_drained()

    def _close_transport(self) -> None:
        """Not at once: the transport may be in the middle of a write, and would report its end twice."""
        if not self.queued_bytes:
            self._loop.call_soon(self._transport.close)


def _goes_in_parts(region: FileRegion) -> bool:
    return region.size_bytes >= SENDFILE_MIN_BYTES and region.fileno() is not None


def _read(region: FileRegion) -> Buffer:
    try:
        return region.read()
    except StorageError as error:
        raise OSError(f"a part of an answer cannot be read: {error}") from error


def _nothing() -> None:
    pass


def _shortened(region: FileRegion) -> OSError:
    return OSError(
        f"a file ends within the {region.size_bytes} bytes at {region.position} that the answer has announced"
    )

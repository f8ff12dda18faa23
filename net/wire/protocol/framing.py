"""Frames from a stream of bytes: a u32 size (big endian), then that many bytes. Pure; both protocols are framed so.

`FrameReader` owns the one receive buffer of a client's connection (of a server's: `net.server.receive_buffer`). A frame that it
returns is a writable view INTO that buffer: it is valid only until the next `get_buffer`, so the caller processes it before
returning to the loop, or copies it.
That makes produce free of copies: the batch that the leader patches and appends is the memory the kernel wrote to.
"""

import mmap
import struct

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.base.limits import IDLE_BUFFER_BYTES, MAX_FRAME_BYTES, RETAINED_BUFFER_BYTES, STREAM_BUFFER_BYTES

SIZE = struct.Struct(">I")
SIZE_BYTES = 4
_unpack_size = SIZE.unpack_from
_HTTP = int.from_bytes(b"HTTP", "big")  # How an answer of HTTP begins.


class FrameTooLargeError(InvalidRequestError):
    """A peer announced a frame beyond the limit. Nothing was allocated; the stream cannot be read any further."""


class FrameReader:
    """Bytes go in by `get_buffer` and `received`, whole frames come out of `next_frame`.

    Memory grows only with what has really arrived: the buffer at most doubles each time that it is full, so a peer that
    announces much and sends little costs little. `shrink` gives an idle connection's memory back.
    """

    __slots__ = ("_buffer", "_capacity", "_end", "_filled", "_needed", "_start", "_view", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._needed = 0  # Size with prefix of the frame that has not arrived whole; 0: not known or none.
        self._filled = False  # The last read filled the buffer: there is probably more to have at once.
        self._start = 0  # 0 <= _start <= _end <= _capacity; the bytes between start and end have not been taken.
        self._end = 0
        self._buffer: bytearray | mmap.mmap = bytearray(IDLE_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._capacity = IDLE_BUFFER_BYTES

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def pending_bytes(self) -> int:
        """Received and not yet taken."""
        return self._end - self._start

    def get_buffer(self) -> memoryview:
        """Return free space to receive into; never empty. Ends the life of all frames returned so far."""
        if self._start == self._end:
            self._start = self._end = 0
            if self._capacity > RETAINED_BUFFER_BYTES:
                self._replace(STREAM_BUFFER_BYTES)
            elif self._filled and self._capacity < STREAM_BUFFER_BYTES:
                self._replace(self._capacity * 2)
        else:
            self._make_room()
        self._filled = False
        if self._end == self._capacity:  # It is full of whole frames that the caller has not taken yet.
            self._replace(self._capacity * 2)
        return self._view[self._end :]

    def received(self, count: int) -> None:
        self._end += count
        self._filled = self._end == self._capacity

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame without its size, or None. Raises FrameTooLargeError before it allocates."""
        start = self._start
        if self._end - start < SIZE_BYTES:
            return None
        (size,) = _unpack_size(self._buffer, start)
        if size > self.max_frame_bytes:
            told = (
                ": an HTTP server answers, as at a broker's admin port; give the port of its clients"
                if size == _HTTP
                else ""
            )
            raise FrameTooLargeError(
                f"a frame of {size} bytes was announced; the limit is {self.max_frame_bytes}{told}"
            )
        begin = start + SIZE_BYTES
        end = begin + size
        if end > self._end:
            self._needed = SIZE_BYTES + size
            return None
        self._start = end
        self._needed = 0
        return self._view[begin:end]

    def peek(self) -> memoryview:
        """Return all bytes that have not been taken."""
        return self._view[self._start : self._end]

    def skip(self, count: int) -> None:
        """Take `count` bytes that are no frame, as a preamble is."""
        assert count <= self._end - self._start
        self._start += count

    def shrink(self) -> None:
        """Fall back to the memory of an idle connection, if nothing waits in the buffer."""
        if self._start == self._end and self._capacity > IDLE_BUFFER_BYTES:
            self._start = self._end = 0
            self._filled = False
            self._replace(IDLE_BUFFER_BYTES)

    def _make_room(self) -> None:
        """A part of a frame is waiting: bring it to the front where it cannot be completed, or grow."""
        kept = self._end - self._start
        needed = max(self._needed, SIZE_BYTES)
        if needed > self._capacity and kept * 2 >= self._capacity:
            self._replace(min(self._capacity * 2, self.max_frame_bytes + SIZE_BYTES))
        elif self._filled and self._capacity < STREAM_BUFFER_BYTES:
            self._replace(self._capacity * 2)
        elif self._start + needed > self._capacity or self._capacity - self._end < self._capacity // 4:
            self._view[:kept] = self._view[self._start : self._end]
            self._start, self._end = 0, kept

    def _replace(self, capacity: int) -> None:
        """Continue in a new buffer. The old one is not resized: views of it may still be alive."""
        capacity = max(capacity, self._end - self._start + SIZE_BYTES)
        buffer = bytearray(capacity)
        view = memoryview(buffer)
        kept = self._end - self._start
        if kept:
            view[:kept] = self._view[self._start : self._end]
        self._start, self._end = 0, kept
        self._buffer = buffer
        self._view = view
        self._capacity = capacity

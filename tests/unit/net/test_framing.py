from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.base.limits import IDLE_BUFFER_BYTES, MAX_FRAME_BYTES, RETAINED_BUFFER_BYTES, STREAM_BUFFER_BYTES
from barnabas.net.wire.protocol.framing import FrameReader, FrameTooLargeError


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    """Give the reader `data` as a socket would, and take all frames."""
    frames = []
    rest = memoryview(data)
    while rest:
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        reader.received(count)
        rest = rest[count:]
        while (frame := reader.next_frame()) is not None:
            frames.append(bytes(frame))
    return frames


def feed_all(reader: FrameReader, parts: Iterable[bytes]) -> list[bytes]:
    return [frame for part in parts for frame in feed(reader, part)]


def test_frames_come_whole_at_every_split_point() -> None:
    bodies = [b"", b"a", b"bc" * 20, b"", b"defg"]
    data = framed(*bodies)
    for split in range(len(data) + 1):
        assert feed_all(FrameReader(), [data[:split], data[split:]]) == bodies


def test_frames_come_whole_byte_by_byte() -> None:
    bodies = [b"one", b"", b"three"]
    assert feed_all(FrameReader(), [bytes([byte]) for byte in framed(*bodies)]) == bodies


@given(st.lists(st.binary(max_size=300), max_size=30), st.lists(st.integers(1, 400), min_size=1, max_size=50))
def test_any_frames_in_any_parts(bodies: list[bytes], sizes: list[int]) -> None:
    data = framed(*bodies)
    parts = []
    index = 0
    while data:
        size = sizes[index % len(sizes)]
        parts.append(data[:size])
        data = data[size:]
        index += 1
    assert feed_all(FrameReader(), parts) == bodies


@pytest.mark.parametrize("size", [IDLE_BUFFER_BYTES - 5, IDLE_BUFFER_BYTES - 4, IDLE_BUFFER_BYTES, 1 << 20, 20 << 20])
@pytest.mark.parametrize("lead", [b"", b"x" * 1000])
def test_large_frames_between_small_ones(size: int, lead: bytes) -> None:
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    assert feed(FrameReader(), framed(lead, body, b"after", body)) == [lead, body, b"after", body]


def test_a_frame_is_writable_memory_of_the_buffer() -> None:
    reader = FrameReader()
    data = framed(b"batch")
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    frame = reader.next_frame()
    assert frame is not None
    frame[0:1] = b"B"
    assert bytes(frame) == b"Batch"


@pytest.mark.parametrize("announced", [MAX_FRAME_BYTES + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_frame_beyond_the_limit_is_refused_before_anything_is_allocated(announced: int) -> None:
    reader = FrameReader()
    reader.get_buffer()[:4] = announced.to_bytes(4, "big")
    reader.received(4)
    with pytest.raises(FrameTooLargeError, match=str(announced)):
        reader.next_frame()
    assert reader.capacity == IDLE_BUFFER_BYTES
    assert issubclass(FrameTooLargeError, InvalidRequestError)


def test_an_answer_of_http_is_told() -> None:
    reader = FrameReader()
    reader.get_buffer()[:8] = b"HTTP/1.1"
    reader.received(8)
    with pytest.raises(FrameTooLargeError, match="an HTTP server answers"):
        reader.next_frame()


def test_memory_follows_what_arrived_not_what_was_announced() -> None:
    reader = FrameReader()
    announced = (90 << 20).to_bytes(4, "big")
    assert feed(reader, announced + b"x" * 1000) == []
    reader.get_buffer()
    assert reader.capacity == IDLE_BUFFER_BYTES
    feed(reader, b"x" * (300 << 10))
    reader.get_buffer()
    assert reader.capacity <= 4 * (301 << 10)


def test_an_idle_reader_gives_its_memory_back() -> None:
    reader = FrameReader()
    feed(reader, framed(b"x" * (3 << 20)))
    assert reader.capacity > STREAM_BUFFER_BYTES
    reader.shrink()
    assert reader.capacity == IDLE_BUFFER_BYTES
    assert feed(reader, framed(b"more")) == [b"more"]


def test_a_reader_with_half_a_frame_does_not_shrink_it_away() -> None:
    reader = FrameReader()
    data = framed(b"x" * 100_000)
    assert feed(reader, data[:70_000]) == []
    reader.shrink()
    assert feed(reader, data[70_000:]) == [b"x" * 100_000]


def test_a_huge_frame_does_not_leave_a_huge_buffer() -> None:
    reader = FrameReader()
    feed(reader, framed(b"x" * (RETAINED_BUFFER_BYTES * 2)))
    reader.get_buffer()
    assert reader.capacity == STREAM_BUFFER_BYTES


def test_a_busy_stream_gets_a_larger_buffer() -> None:
    reader = FrameReader()
    feed(reader, framed(b"x" * 1000) * 5000)
    assert reader.capacity == STREAM_BUFFER_BYTES


def test_a_view_of_an_earlier_buffer_survives_its_growth() -> None:
    reader = FrameReader()
    data = framed(b"kept")
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    frame = reader.next_frame()
    feed(reader, framed(b"x" * (1 << 20)))
    assert frame is not None and len(frame) == 4  # Its bytes are no longer promised; that it does not crash is.


def test_preamble_is_peeked_and_skipped() -> None:
    reader = FrameReader()
    data = b"BNB1" + framed(b"hello")
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    assert bytes(reader.peek()[:4]) == b"BNB1"
    reader.skip(4)
    frame = reader.next_frame()
    assert frame is not None and bytes(frame) == b"hello"
    assert reader.pending_bytes == 0

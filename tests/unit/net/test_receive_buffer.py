"""Receive buffers of a server: shared while frames fit, of their own and out of the budget where they do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.net.server.memory_budget import MemoryBudget
from barnabas.net.server.receive_buffer import KEPT_BYTES, SHARED_BYTES, TIGHT_READ_BYTES, ReceiveBuffer, SharedMemory
from barnabas.net.wire.protocol.framing import FrameTooLargeError

MAX_FRAME_BYTES = 100 << 20


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def fill(buffer: ReceiveBuffer, data: bytes, taken: int) -> int:
    """Give it what fits of the rest of `data`, as a socket would; how many bytes of `data` it has taken now."""
    room = buffer.get_buffer()
    count = min(len(room), len(data) - taken)
    room[:count] = data[taken : taken + count]
    buffer.received(count)
    return taken + count


def receive(buffer: ReceiveBuffer, data: bytes) -> tuple[list[bytes], int]:
    """Give it `data` as a socket would, as long as it takes it; the frames, and how many bytes it took."""
    frames = []
    taken = 0
    while taken < len(data):
        taken = fill(buffer, data, taken)
        while (frame := buffer.next_frame()) is not None:
            frames.append(bytes(frame))
        if not buffer.settle():
            break
    return frames, taken


def world(limit_bytes: int = 128 << 20) -> tuple[MemoryBudget, SharedMemory]:
    budget = MemoryBudget(limit_bytes)
    return budget, SharedMemory(budget)


@given(st.lists(st.binary(max_size=300), max_size=30), st.lists(st.integers(1, 400), min_size=1, max_size=50))
def test_frames_of_connections_that_take_turns(bodies: list[bytes], sizes: list[int]) -> None:
    budget, shared = world()
    first, second = ReceiveBuffer(MAX_FRAME_BYTES, shared), ReceiveBuffer(MAX_FRAME_BYTES, shared)
    data, found = framed(*bodies), ([], [])  # type: ignore[var-annotated]
    position = number = 0
    while position < len(data):
        part = data[position : position + sizes[number % len(sizes)]]
        for buffer, frames in zip((first, second), found, strict=True):
            got, taken = receive(buffer, part)
            frames += got
            assert taken == len(part)
        position += len(part)
        number += 1
    assert found == (bodies, bodies)
    first.release()
    second.release()
    assert budget.used_bytes == 0


@pytest.mark.parametrize("size", [SHARED_BYTES - 5, SHARED_BYTES - 4, SHARED_BYTES, 1 << 20, 20 << 20, (90 << 20) + 3])
def test_large_frames_between_small_ones(size: int) -> None:
    budget, shared = world()
    buffer = ReceiveBuffer(MAX_FRAME_BYTES, shared)
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    assert receive(buffer, framed(b"lead", body, b"after", body))[0] == [b"lead", body, b"after", body]
    buffer.shrink()
    assert budget.used_bytes == buffer.own_bytes == 0


def test_memory_follows_what_arrived_not_what_was_announced() -> None:
    budget, shared = world()
    buffer = ReceiveBuffer(MAX_FRAME_BYTES, shared)
    for arrived in (1_000, 300 << 10, 3 << 20, 30 << 20):
        receive(buffer, ((90 << 20).to_bytes(4, "big") if arrived == 1_000 else b"") + bytes(arrived))
        assert arrived <= budget.used_bytes == buffer.own_bytes <= 3 * buffer.pending_bytes
    buffer.release()
    assert budget.used_bytes == 0


def test_a_frame_beyond_the_limit_is_refused_before_anything_is_taken() -> None:
    budget, shared = world()
    buffer = ReceiveBuffer(MAX_FRAME_BYTES, shared)
    with pytest.raises(FrameTooLargeError):
        receive(buffer, (MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    assert budget.used_bytes == 0


def test_who_gets_no_memory_waits_and_goes_on_later() -> None:
    budget, shared = world(2 << 20)
    first, second = ReceiveBuffer(MAX_FRAME_BYTES, shared), ReceiveBuffer(MAX_FRAME_BYTES, shared)
    receive(first, framed(bytes(1_500_000))[:1_400_000])
    body = bytes(range(250)) * 4_000
    data = framed(body)
    frames, taken = receive(second, data)
    assert not frames and taken <= 2 * SHARED_BYTES and second.wanted_bytes > 0
    assert budget.used_bytes <= budget.limit_bytes
    granted = []
    budget.wait(second, second.wanted_bytes, lambda: granted.append(second.wanted_bytes))
    assert budget.is_short and len(ReceiveBuffer(MAX_FRAME_BYTES, shared).get_buffer()) == TIGHT_READ_BYTES
    first.release()
    assert granted == [second.wanted_bytes] and not budget.is_short
    second.granted(granted[0])
    assert second.settle()
    assert receive(second, data[taken:])[0] == [body]
    second.release()
    assert budget.used_bytes == 0


def test_a_connection_that_ends_between_the_grant_and_its_use_gives_the_grant_back() -> None:
    budget, shared = world(2 << 20)
    first, second = ReceiveBuffer(MAX_FRAME_BYTES, shared), ReceiveBuffer(MAX_FRAME_BYTES, shared)
    receive(first, framed(bytes(1_500_000))[:1_400_000])
    receive(second, framed(bytes(1_000_000)))
    budget.wait(second, second.wanted_bytes, lambda: second.granted(second.wanted_bytes))
    first.release()
    assert budget.used_bytes > second.own_bytes and not budget.is_short
    second.release()
    assert budget.used_bytes == 0


def test_a_huge_frame_does_not_leave_a_huge_buffer() -> None:
    budget, shared = world()
    buffer = ReceiveBuffer(MAX_FRAME_BYTES, shared)
    receive(buffer, framed(bytes(KEPT_BYTES + 1)))
    assert buffer.own_bytes == budget.used_bytes == 0
    receive(buffer, framed(bytes(1 << 20)))
    assert 0 < budget.used_bytes <= KEPT_BYTES, "kept for the next frame, until the connection is idle"


def test_the_smallest_wish_is_granted_first() -> None:
    budget = MemoryBudget(100)
    assert budget.take(90) and not budget.take(11)
    order: list[str] = []
    for name, size in (("large", 60), ("small", 20), ("middle", 30)):
        budget.wait(name, size, lambda name=name: order.append(name))  # type: ignore[misc]
    assert budget.least_wanted_bytes == 20
    budget.give_back(45)
    assert order == ["small", "middle"]
    budget.forget("large")
    assert not budget.is_short and budget.used_bytes == 95 and budget.is_tight


def test_a_request_that_is_parked_does_not_keep_the_memory_of_its_large_frame() -> None:
    budget, shared = world()
    buffer = ReceiveBuffer(MAX_FRAME_BYTES, shared)
    data = framed(b"x" * (9 << 20))
    parked: list[memoryview] = []
    taken = 0
    while taken < len(data):
        taken = fill(buffer, data, taken)
        if (frame := buffer.next_frame()) is not None:
            parked.append(frame)
        assert buffer.settle()
    assert budget.used_bytes == 0 and len(parked) == 1
    assert not any(parked[0][:: 1 << 12])  # its pages were given back to the system

"""Long work, a slice at a time."""

import asyncio
from collections.abc import Iterator

import pytest
from unit.net.shell_world import now_ms, simulated, turns

from barnabas.net.base.slices import SLICE_MS, SLICE_STEPS, SlicedQueue, Steps, in_slices


class Clock:
    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms


@simulated
async def test_what_fits_into_a_slice_is_done_at_once() -> None:
    done: list[int] = []

    def piece() -> Steps:
        for number in range(SLICE_STEPS - 1):
            done.append(number)
            yield None

    queue = SlicedQueue(now_ms)
    queue.add(piece())
    assert len(done) == SLICE_STEPS - 1 and queue.is_idle


@pytest.mark.parametrize("step_ms", [0, 1, SLICE_MS, 3 * SLICE_MS])
@simulated
async def test_the_loop_turns_between_slices_and_pieces_keep_their_order(step_ms: int) -> None:
    clock = Clock()
    done: list[tuple[str, int]] = []
    turned: list[int] = []

    def piece(name: str, count: int) -> Steps:
        for number in range(count):
            done.append((name, number))
            clock.time_ms += step_ms
            yield None

    queue = SlicedQueue(clock.now_ms)
    queue.add(piece("a", 100))
    queue.add(piece("b", 5))
    while not queue.is_idle:
        turned.append(len(done))
        await asyncio.sleep(0)
    assert done == [("a", number) for number in range(100)] + [("b", number) for number in range(5)]
    most = min(SLICE_STEPS, max(1, SLICE_MS // step_ms if step_ms else SLICE_STEPS))
    assert max(later - earlier for earlier, later in zip([0, *turned], [*turned, len(done)], strict=True)) <= most


@simulated
async def test_a_step_may_wait_and_what_is_behind_it_waits_too() -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done: list[str] = []

    def waits() -> Steps:
        done.append("asked")
        yield answer
        done.append("answered")

    def behind() -> Steps:
        done.append("behind")
        yield None

    queue = SlicedQueue(now_ms)
    queue.add(waits())
    queue.add(behind())
    await turns()
    assert done == ["asked"] and not queue.is_idle
    answer.set_result(None)
    await turns()
    assert done == ["asked", "answered", "behind"] and queue.is_idle


@simulated
async def test_a_piece_that_fails_is_told_and_the_next_one_is_done() -> None:
    done: list[str] = []

    def fails() -> Steps:
        yield None
        raise ZeroDivisionError

    def works() -> Steps:
        done.append("worked")
        yield None

    queue = SlicedQueue(now_ms)
    with pytest.raises(ZeroDivisionError):
        queue.add(fails())
    queue.add(works())
    assert done == ["worked"] and queue.is_idle


@simulated
async def test_what_is_cleared_is_not_done() -> None:
    done: list[int] = []

    def piece() -> Steps:
        for number in range(10 * SLICE_STEPS):
            done.append(number)
            yield None

    queue = SlicedQueue(now_ms)
    queue.add(piece())
    queue.clear()
    await turns()
    assert len(done) == SLICE_STEPS and queue.is_idle


@simulated
async def test_a_walk_in_slices_takes_every_step() -> None:
    taken: list[int] = []
    most_at_once = 0

    def steps() -> Iterator[None]:
        for number in range(5 * SLICE_STEPS):
            taken.append(number)
            yield

    walk = asyncio.create_task(in_slices(steps(), now_ms))
    while not walk.done():
        before = len(taken)
        await asyncio.sleep(0)
        most_at_once = max(most_at_once, len(taken) - before)
    assert len(taken) == 5 * SLICE_STEPS and most_at_once == SLICE_STEPS

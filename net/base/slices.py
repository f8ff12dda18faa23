"""Runs long work and large numbers of requests on the broker's loop in slices: between two slices, the loop serves heartbeats,
clients and followers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final, TypeVar

logger = logging.getLogger("barnabas.broker")

SLICE_MS: Final = 10  # limit of one slice: far less than a heartbeat interval, far more than a pass of the loop costs
SLICE_STEPS: Final = 32  # limit of one slice where time does not advance (simulation) or is too coarse

T = TypeVar("T")
Steps = Iterator["asyncio.Future[None] | None"]


class Slice:
    """Measures the work since the last pass of the loop."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.begin()

    def begin(self) -> None:
        self._steps = 0
        self._until_ms = self._now_ms() + SLICE_MS

    def is_over(self) -> bool:
        """Called after a step: return whether the loop must run now."""
        self._steps += 1
        return self._steps >= SLICE_STEPS or self._now_ms() >= self._until_ms


async def in_slices(steps: Iterable[object], now_ms: Callable[[], int]) -> None:
    """Take every step; the loop runs after each slice."""
    part = Slice(now_ms)
    for _ in steps:
        if part.is_over():
            await asyncio.sleep(0)
            part.begin()


class SharedSlice:
    """A slice that several coroutines share: however many of them take steps, the loop runs after each shared slice."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._part = Slice(now_ms)
        self._turned: asyncio.Event | None = None  # set while the coroutines wait for the next pass of the loop

    async def step(self) -> None:
        """Called after a step; waits for the loop if the slice is over."""
        if not self._part.is_over():
            return
        if self._turned is not None:
            await self._turned.wait()
            return
        turned = self._turned = asyncio.Event()
        try:
            await asyncio.sleep(0)
        finally:
            self._turned = None
            self._part.begin()
            turned.set()


async def sliced(items: Iterable[T], now_ms: Callable[[], int]) -> AsyncIterator[T]:
    """`async for` over items that the caller processes: the loop runs after each slice."""
    part = Slice(now_ms)
    for item in items:
        yield item
        if part.is_over():
            await asyncio.sleep(0)
            part.begin()


class SlicedQueue:
    """Pieces of work, strictly one after the other; each is a series of steps, and the loop may run after each step.

    The steps that fit into the first slice are taken before `add` returns. If a step yields a future, the next step follows when
    the future is done.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._slice = Slice(now_ms)
        self._pieces: deque[Steps] = deque()  # as many as are published while one is processed
        self._is_going = False

    @property
    def is_idle(self) -> bool:
        return not self._pieces

    def add(self, piece: Steps) -> None:
        """Raises the errors of the steps that are taken at once; errors of later steps go to the loop's exception handler."""
        self._pieces.append(piece)
        if not self._is_going:
            self._go_on()

    def clear(self) -> None:
        """Drop all remaining steps."""
        self._pieces.clear()

    def _go_on(self) -> None:
        self._is_going = False
        self._slice.begin()
        while self._pieces:
            awaited = self._step(self._pieces[0])
            if awaited is not None and not awaited.done():
                self._is_going = True
                awaited.add_done_callback(lambda _: self._go_on())
                return
            if self._pieces and self._slice.is_over():
                self._is_going = True
                asyncio.get_running_loop().call_soon(self._go_on)
                return

    def _step(self, piece: Steps) -> "asyncio.Future[None] | None":
        is_over = True
        try:
            awaited = next(piece)
            is_over = False
            return awaited
        except StopIteration:
            return None
        finally:
            if is_over and self._pieces and self._pieces[0] is piece:
                self._pieces.popleft()


class SlicedCalls:
    """Makes calls in the order of their arrival; each pass of the loop makes as many as fit into a slice.

    If the pass has time left, the call is made before `add` returns. A call handles its own errors.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._slice = Slice(now_ms)
        self._calls: deque[Callable[[], None]] = deque()  # bounded by the caller of `add`
        self._is_turning = False  # `_turned` is scheduled for the next pass
        self._is_over = False  # the slice of this pass has ended

    def __len__(self) -> int:
        """Calls that wait for a later pass."""
        return len(self._calls)

    def add(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if not self._is_turning:
            self._begin()
        self._go_on()

    def _begin(self) -> None:
        self._is_turning, self._is_over = True, False
        self._slice.begin()
        asyncio.get_running_loop().call_soon(self._turned)

    def _turned(self) -> None:
        self._is_turning = False
        if self._calls:
            self._begin()
            self._go_on()

    def _go_on(self) -> None:
        while self._calls and not self._is_over:
            self._calls.popleft()()
            self._is_over = self._slice.is_over()

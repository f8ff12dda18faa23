"""Long work and crowds of requests on the broker's loop, a slice at a time: between two slices the loop serves heartbeats,
clients and followers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final, TypeVar

logger = logging.getLogger("barnabas.broker")

SLICE_MS: Final = 10  # what one slice may take: far less than a heartbeat, far more than a pass of the loop costs
SLICE_STEPS: Final = 32  # and no more than so many steps, where time stands still (simulation) or is too coarse

T = TypeVar("T")
Steps = Iterator["asyncio.Future[None] | None"]


class Slice:
    """Counts what has been done since the loop turned."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.begin()

    def begin(self) -> None:
        self._steps = 0
        self._until_ms = self._now_ms() + SLICE_MS

    def is_over(self) -> bool:
        """After a step: is it time to let the loop turn?"""
        self._steps += 1
        return self._steps >= SLICE_STEPS or self._now_ms() >= self._until_ms


async def in_slices(steps: Iterable[object], now_ms: Callable[[], int]) -> None:
    """Take every step; the loop turns after each slice."""
    part = Slice(now_ms)
    for _ in steps:
        if part.is_over():
            await asyncio.sleep(0)
            part.begin()


class SharedSlice:
    """A slice of several coroutines together: however many take steps, the loop turns after one slice of them."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._part = Slice(now_ms)
        self._turned: asyncio.Event | None = None  # while the loop is to turn

    async def step(self) -> None:
        """After a step."""
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
    """`async for` over items that are worked on here: the loop turns after each slice."""
    part = Slice(now_ms)
    for item in items:
        yield item
        if part.is_over():
            await asyncio.sleep(0)
            part.begin()


class SlicedQueue:
    """Pieces of work, strictly one after the other; each is a series of steps, after which the loop may turn.

    What fits into the first slice is done before `add` returns. A step that yields a future is followed by the next one when
    that is done.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._slice = Slice(now_ms)
        self._pieces: deque[Steps] = deque()  # as many as are published while one is worked on
        self._is_going = False

    @property
    def is_idle(self) -> bool:
        return not self._pieces

    def add(self, piece: Steps) -> None:
        """Raises what its steps raise, where they are taken at once; later such an error goes to the loop's handler."""
        self._pieces.append(piece)
        if not self._is_going:
            self._go_on()

    def clear(self) -> None:
        """Take no further step of what is here."""
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
    """Calls in the order of their arrival; each pass of the loop makes as many as fit into a slice.

    What arrives while there is time left in the pass is called before `add` returns. A call handles its own errors.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._slice = Slice(now_ms)
        self._calls: deque[Callable[[], None]] = deque()  # bounded by who adds to it
        self._is_turning = False  # `_turned` comes in the next pass
        self._is_over = False  # the slice of this pass

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

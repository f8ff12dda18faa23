"""The end of a turn: work that is put off until all requests of one wake-up have been handled, and is then done at once.

asyncio's `call_soon` would put it off just as well, but each link of a chain (an append, the fetch that waited for it, the
reply to that) would cost a pass of the loop with a look at the sockets. Here the whole chain runs in one.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from .fair_reads import FairReads


class Turn:
    """One per broker, shared by whoever handles requests and whoever puts work off. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self.reads = FairReads()
        self._put_off: deque[Callable[[], None]] = deque()
        self._is_open = False
        self._is_scheduled = False

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call it at the end of the open turn, what was put off first goes first; without one, soon."""
        self._put_off.append(callback)
        if not (self._is_open or self._is_scheduled):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled)

    def begin(self) -> None:
        self._is_open = True

    def end(self) -> None:
        """Do what was put off, and what that puts off in its turn."""
        put_off = self._put_off
        self._is_open = True
        try:
            while put_off:
                put_off.popleft()()
        finally:
            self._is_open = False
            if put_off and not self._is_scheduled:  # One of them failed; the others are none the worse for it.
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self.end()

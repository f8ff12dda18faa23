"""Runs deferred work at the end of a turn: after all requests of one wake-up have been handled.

asyncio's `call_soon` could defer the work, too, but each step of a chain (an append, the fetch that waited for it, the reply to
the fetch) would cost a pass of the loop and a poll of the sockets. Here, the whole chain runs in one pass.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from .fair_reads import FairReads


class Turn:
    """One per broker, shared by all parts that handle requests or defer work. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self.reads = FairReads()
        self.is_open = False  # Set it before requests are handled, and call `end` behind them.
        self._put_off: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call it at the end of the open turn, in order of deferral; if no turn is open, soon."""
        self._put_off.append(callback)
        if not (self.is_open or self._is_scheduled):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled)

    def end(self) -> None:
        """Run the deferred work, and the work that it defers."""
        put_off = self._put_off
        self.is_open = True
        try:
            while put_off:
                put_off.popleft()()
        finally:
            self.is_open = False
            if put_off and not self._is_scheduled:  # One callback failed; the others must still run.
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self.end()

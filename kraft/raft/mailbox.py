"""Work that one thread gives to the event loop of another: one wake-up for all that is given until the loop comes to it.

A wake-up is a byte through a pipe, which the loop reads with a pass of its own, and often a change of the thread. A commit gives
a broker its publication and the answers of all requests that have waited for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable

Work = Callable[[], object]


class Mailbox:
    """Work is done in the order in which it was given. Its owner limits how much waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: deque[Work] = deque()
        self._is_due = (
            False  # A wake-up is on its way. The loop clears it before it looks at the work, so none is left behind.
        )

    def put(self, work: Work) -> None:
        """From any thread. Raises RuntimeError if the loop is closed."""
        self._work.append(work)
        if self._is_due:
            return
        self._is_due = True
        try:
            self._loop.call_soon_threadsafe(self._do)
        except RuntimeError:
            self._is_due = False
            self._work.clear()
            raise

    def _do(self) -> None:
        self._is_due = False
        work = self._work
        left = len(work)
        try:
            while left:
                left -= 1
                work.popleft()()
        finally:
            if left and not self._is_due:  # one has failed: the others are done all the same
                self._is_due = True
                self._loop.call_soon(self._do)

"""Shares each pass of the loop between connections, so that many busy connections do not make a pass long.

A pass has a budget of work. Connections whose bytes have just arrived are served at once from the budget. A connection that has
sent more than its share waits in line and continues in a later pass, a few requests at a time. Therefore, a client with
occasional requests is served in the next pass, however much other clients send. The algorithm is the deficit round robin of
FQ-CoDel, with new flows first (RFC 8290, section 4).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ..base.limits import MAX_FRAMES_PER_TURN

# Minimum cost of a request for the loop, including its task, its decision and its response in later passes. It applies if time
# does not advance (simulation), and to requests whose cost arises later.
FRAME_US: Final = 40
PASS_US: Final = 10_000  # work per pass: as long as a slice (`slices`)
LEAST_WAITING_US: Final = 5_000  # the part of a pass that is reserved for connections in line
# Until this much of a pass is used, a connection whose bytes have just arrived is served one request: to keep the bytes for a
# later pass would cost a sixth of a request. A thousand connections with one request each do not exceed this yet.
ARRIVED_US: Final = 25_000
LEAST_FRAMES: Final = 16  # of one connection in line at a time: fewer would cost too much per request
LARGE_FRAME_BYTES: Final = 4096  # a request of at least this size may take long: the clock is read after it
UNNOTICED_US: Final = 2_000  # a pass that has used less is not separated from the next one, which saves a callback


class FairReads:
    """One per broker, for all its ports. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._used_us = 0.0
        self._line: deque[Callable[[], None]] = deque()  # at most one entry of each connection
        self._line_frames = MAX_FRAMES_PER_TURN  # of each connection in line, in this pass
        self._is_scheduled = False

    def __len__(self) -> int:
        """Connections that wait in line."""
        return len(self._line)

    def frames(self, *, in_line: bool) -> int:
        """The number of requests that this connection may have served now; 0: it must wait in line."""
        if self._used_us < UNNOTICED_US and not in_line:
            return MAX_FRAMES_PER_TURN  # the usual case
        left = int(PASS_US - self._used_us) // FRAME_US
        if in_line:
            return max(1, min(self._line_frames, left))
        if left > 0:
            return min(MAX_FRAMES_PER_TURN, left)
        return 1 if self._used_us < ARRIVED_US else 0

    def used(self, frames: int, elapsed_us: float) -> None:
        least_us = frames * FRAME_US
        self._used_us += elapsed_us if elapsed_us > least_us else least_us
        if self._used_us >= UNNOTICED_US:
            self._schedule()

    def wait(self, read: Callable[[], None]) -> None:
        """Call `read` in a later pass, behind the connections that wait already. `read` handles its own errors."""
        self._line.append(read)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        """The line gets the rest of the budget that new arrivals have not used; then a new budget begins."""
        self._is_scheduled = False
        line = self._line
        self._used_us = min(self._used_us, PASS_US - LEAST_WAITING_US)
        if line:
            share = int(PASS_US - self._used_us) // FRAME_US // len(line)
            self._line_frames = max(LEAST_FRAMES, min(MAX_FRAMES_PER_TURN, share))
        for _ in range(len(line)):
            if self._used_us >= PASS_US:
                break
            line.popleft()()
        self._used_us = 0.0
        if line:
            self._schedule()

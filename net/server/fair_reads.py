"""Whose requests are taken up in a pass of the loop, so that no crowd of connections makes a pass long.

A pass has a budget of work. Connections whose bytes have just arrived are served at once from it; one that has sent more than
its share waits in line and goes on in a later pass, a few requests at a time. So who asks one thing now and then is served in
the next pass, whatever others have sent: it is the deficit round robin with new flows first of FQ-CoDel (RFC 8290, section 4).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ..base.limits import MAX_FRAMES_PER_TURN

# What a request costs the loop at least, with its task, its decision and its answer in later passes. It counts where time stands
# still (simulation), and for requests whose cost comes later.
FRAME_US: Final = 40
PASS_US: Final = 10_000  # of work that a pass takes up: as long as a slice (`slices`)
LEAST_WAITING_US: Final = 5_000  # of it, for those who wait in line, whatever the others ask
# A connection with bytes that have just arrived is served one request until so much is used: to keep its bytes for a later pass
# costs a sixth of a request. A thousand connections with one request each are no crowd yet.
ARRIVED_US: Final = 25_000
LEAST_FRAMES: Final = 16  # at a time of one connection in line: less would cost too much for each request
LARGE_FRAME_BYTES: Final = 4096  # from here on a single request may take long: the time is looked at after it
UNNOTICED_US: Final = 2_000  # a pass that has used less need not be told from the next one, which saves a callback


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
        """How many requests this connection may bring now; 0: it must wait in line."""
        if self._used_us < UNNOTICED_US and not in_line:
            return MAX_FRAMES_PER_TURN  # nearly always
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
        """Call `read` in a later pass, behind those who wait already. It handles its own errors."""
        self._line.append(read)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        """The line has what the connections that were served at once have left; then a new budget begins."""
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

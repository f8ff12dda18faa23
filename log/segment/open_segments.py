"""A bound on the sealed segments that are open at once, over all partitions of a broker.

An open one costs a descriptor and two mappings, of which a process has some 65,000. Threads that truncate logs forget segments
while the owner of all logs uses others. A segment is released under the lock, so that one that was forgotten can be opened again
without being released behind that.
"""

import sys
from contextlib import AbstractContextManager, nullcontext

from .segment import LogSegment

MAX_OPEN_SEALED_SEGMENTS = 500  # a process that may open few files passes fewer


class OpenSegments:
    """The sealed segments that were read last; the others are released."""

    def __init__(
        self, limit: int = MAX_OPEN_SEALED_SEGMENTS, *, lock: AbstractContextManager[object] | None = None
    ) -> None:
        """`lock`: where several threads work on the logs. It is never held while a disk is waited for."""
        self._limit = limit
        self._segments: dict[LogSegment, None] = {}  # in the order of their last use
        self._lock = lock or nullcontext()

    def used(self, segment: LogSegment) -> None:
        with self._lock:
            self._segments.pop(segment, None)
            self._segments[segment] = None
            while len(self._segments) > self._limit:
                oldest = next(iter(self._segments))
                del self._segments[oldest]
                if not oldest.is_active:
                    oldest.release()

    def leave_to_their_logs(self) -> None:
        """Release none from now on: their logs do so when they are closed, each in a thread of its own."""
        with self._lock:
            self._limit = sys.maxsize

    def forget(self, segment: LogSegment) -> None:
        with self._lock:
            self._segments.pop(segment, None)

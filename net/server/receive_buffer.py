"""The receiving side of a server's connection: reads frames from one buffer that all connections share, as long as they fit.

Data is read into the shared buffer and handled before the next pass of the loop, so a connection that is idle, or sends only
complete small frames, has no memory of its own. An incomplete frame moves to a buffer of its own, which grows with the data that
arrives and counts in the broker's memory budget.
"""

import mmap
from typing import Final

from ..wire.protocol.framing import SIZE_BYTES, FrameReader
from .memory_budget import MemoryBudget

SHARED_BYTES: Final = 256 * 1024  # one read of a busy connection; it stays in the processor's cache
TIGHT_READ_BYTES: Final = 4 * 1024  # The size of a read while memory is short, since its data may have to be kept.
# A frame up to this size gets its whole buffer at once, since most requests are smaller. While memory is short, only data that
# has arrived takes memory.
AT_ONCE_BYTES: Final = 1024 * 1024
# A buffer up to this size is kept while its connection is busy: a new one for each frame would cost a mapping and page faults.
KEPT_BYTES: Final = 8 * 1024 * 1024
_MAPPED_FROM_BYTES: Final = 1024 * 1024


class SharedMemory:
    """The buffer and the budget that the connections of a server share."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.buffer = bytearray(SHARED_BYTES)
        self.view = memoryview(self.buffer)


class ReceiveBuffer(FrameReader):
    """A FrameReader whose frames are valid until the next pass of the loop: call `settle` before it."""

    __slots__ = ("_granted_bytes", "_shared", "own_bytes", "wanted_bytes")

    def __init__(self, max_frame_bytes: int, shared: SharedMemory) -> None:
        self.max_frame_bytes = max_frame_bytes
        # The usable part of the connection's own buffer, which is taken from the budget; 0: it uses the shared buffer.
        self.own_bytes = 0  # own_bytes <= _capacity
        self.wanted_bytes = 0  # The memory that `settle` could not take.
        self._granted_bytes = 0  # Taken from the budget for this connection while it waited.
        self._shared = shared
        self._needed = 0
        self._filled = False
        self._use_shared()

    def get_buffer(self) -> memoryview:
        if not self.own_bytes:
            return self._view[:TIGHT_READ_BYTES] if self._shared.budget.is_tight else self._view
        kept = self._end - self._start
        if not kept:
            self._start = self._end = 0
        elif self._start + max(self._needed, SIZE_BYTES) > self.own_bytes or self._end >= self.own_bytes:
            self._view[:kept] = self._view[self._start : self._end]
            self._start, self._end = 0, kept
        assert self._end < self.own_bytes, "settle() makes room"
        return self._view[self._end : self.own_bytes]

    def settle(self) -> bool:
        """Release the shared buffer for the others. False if the connection must wait for `wanted_bytes` of memory."""
        kept = self._end - self._start
        if not kept:
            if not self.own_bytes:
                self._start = self._end = 0
            elif not SHARED_BYTES < self.own_bytes <= KEPT_BYTES or self._shared.budget.is_tight:
                self.release()
            return True
        if kept < self.own_bytes:  # There is room to receive into.
            return True
        needed = max(self._needed, kept + 1)
        is_generous = needed <= AT_ONCE_BYTES and not self._shared.budget.is_tight
        capacity = needed if is_generous else min(needed, 2 * kept)
        missing = capacity - self.own_bytes - self._granted_bytes
        if missing > 0 and not self._shared.budget.take(missing):
            self.wanted_bytes = missing
            if not self.own_bytes:
                self._shared.budget.hold(kept)
                self.wanted_bytes -= kept
                self._move(kept, needed)
            return False
        self._granted_bytes = max(0, -missing)
        if not self.own_bytes or capacity > self._capacity or self._start:
            self._move(capacity, needed)
        self.own_bytes = capacity
        return True

    def granted(self, size_bytes: int) -> None:
        """This part of the budget belongs to the connection now."""
        self._granted_bytes += size_bytes
        self.wanted_bytes = 0

    def shrink(self) -> None:
        """Give the memory back if it holds no data."""
        if self._start == self._end:
            self.release()

    def release(self) -> None:
        """Give all memory back, and drop the data in it."""
        owned, self.own_bytes = self.own_bytes + self._granted_bytes, 0
        if isinstance(self._buffer, mmap.mmap):
            self._buffer.madvise(mmap.MADV_DONTNEED)  # An unanswered request may still have views of it.
        self._granted_bytes = self.wanted_bytes = self._needed = 0
        self._use_shared()
        if owned:
            self._shared.budget.give_back(owned)

    def _use_shared(self) -> None:
        self._buffer = self._shared.buffer
        self._view = self._shared.view
        self._capacity = SHARED_BYTES
        self._start = self._end = 0

    def _move(self, usable_bytes: int, needed_bytes: int) -> None:
        """Continue in a buffer of the connection's own, whose usable part has been taken from the budget."""
        buffer = _buffer_of(usable_bytes, needed_bytes)
        view = memoryview(buffer)
        kept = self._end - self._start
        view[:kept] = self._view[self._start : self._end]
        self._start, self._end = 0, kept
        self._buffer, self._view, self._capacity = buffer, view, len(view)
        self.own_bytes = usable_bytes


def _buffer_of(usable_bytes: int, needed_bytes: int) -> bytearray | mmap.mmap:
    """A large buffer has its whole size at once, so that it is never copied when it grows: its pages use no memory until data is
    written to them."""
    if needed_bytes >= _MAPPED_FROM_BYTES:
        try:
            return mmap.mmap(-1, needed_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:  # The system does not overcommit memory (vm.overcommit_memory=2).
            pass
    return bytearray(usable_bytes)

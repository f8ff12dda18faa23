"""`Ledger`: which records of one partition are being handled, and up to where all of them are done. Pure.

Records end in any order, and a commit covers all records before its offset. So the offset that may be committed is the one of the
first record that is not done; if all are done, it is the one after the last. Offsets that do not exist (compaction, markers of
transactions) are no obstacle: only offsets that were begun count. Every call is O(1), spread over all of them.
"""

from collections import deque


class Ledger:
    def __init__(self) -> None:
        self._open: deque[int] = deque()  # begun, in ascending order; the first is not done
        self._done: set[int] = set()  # of `_open`: those behind one that is not done
        self._next = -1  # the offset after the last one begun
        self.committed: int | None = None  # what the group has confirmed

    def begin(self, offset: int) -> None:
        assert self.follows(offset), (offset, self._next)
        self._open.append(offset)
        self._next = offset + 1

    def follows(self, offset: int) -> bool:
        """Whether this record comes after all that were begun. If not, someone has moved the group back."""
        return offset >= self._next

    def is_open(self, offset: int) -> bool:
        return bool(self._open) and self._open[0] <= offset < self._next and offset not in self._done

    def done(self, offset: int) -> None:
        """The record is handled; never again."""
        self._done.add(offset)
        while self._open and self._open[0] in self._done:
            self._done.remove(self._open.popleft())

    @property
    def committable(self) -> int | None:
        """The offset to commit, of the next record to read; None as long as nothing was begun."""
        if self._open:
            return self._open[0]
        return self._next if self._next >= 0 else None

    @property
    def open_count(self) -> int:
        """Records that were begun and are not done."""
        return len(self._open) - len(self._done)

"""The start offset of each leader epoch, on which truncation after a change of leader is based (KIP-101, KIP-279).

Pure. `PartitionLog` stores it in the file `leader-epoch-checkpoint`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochCache:
    """Entries whose epochs and start offsets both rise strictly."""

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries: list[EpochStart] = []
        self.latest_epoch = UNDEFINED_EPOCH  # of the last entry
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` began at `start_offset`; False when that changes nothing.

        An epoch never starts twice, and an epoch older than the latest changes nothing. Existing entries at or after the start
        offset belong to epochs whose records were never written, or were truncated.
        """
        if epoch <= self.latest_epoch:
            return False
        self.truncate_from_end(start_offset)
        self._entries.append(EpochStart(epoch, start_offset))
        self.latest_epoch = epoch
        return True

    def end_offset_for(self, epoch: int, *, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch that is not above `epoch`, and where it ended (exclusive); KIP-279.

        (UNDEFINED_EPOCH, UNDEFINED_OFFSET) if this log cannot tell: it has no epochs, or no epoch as late as the given one.
        """
        latest_epoch = self.latest_epoch
        if epoch < 0 or epoch > latest_epoch:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == latest_epoch:
            return epoch, log_end_offset
        following = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        end_offset = self._entries[following].start_offset
        if following == 0:
            # All records of that epoch lie before the first known epoch (retention removed them): it ended before that one.
            return epoch, end_offset
        return self._entries[following - 1].epoch, end_offset

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`."""
        following = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[following - 1].epoch if following else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Remove the epochs that began at or after `end_offset`; False when there are none."""
        before = len(self._entries)
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
        self.latest_epoch = self._entries[-1].epoch if self._entries else UNDEFINED_EPOCH
        return len(self._entries) != before

    def truncate_from_start(self, start_offset: int) -> bool:
        """Remove the epochs that ended before the record that precedes `start_offset`; False when there are none.

        The epoch of that record stays, with the offset at which it began: without it, a replica whose own log ends at
        `start_offset` with records of another epoch could not be told that they differ, and would keep what it derived from them.
        """
        preceding = bisect_left(self._entries, start_offset, key=lambda entry: entry.start_offset) - 1
        if preceding <= 0:
            return False
        del self._entries[:preceding]
        return True

    def clear(self) -> None:
        self._entries.clear()
        self.latest_epoch = UNDEFINED_EPOCH

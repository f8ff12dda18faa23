"""The times at which the records of one replica were appended, sparse and in bounded memory, for lag in seconds. Pure.

A record's timestamp is set by its producer (CreateTime) and may be wrong, so a replica notes its own clock: (offset, time) means
that no record from this offset on was appended before this time. An entry is made at most every half second, and old entries
are merged as they age. The returned time is never later than the true one, and earlier by less than

    max(RESOLUTION_MS, age / AGE_SHARE)

A follower that keeps up appends what its leader has just appended, so its clock is as good; one that catches up takes the
batches' timestamps, and such times are *estimates*, as are those that a start after a crash makes up (saved_append_times).
"""

import struct
from array import array
from bisect import bisect_right
from dataclasses import dataclass

from ..vocabulary.errors import CorruptRecordError

RESOLUTION_MS = 500
AGE_SHARE = 125  # an entry may be wrong by 0.8 % of its age
MAX_ENTRIES = 2_048  # 32 KiB; a log that is written to all the time needs fewer for three weeks
_MERGE_AFTER = 128  # new entries between two merges: each is a walk over all entries
_HEADER = struct.Struct(">Iqq")  # number of entries, end offset, first exact offset
_ENTRY = struct.Struct(">qq")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendTime:
    """The append time of a record in ms, by the replica's clock. Not `is_exact`: from timestamps of producers or files."""

    time_ms: int
    is_exact: bool


class AppendTimes:
    """Offsets of entries increase strictly, times never decrease. `end_offset`: the end of the covered range, exclusive."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._times_ms = array("q")
        self._merged_at = 0  # entries there were after the last merge
        self._next_ms = -1  # from this time on an append makes an entry
        self.exact_from_offset = 0
        self.end_offset = 0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last_ms(self) -> int:
        """-1 when nothing is known."""
        return self._times_ms[-1] if self._times_ms else -1

    def note(self, first_offset: int, end_offset: int, time_ms: int) -> None:
        """Records of offsets [first_offset, end_offset) are appended now. On the hot path: mostly one comparison."""
        self.end_offset = end_offset
        if time_ms >= self._next_ms:
            self._offsets.append(first_offset)
            self._times_ms.append(time_ms)
            self._next_ms = time_ms + RESOLUTION_MS
            if len(self._offsets) >= self._merged_at + _MERGE_AFTER:
                self._merge(time_ms)

    def note_estimate(self, first_offset: int, end_offset: int, time_ms: int) -> None:
        """They were appended some time ago, as far as one can tell; what was noted before is older."""
        self.note(first_offset, end_offset, max(time_ms, self.last_ms))
        self.exact_from_offset = end_offset

    def time_of(self, offset: int) -> AppendTime | None:
        """Of the record at this offset; None when it is not in the log as far as is noted here, or nothing is."""
        if not self._offsets or offset >= self.end_offset:
            return None
        number = max(bisect_right(self._offsets, offset) - 1, 0)
        # Before the first entry: at that time or earlier, so it is an estimate.
        is_exact = offset >= max(self.exact_from_offset, self._offsets[0])
        return AppendTime(time_ms=self._times_ms[number], is_exact=is_exact)

    def truncate_to(self, end_offset: int) -> None:
        """The log ends there now."""
        keep = bisect_right(self._offsets, end_offset - 1)
        del self._offsets[keep:], self._times_ms[keep:]
        self.end_offset = min(self.end_offset, end_offset)
        self.exact_from_offset = min(self.exact_from_offset, end_offset)
        self._merged_at = min(self._merged_at, keep)
        # What is appended next is younger than what was cut off: it needs an entry of its own.
        self._next_ms = self.last_ms

    def forget_before(self, start_offset: int) -> None:
        """The log begins there now. The entry that reaches into it stays."""
        gone = max(bisect_right(self._offsets, start_offset) - 1, 0)
        del self._offsets[:gone], self._times_ms[:gone]
        self._merged_at = max(self._merged_at - gone, 0)

    def _merge(self, now_ms: int) -> None:
        """Drop entries that lie within what their age allows of the one before."""
        share = AGE_SHARE
        self._merge_by(now_ms, share)
        while len(self._offsets) > MAX_ENTRIES:
            share = share * 3 // 4  # a log of years: the limit goes before the precision of what is old
            self._merge_by(now_ms, share)
        self._merged_at = len(self._offsets)

    def _merge_by(self, now_ms: int, share: int) -> None:
        offsets, times_ms = self._offsets, self._times_ms
        kept_offsets, kept_times_ms = array("q", offsets[:1]), array("q", times_ms[:1])
        for number in range(1, len(offsets)):
            # The records of this entry are as young as the next one, at most; the last one is still growing.
            youngest_ms = times_ms[number + 1] if number + 1 < len(offsets) else now_ms
            if number + 1 == len(offsets) or youngest_ms - kept_times_ms[-1] > max(
                RESOLUTION_MS, (now_ms - youngest_ms) // share
            ):
                kept_offsets.append(offsets[number])
                kept_times_ms.append(times_ms[number])
        self._offsets, self._times_ms = kept_offsets, kept_times_ms

    # --- as a file ---

    def to_bytes(self) -> bytes:
        head = _HEADER.pack(len(self._offsets), self.end_offset, self.exact_from_offset)
        pairs = zip(self._offsets, self._times_ms, strict=True)
        return head + b"".join(_ENTRY.pack(offset, time_ms) for offset, time_ms in pairs)

    @classmethod
    def from_bytes(cls, data: bytes) -> "AppendTimes":
        """Raises CorruptRecordError for what `to_bytes` cannot have made."""
        found = cls()
        try:
            count, found.end_offset, found.exact_from_offset = _HEADER.unpack_from(data)
            entries = list(_ENTRY.iter_unpack(data[_HEADER.size :]))
        except struct.error as error:
            raise CorruptRecordError(f"append times are cut: {error}") from error
        if len(entries) != count:
            raise CorruptRecordError(f"append times have {len(entries)} entries and claim {count}")
        found._offsets = array("q", [offset for offset, _ in entries])
        found._times_ms = array("q", [time_ms for _, time_ms in entries])
        found._merged_at = count
        found._next_ms = found.last_ms + RESOLUTION_MS if count else -1
        return found

"""Which rows of a table have been read, and at which position of the log: what joins the snapshot and the stream.

A snapshot that sees every transaction before LSN `c` is read in ranges of keys. After a crash, the rest is read from a newer
snapshot, at a larger LSN. So each range has the LSN of the snapshot that it was read from, and a change counts if its transaction
commits at or after the LSN of the range that its key is in: earlier changes are in the snapshot already. There is no gap, no
overlap, and no chunk is read twice.

Keys are compared as the server sorts them: integers as integers, other types by the UTF-8 bytes of their text.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

KeyText = tuple[str, ...]  # the values of the key's columns, as the server writes them
Sortable = tuple[int | bytes, ...]
INTEGERS: Final = ("int2", "int4", "int8", "oid")
_TEXTS: Final = ("text", "varchar")
NATIVE: Final = (*INTEGERS, "uuid")  # the server's own order is the order used here, so its index serves ranges


def goes_on(types: Sequence[str], after: Sequence[str]) -> bool:
    """Whether keys of the second types are written and sorted as those of the first ones: a topic may have both."""
    return len(types) == len(after) and all(
        now == was or any(now in alike and was in alike for alike in (INTEGERS, _TEXTS))
        for was, now in zip(types, after, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOrder:
    """How the keys of a table compare."""

    type_names: tuple[str, ...]  # of the key's columns

    def sortable(self, key: KeyText) -> Sortable:
        return tuple(
            int(text) if name in INTEGERS else text.encode() for name, text in zip(self.type_names, key, strict=True)
        )

    @property
    def has_index(self) -> bool:
        """Whether ranges of the first column are found by the primary key's index."""
        return self.type_names[0] in NATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Keys from `lower` (exclusive) to `upper` (inclusive); None: no bound. Read at `lsn`."""

    lower: KeyText | None
    upper: KeyText | None
    lsn: int = 0


class Coverage:
    """The ranges of one table that have been read, in ascending order, disjoint; neighbours with the same LSN are one."""

    def __init__(self, order: KeyOrder, ranges: Sequence[Range] = ()) -> None:
        self._order = order
        self._ranges = list(ranges)
        self._lowers = [self._bound(found.lower) for found in self._ranges if found.lower is not None]

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(self._ranges)

    @property
    def is_complete(self) -> bool:
        return not self.gaps()

    @property
    def newest_lsn(self) -> int:
        return max((found.lsn for found in self._ranges), default=0)

    def add(self, new: Range) -> Self:
        """`new` was read: it overlaps no range, and begins or ends where the gap does, or inside of it."""
        after = [found for found in self._ranges if self._is_before(new, found)]
        before = self._ranges[: len(self._ranges) - len(after)]
        self._ranges = []
        for found in (*before, new, *after):
            last = self._ranges[-1] if self._ranges else None
            if last is not None and last.upper == found.lower and last.upper is not None and last.lsn == found.lsn:
                self._ranges[-1] = replace(last, upper=found.upper)
            else:
                self._ranges.append(found)
        self._lowers = [self._bound(found.lower) for found in self._ranges if found.lower is not None]
        return self

    def gaps(self) -> tuple[Range, ...]:
        """The ranges that are still to be read."""
        if not self._ranges:
            return (Range(lower=None, upper=None),)
        found = []
        if self._ranges[0].lower is not None:
            found.append(Range(lower=None, upper=self._ranges[0].lower))
        for left, right in zip(self._ranges, self._ranges[1:], strict=False):
            if left.upper != right.lower:
                found.append(Range(lower=left.upper, upper=right.lower))
        if self._ranges[-1].upper is not None:
            found.append(Range(lower=self._ranges[-1].upper, upper=None))
        return tuple(found)

    def lsn_of(self, key: KeyText) -> int:
        """At which LSN this key was read. The coverage is complete."""
        sortable = self._bound(key)
        number = bisect_left(self._lowers, sortable)  # lowers are exclusive: the range of the last one below the key
        if self._ranges[0].lower is None:
            return self._ranges[number].lsn
        return self._ranges[number - 1].lsn

    def _bound(self, key: KeyText) -> Sortable:
        return self._order.sortable(key)

    def _is_before(self, new: Range, other: Range) -> bool:
        """Whether `new` lies before `other`; they do not overlap."""
        if other.lower is None or new.upper is None:
            return False
        return self._bound(new.upper) <= self._bound(other.lower)

"""The cleaned segment that a log has promised to accept, if there is one: after the offer, a start would swap it in.

Between the offer and its fulfilment, another thread flushes the folder while the log continues. A truncation withdraws the offer
first; retention waits until it is fulfilled or withdrawn. Withdrawing flushes the folder, so it is done in the folder's thread,
where truncations are done too: the owner of the log only gives the offer up.
"""

from collections.abc import Callable

from ..segment.segment import LogSegment, segment_holding
from .segment_swap import SegmentSwap


class OfferedSwap:
    def __init__(self, segments: list[LogSegment]) -> None:
        """`segments` are the log's own, by base offset; the last one is active."""
        self._segments = segments
        self._offered: SegmentSwap | None = None
        self._is_given_up = False  # of `_offered`; set by the owner of the log alone

    @property
    def is_outstanding(self) -> bool:
        """Does the folder contain files of an offer? Until they are gone, another cleaning would mix its files with them."""
        return self._offered is not None

    def offer(self, swap: SegmentSwap) -> bool:
        """After the next flush of the folder, a start swaps the cleaned segment in. False if the log has lost one of the segments
        that it replaces, or if the previous offer was not withdrawn yet."""
        if self._place_of(swap) is None or self.is_outstanding:
            return False
        self._is_given_up = False
        self._offered = swap  # first, so that an offer that fails half-way is withdrawn
        swap.offer()
        return True

    def fulfil(
        self, swap: SegmentSwap, *, retire: Callable[[LogSegment], None], opened: Callable[[int], LogSegment]
    ) -> bool:
        """Replace the others by the cleaned segment, `opened` by its base offset. False if it was withdrawn."""
        number = self._place_of(swap)
        if self._offered is not swap or self._is_given_up or number is None:
            return False
        self._offered = None  # no way back from here: a start completes a swap that fails half-way
        for segment in swap.replaced:
            retire(segment)
        swap.take()
        cleaned = opened(swap.replaced[0].base_offset)
        cleaned.next_offset = swap.replaced[-1].next_offset
        self._segments[number : number + len(swap.replaced)] = [cleaned]
        return True

    def give_up(self) -> None:
        """The offer will not be fulfilled: the next `withdraw_given_up` withdraws it."""
        self._is_given_up = True

    def withdraw_given_up(self) -> None:
        """In the folder's thread. If the disk refuses, the next call tries again."""
        if self._is_given_up:
            self.withdraw()

    def withdraw(self) -> None:
        """In the folder's thread, or if no thread works on the log. Raises StorageError; then the offer stays."""
        if self._offered is not None:
            self._offered.withdraw()
            self._offered = None

    def _place_of(self, swap: SegmentSwap) -> int | None:
        number = segment_holding(self._segments, swap.replaced[0].base_offset)
        found = self._segments[number : number + len(swap.replaced)] if number >= 0 else []
        return number if found == list(swap.replaced) and found[-1] is not self._segments[-1] else None

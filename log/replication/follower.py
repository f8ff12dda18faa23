"""A follower of a partition: what to fetch next, and the effect of a response on its log. Pure: no clock, no I/O, no log.

Truncation depends on leader epochs only, never on the high watermark: the follower sends the epoch of its last record, and if the
logs differ, the leader answers where that epoch ends in its own log (KIP-101, KIP-279, and KIP-595 for the form). A response
counts only for the request that is in flight: a repeated or late one would truncate records that have been replicated since.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from ..format.record_batch import Buffer
from ..vocabulary.errors import ErrorCode
from .effects import NO_LEADER, AppendFetched, LogEffect, StartOver, Truncate

UNDEFINED: Final = -1


class FetchPosition(NamedTuple):
    """The position of a fetch. `sequence` makes every request of this replica unique."""

    leader: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int  # of the record before `offset`; -1 when the log holds none
    sequence: int
    log_start_offset: int  # for the leader, which sends consumers to this replica


class FetchedState(Struct, frozen=True, kw_only=True):
    """The part of every fetch response that describes the log that was read. OFFSET_OUT_OF_RANGE is an `error` here and not
    raised, because its response carries the offsets too; a diverging epoch (KIP-595) comes without records."""

    error: int = ErrorCode.NONE
    high_watermark: int = UNDEFINED
    log_start_offset: int = UNDEFINED
    diverging_epoch: int = UNDEFINED
    diverging_end_offset: int = UNDEFINED


class FetchAnswer(FetchedState, frozen=True, kw_only=True):
    """The response that a follower gets: records from the network."""

    records: Buffer = b""


class FollowerState:
    """Following one leader in one leader epoch."""

    __slots__ = ("_sequences", "in_flight", "leader", "leader_epoch")

    def __init__(self, *, leader: int, leader_epoch: int, sequences: Iterator[int]) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.in_flight: FetchPosition | None = None  # at most one; a newer request makes an older one void
        self._sequences = sequences  # rising, also from one leader epoch to the next

    def next_fetch(self, *, log_start_offset: int, log_end_offset: int, latest_epoch: int) -> FetchPosition | None:
        """None if there is no leader to fetch from."""
        if self.leader == NO_LEADER:
            return None
        sequence = next(self._sequences)
        self.in_flight = FetchPosition(
            self.leader, self.leader_epoch, log_end_offset, latest_epoch, sequence, log_start_offset
        )
        return self.in_flight

    def fetched(
        self,
        position: FetchPosition,
        answer: FetchAnswer,
        *,
        log_start_offset: int,
        log_end_offset: int,
        end_offset_for_epoch: Callable[[int], tuple[int, int]],
    ) -> LogEffect | None:
        """The effect of the answer to `position` on the log; None: no effect (it is stale, or a temporary error)."""
        if not self._is_current(position, log_end_offset):
            return None
        self.in_flight = None
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(answer, log_start_offset, log_end_offset)
        if answer.error != ErrorCode.NONE:
            return None
        if answer.diverging_end_offset != UNDEFINED:
            return Truncate(offset=self._divergence(answer, log_end_offset, end_offset_for_epoch))
        return AppendFetched(
            records=answer.records,
            high_watermark=answer.high_watermark,
            leader_log_start_offset=answer.log_start_offset,
        )

    def _is_current(self, position: FetchPosition, log_end_offset: int) -> bool:
        return position == self.in_flight and position.offset == log_end_offset

    def _out_of_range(self, answer: FetchAnswer, log_start_offset: int, log_end_offset: int) -> LogEffect | None:
        """Before the leader's log start, the follower starts over there. After its log end, the follower may drop its own log
        only if that is empty; otherwise the epochs decide, and a leader that does not know the follower's epoch is not followed:
        data of an in-sync replica is never dropped because of an offset alone."""
        leader_start = answer.log_start_offset
        if leader_start == UNDEFINED:
            return None
        if log_end_offset < leader_start or (log_start_offset == log_end_offset and log_end_offset != leader_start):
            return StartOver(offset=leader_start)
        return None

    def _divergence(
        self, answer: FetchAnswer, log_end_offset: int, end_offset_for_epoch: Callable[[int], tuple[int, int]]
    ) -> int:
        """KIP-279: if the follower does not have the epoch that the leader names, cut to the end of its largest smaller epoch and
        ask again; each round drops at least one epoch, so this ends. If both have the epoch, cut to the smaller end."""
        epoch, end_offset = end_offset_for_epoch(answer.diverging_epoch)
        if epoch == UNDEFINED or end_offset == UNDEFINED:
            return min(answer.diverging_end_offset, log_end_offset)
        if epoch != answer.diverging_epoch:
            return min(end_offset, log_end_offset)
        return min(end_offset, answer.diverging_end_offset, log_end_offset)

    def __str__(self) -> str:
        asked = f" asked {self.in_flight.offset}/e{self.in_flight.last_fetched_epoch}" if self.in_flight else ""
        return f"follower e{self.leader_epoch} of {self.leader}{asked}"

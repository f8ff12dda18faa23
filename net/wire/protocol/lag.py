"""The lag of a reader in one partition, in records and in time, from what the partition's leader answers. Pure.

In time, lag is the age of the oldest record that was not read: how long ago it was appended, whatever timestamp its
producer gave it. It grows while a reader stands still, even on an idle topic, and is 0 when nothing is left to read.

And the messages by which brokers keep copies of each other's history of it.
"""

from dataclasses import dataclass

from barnabas.log.vocabulary.message import Items, Message

from .group_responses import UnreadPartitionResponse

NOTHING_COMMITTED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """`committed` is the next offset to read; -1: nothing is committed, and all that the log has is unread.

    `lag_ms` is -1 where there are unread records and the time of their arrival is not known. `is_estimate`: it stands on what the
    producers' clocks say, because the leader was not there, or not yet up to date, when the record was appended.
    """

    committed: int
    log_start_offset: int
    log_end_offset: int
    lag_ms: int
    is_estimate: bool

    @property
    def lag(self) -> int:
        """Records still to be read."""
        return max(self.log_end_offset - max(self.committed, self.log_start_offset), 0)

    @property
    def lag_seconds(self) -> float | None:
        return None if self.lag_ms < 0 else self.lag_ms / 1000

    @property
    def has_committed(self) -> bool:
        return self.committed >= 0


def lag_behind(committed: int, answer: UnreadPartitionResponse) -> Lag:
    """`answer` must be to a question about this very offset."""
    is_unread = answer.log_end_offset > max(committed, answer.log_start_offset)
    lag_ms = 0
    if is_unread:
        lag_ms = -1 if answer.first_unread_ms < 0 else max(answer.now_ms - answer.first_unread_ms, 0)
    return Lag(
        committed=max(committed, NOTHING_COMMITTED),
        log_start_offset=answer.log_start_offset,
        log_end_offset=answer.log_end_offset,
        lag_ms=lag_ms,
        is_estimate=is_unread and answer.is_estimate,
    )


class GroupLagHistory(Message, frozen=True, kw_only=True):
    """Points of one group, in columns of equal length that are sorted by time: see LagPoint of `group_responses`."""

    group_id: str
    times_ms: Items[int]
    unread_counts: Items[int]
    lags_ms: Items[int]
    topics: Items[str]  # whose partitions the points are about


class GroupLagsRequest(Message, frozen=True, kw_only=True):
    """From broker to broker: keep a copy of what I have measured, and tell what you remember of other groups."""

    kept: Items[GroupLagHistory] = ()
    wanted: Items[str] = ()  # groups


class GroupLagsResponse(Message, frozen=True, kw_only=True):
    groups: Items[GroupLagHistory]  # those of the wanted ones that the broker remembers
    looked_at: int  # the first so many of the wanted ones; the others had no room in the answer

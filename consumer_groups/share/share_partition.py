"""The records of one partition, as one share group sees them: a pure machine on the leader of the partition.

    AVAILABLE --acquire--> ACQUIRED --accept--> ACKNOWLEDGED
        ^                     | | +---reject, gap--> ARCHIVED
        +------release--------+ +--release, lock over, delivered too often--> ARCHIVED

The state is a list of spans without gaps from `start_offset` to `end_offset`: records with the same state, delivery count and
holder are one span, so that memory follows the number of differences, not of records. At most `max_record_locks` offsets lie
between the two ends. `stored` is what a new leader needs; locks are not part of it, because the new leader gives the records out
again. `version` grows with every change of it that must be stored.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.share.errors import InvalidRecordStateError
from barnabas.log.vocabulary.share.messages import (
    AcknowledgedBatch,
    Acknowledgement,
    AcquiredRecords,
    RecordState,
    ShareRange,
)

from .settings import ShareSettings

NO_MEMBER: Final = ""
_FIRST: Final = attrgetter("first_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpan:
    """A batch of the log. Its offsets without records are given out, too: members acknowledge them as gaps."""

    first_offset: int
    last_offset: int
    is_deliverable: bool = True  # False: a control batch, or one of an aborted transaction


@dataclass(slots=True, kw_only=True)
class Span:
    """`member_id` (that the caller chooses) and `deadline_ms` are set exactly while it is ACQUIRED."""

    first_offset: int
    last_offset: int
    state: RecordState
    deliveries: int = 0
    member_id: str = NO_MEMBER
    deadline_ms: int = -1

    def is_like(self, other: "Span") -> bool:
        return (self.state, self.deliveries, self.member_id, self.deadline_ms) == (
            other.state,
            other.deliveries,
            other.member_id,
            other.deadline_ms,
        )

    @property
    def is_final(self) -> bool:
        return self.state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class SharePartition:
    def __init__(self, *, start_offset: int, ranges: Iterable[ShareRange], settings: ShareSettings) -> None:
        """`ranges`: as `stored` gave them; offsets between them are available."""
        self.start_offset = start_offset  # every record before it is acknowledged, archived or deleted
        self.end_offset = start_offset  # the first record that was never given out; >= start_offset
        self.settings = settings
        self.log_start_offset = 0  # the log has dropped everything before it, whatever its state was
        self.version = 0
        self._spans: list[Span] = []  # sorted; they cover start_offset to end_offset - 1
        self._deadline_ms: int | None = None  # not later than the first deadline of a lock
        for item in ranges:
            self._restore(item)
        self._advance()

    def _restore(self, item: ShareRange) -> None:
        if item.last_offset < self.end_offset:
            return
        first = max(item.first_offset, self.end_offset)
        if first > self.end_offset:
            self._append(first - 1, RecordState.AVAILABLE)
        state = RecordState(item.state)
        if state is RecordState.AVAILABLE and item.delivery_count >= self.settings.delivery_count_limit:
            state = RecordState.ARCHIVED  # the limit is lower now
        self._append(item.last_offset, state, item.delivery_count)

    def _append(self, last_offset: int, state: RecordState, delivery_count: int = 0) -> None:
        self._spans.append(
            Span(first_offset=self.end_offset, last_offset=last_offset, state=state, deliveries=delivery_count)
        )
        self.end_offset = last_offset + 1

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def next_fetch_offset(self) -> int:
        """The first record that can be given out, if the log has it."""
        for span in self._spans:
            if span.state is RecordState.AVAILABLE:
                return span.first_offset
        return self.end_offset

    @property
    def has_room(self) -> bool:
        """Whether something can be given out: a record that was released, or a new one."""
        return self.next_fetch_offset < self.end_offset or self._room > 0

    @property
    def _room(self) -> int:
        return self.settings.max_record_locks - (self.end_offset - self.start_offset)

    @property
    def span_count(self) -> int:
        """At least the number of ranges that `stored` returns."""
        return len(self._spans)

    @property
    def acquired_count(self) -> int:
        return sum(
            span.last_offset - span.first_offset + 1 for span in self._spans if span.state is RecordState.ACQUIRED
        )

    def next_deadline_ms(self) -> int | None:
        """When `expire` may have something to do."""
        return self._deadline_ms

    def stored(self) -> tuple[ShareRange, ...]:
        """What a new leader needs, from `start_offset` on. A locked record counts as delivered, and is available to it."""
        found: list[ShareRange] = []
        for span in self._spans:
            state = RecordState.AVAILABLE if span.state is RecordState.ACQUIRED else span.state
            last = found[-1] if found else None
            if last is not None and (last.state, last.delivery_count) == (state, span.deliveries):
                first_offset = found.pop().first_offset
            else:
                first_offset = span.first_offset
            found.append(
                ShareRange(
                    first_offset=first_offset,
                    last_offset=span.last_offset,
                    state=int(state),
                    delivery_count=span.deliveries,
                )
            )
        return tuple(found)

    # --- giving out ---------------------------------------------------------------------------------------------------

    def acquire(
        self, member_id: str, batches: Sequence[BatchSpan], *, max_records: int, now_ms: int, is_strict: bool = False
    ) -> list[AcquiredRecords]:
        """Lock records of these batches for the member. The batches follow each other in the log, and the first one holds
        `next_fetch_offset` or lies behind it: offsets that are left out are not in the log any more.

        At most `max_records`, rounded up to a whole batch unless `is_strict`.
        """
        assert member_id != NO_MEMBER
        if not batches:
            return []
        deadline_ms = now_ms + self.settings.record_lock_duration_ms
        found: list[AcquiredRecords] = []
        count = 0
        cursor = self.next_fetch_offset
        for batch in batches:
            if count >= max_records:
                break
            first, last = max(cursor, batch.first_offset), batch.last_offset
            if last < first:
                continue
            self._archive_missing(cursor, first - 1)
            if not batch.is_deliverable:
                self._archive_missing(first, last)
            else:
                most = max_records - count if is_strict else last - first + 1
                taken = self._lock(member_id, first, last, most, deadline_ms)
                count += sum(item.last_offset - item.first_offset + 1 for item in taken)
                found += taken
            cursor = last + 1
            if self.end_offset < cursor:
                break  # no room for more
        if found:
            self._deadline_ms = deadline_ms if self._deadline_ms is None else min(self._deadline_ms, deadline_ms)
        self._advance()
        return _joined(found)

    def _lock(self, member_id: str, first: int, last: int, most: int, deadline_ms: int) -> list[AcquiredRecords]:
        self._extend(min(last, self.end_offset + self._room - 1))
        found: list[AcquiredRecords] = []
        for span in self._within(first, min(last, self.end_offset - 1)):
            if span.state is not RecordState.AVAILABLE or most <= 0:
                continue
            if span.last_offset - span.first_offset + 1 > most:
                self._split(span.first_offset + most)
            most -= span.last_offset - span.first_offset + 1
            span.state, span.member_id, span.deadline_ms = RecordState.ACQUIRED, member_id, deadline_ms
            span.deliveries += 1
            found.append(
                AcquiredRecords(
                    first_offset=span.first_offset, last_offset=span.last_offset, delivery_count=span.deliveries
                )
            )
        return found

    def _archive_missing(self, first: int, last: int) -> None:
        """Offsets with nothing to deliver: those that no member holds end here, even if there is no room for more."""
        if last < first:
            return
        self._extend(last)
        for span in self._within(first, last):
            if span.state is RecordState.AVAILABLE:
                self._end(span, RecordState.ARCHIVED)
        if self._spans[0].is_final:
            self._advance()  # only then: thousands of control batches behind a locked record are no reason to walk all spans

    def _extend(self, last_offset: int) -> None:
        if last_offset >= self.end_offset:
            self._append(last_offset, RecordState.AVAILABLE)

    # --- acknowledging ------------------------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgedBatch], now_ms: int) -> None:
        """All of them or none. Offsets that the log has dropped are passed over.

        Raises InvalidRequestError, and InvalidRecordStateError if the member does not hold a record (any more).
        """
        before = -1
        for batch in batches:
            _check_batch(batch, before)
            before = batch.last_offset
            self._check_held(member_id, batch)
        for batch in batches:
            for first, last, kind in _runs(batch):
                for span in self._within(max(first, self.start_offset), last):
                    self._settle(span, kind, now_ms)
        self._advance()

    def _check_held(self, member_id: str, batch: AcknowledgedBatch) -> None:
        if batch.last_offset >= self.end_offset:
            raise InvalidRecordStateError(
                f"record {batch.last_offset} was not given out: acknowledge what was received"
            )
        first = max(batch.first_offset, self.log_start_offset)
        if first <= min(batch.last_offset, self.start_offset - 1):
            raise InvalidRecordStateError(f"the member does not hold the lock of record {first}: it is acknowledged")
        for position in range(self._position(max(batch.first_offset, self.start_offset)), len(self._spans)):
            span = self._spans[position]
            if span.first_offset > batch.last_offset:
                return
            if span.state is not RecordState.ACQUIRED or span.member_id != member_id:
                offset = max(span.first_offset, batch.first_offset)
                raise InvalidRecordStateError(
                    f"the member does not hold the lock of record {offset}: it is over, or the record is acknowledged"
                )

    def _settle(self, span: Span, kind: int, now_ms: int) -> None:
        match kind:
            case Acknowledgement.ACCEPT:
                self._end(span, RecordState.ACKNOWLEDGED)
            case Acknowledgement.RELEASE:
                self._release(span)
            case Acknowledgement.RENEW:
                span.deadline_ms = now_ms + self.settings.record_lock_duration_ms
            case _:
                self._end(span, RecordState.ARCHIVED)

    def _end(self, span: Span, state: RecordState) -> None:
        span.state, span.member_id, span.deadline_ms = state, NO_MEMBER, -1
        self.version += 1

    def _release(self, span: Span) -> None:
        is_last = span.deliveries >= self.settings.delivery_count_limit
        self._end(span, RecordState.ARCHIVED if is_last else RecordState.AVAILABLE)

    # --- releasing ----------------------------------------------------------------------------------------------------

    def release_member(self, member_id: str) -> bool:
        """The member has left. Return whether records are available again, or archived."""
        held = [span for span in self._spans if span.state is RecordState.ACQUIRED and span.member_id == member_id]
        for span in held:
            self._release(span)
        self._advance()
        return bool(held)

    def expire(self, now_ms: int) -> bool:
        """End the locks that are over. Return whether there were any."""
        if self._deadline_ms is None or now_ms < self._deadline_ms:
            return False
        held = [span for span in self._spans if span.state is RecordState.ACQUIRED]
        expired = [span for span in held if span.deadline_ms <= now_ms]
        for span in expired:
            self._release(span)
        self._deadline_ms = min((span.deadline_ms for span in held if span.deadline_ms >= 0), default=None)
        self._advance()
        return bool(expired)

    def log_begins_at(self, log_start_offset: int) -> None:
        """Records before it were deleted, also those that a member holds."""
        self.log_start_offset = max(self.log_start_offset, log_start_offset)
        if log_start_offset <= self.start_offset:
            return
        if log_start_offset >= self.end_offset:
            self._spans.clear()
            self.end_offset = log_start_offset
        else:
            self._split(log_start_offset)
            del self._spans[: self._position(log_start_offset)]
        self.start_offset = log_start_offset
        self.version += 1
        self._advance()

    def log_ends_at(self, log_end_offset: int) -> None:
        """The log has lost records (an unclean election): what is written at their offsets is new."""
        if log_end_offset >= self.end_offset:
            return
        self._split(log_end_offset)
        del self._spans[self._position(log_end_offset) :]
        self.end_offset = log_end_offset
        self.start_offset = min(self.start_offset, log_end_offset)
        self.version += 1

    def restate(self) -> None:
        """Have the state stored again, though nothing has changed: the coordinator refuses it if it has another one by now."""
        self.version += 1

    # --- spans --------------------------------------------------------------------------------------------------------

    def _position(self, offset: int) -> int:
        """Of the span that holds the offset, or of the next one."""
        position = bisect_right(self._spans, offset, key=_FIRST)
        if position and self._spans[position - 1].last_offset >= offset:
            return position - 1
        return position

    def _split(self, offset: int) -> None:
        """Let a span begin at the offset, if one holds it."""
        position = self._position(offset)
        if position >= len(self._spans):
            return
        span = self._spans[position]
        if span.first_offset >= offset:
            return
        rest = Span(
            first_offset=offset,
            last_offset=span.last_offset,
            state=span.state,
            deliveries=span.deliveries,
            member_id=span.member_id,
            deadline_ms=span.deadline_ms,
        )
        span.last_offset = offset - 1
        self._spans.insert(position + 1, rest)

    def _within(self, first: int, last: int) -> list[Span]:
        """The spans that hold exactly these offsets."""
        if last < first:
            return []
        self._split(first)
        self._split(last + 1)
        return self._spans[self._position(first) : self._position(last + 1)]

    def _advance(self) -> None:
        """Join what has become alike, and drop what is final from the front."""
        dropped = 0
        for span in self._spans:
            if not span.is_final:
                break
            dropped += 1
        kept: list[Span] = []
        for span in self._spans[dropped:]:
            if kept and kept[-1].is_like(span):
                kept[-1].last_offset = span.last_offset
            else:
                kept.append(span)
        self._spans = kept
        self.start_offset = kept[0].first_offset if kept else self.end_offset
        assert not kept or kept[-1].last_offset == self.end_offset - 1


def _check_batch(batch: AcknowledgedBatch, before: int) -> None:
    count = batch.last_offset - batch.first_offset + 1
    if batch.first_offset < 0 or count < 1:
        raise InvalidRequestError(f"offsets {batch.first_offset} to {batch.last_offset} are no batch")
    if batch.first_offset <= before:
        raise InvalidRequestError(
            f"the batch at offset {batch.first_offset} overlaps the one before: name batches in the order of their offsets"
        )
    if len(batch.kinds) not in (1, count):
        raise InvalidRequestError(
            f"{len(batch.kinds)} acknowledgements for {count} records: give one for all, or one for each"
        )
    if any(not Acknowledgement.GAP <= kind <= Acknowledgement.RENEW for kind in batch.kinds):
        raise InvalidRequestError(
            "an acknowledgement must be 0 (gap), 1 (accept), 2 (release), 3 (reject) or 4 (renew)"
        )


def _runs(batch: AcknowledgedBatch) -> Iterable[tuple[int, int, int]]:
    """First offset, last offset and kind of what is acknowledged alike."""
    if len(batch.kinds) == 1:
        return [(batch.first_offset, batch.last_offset, batch.kinds[0])]
    found: list[tuple[int, int, int]] = []
    for offset, kind in enumerate(batch.kinds, batch.first_offset):
        if found and found[-1][2] == kind:
            found[-1] = (found[-1][0], offset, kind)
        else:
            found.append((offset, offset, kind))
    return found


def _joined(found: list[AcquiredRecords]) -> list[AcquiredRecords]:
    joined: list[AcquiredRecords] = []
    for item in found:
        last = joined[-1] if joined else None
        if last is not None and (last.last_offset + 1, last.delivery_count) == (item.first_offset, item.delivery_count):
            joined[-1] = AcquiredRecords(
                first_offset=last.first_offset, last_offset=item.last_offset, delivery_count=item.delivery_count
            )
        else:
            joined.append(item)
    return joined

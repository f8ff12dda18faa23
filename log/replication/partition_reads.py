"""The reads that a replica of a partition serves: records for consumers, offsets by time, ends of leader epochs.

How far a reader may see depends on the replica's role. Nothing here changes the role or the log; `Leading` serves followers with
the same checks, because their fetches move the high watermark.
"""

from dataclasses import dataclass
from typing import Final

from ..format.record_codec import LookIntoBatch, first_record_at_or_after
from ..segment.transaction_index import AbortedTransaction
from ..vocabulary.errors import CorruptRecordError, ErrorCode, OffsetNotAvailableError
from .current_role import ANY_EPOCH, CurrentRole
from .follower import UNDEFINED, FetchedState
from .guarded_log import GuardedLog
from .ports import RecordSlice, slice_size

ANY_SIZE_BYTES: Final = 1 << 62
# In one read; a longer one ends before the next begins. 300 KB on the wire. Only if more are open at once, there are more.
MAX_ABORTED: Final = 20_000
READ_COMMITTED: Final = 1  # as on the wire; 0 is READ_UNCOMMITTED
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3  # KIP-734
EARLIEST_LOCAL_TIMESTAMP: Final = -4  # KIP-405: the part that is not in a remote store, which is everything here


class PartitionRead(FetchedState, frozen=True, kw_only=True):
    """The result of a read: records that may still be in a file."""

    records: RecordSlice = b""
    last_stable_offset: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()  # those that a read_committed consumer of the records must know
    is_urgent: bool = (
        False  # the answer must not wait for records: the follower serves consumers, and the high watermark is news
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """An offset in a partition's log. The client's OffsetAndTimestamp is a public value of the SDK, with the topic id."""

    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = -1


class PartitionReads:
    def __init__(self, role: CurrentRole, storage: GuardedLog) -> None:
        self._role = role
        self._storage = storage
        self.max_aborted = MAX_ABORTED

    # --- consumers ---------------------------------------------------------------------------------------------------

    def read_for_consumer(
        self,
        offset: int,
        *,
        max_bytes: int,
        isolation_level: int = 0,
        current_leader_epoch: int = ANY_EPOCH,
        last_fetched_epoch: int = ANY_EPOCH,
        at_least_one_batch: bool = True,
        allow_follower: bool = False,
    ) -> PartitionRead:
        """Serve committed records to a consumer. `allow_follower`: it was sent here on purpose (KIP-392).

        Raises OffsetNotAvailableError for an offset that may be committed although this replica does not know it yet: right after
        an election (KIP-207), or behind the end of a follower's log. A reader between a follower's high watermark and its log end
        gets nothing yet. Only a leader says that the reader's log diverges: the log of a follower may lack what the reader got
        from the leader, or hold what the leader will have it remove.
        """
        with self._storage:
            role = self._role
            if role.leader_state is None and not (allow_follower and role.is_follower):
                raise role.does_not_lead()
            role.check_epoch(current_leader_epoch)
            refused = self.refusal(offset, last_fetched_epoch)
            if refused is not None:
                return self._out_of_a_followers_range(refused, offset)
            visible_end = self._visible_end(isolation_level)
            if offset > visible_end:
                if self._role.is_leader:
                    self._check_end_is_known()
                return self.nothing()
            is_committed_only = isolation_level == READ_COMMITTED
            return self.read(offset, max_bytes, visible_end, at_least_one_batch, with_aborted=is_committed_only)

    def _out_of_a_followers_range(self, refused: PartitionRead, offset: int) -> PartitionRead:
        """A follower does not know the leader's log, so an offset after its own end, or another epoch, may be valid."""
        if not self._role.is_leader and not (refused.error and offset < self._storage.log.log_start_offset):
            raise OffsetNotAvailableError(
                f"this follower does not have all records of {self._role.topic_partition} before offset {offset}; ask the leader"
            )
        return refused

    def _visible_end(self, isolation_level: int) -> int:
        log = self._storage.log
        return log.last_stable_offset if isolation_level == READ_COMMITTED else log.high_watermark

    def _check_end_is_known(self) -> None:
        leading = self._role.leader_state
        if leading is None or not leading.knows_earlier_epochs_end:
            raise OffsetNotAvailableError(
                f"the end of {self._role.topic_partition} is not known for certain yet after a change of leader; try again"
            )

    # --- offsets and epochs ------------------------------------------------------------------------------------------

    def list_offset(
        self,
        timestamp_ms: int,
        *,
        isolation_level: int = 0,
        current_leader_epoch: int = ANY_EPOCH,
        for_replica: bool = False,
        look: LookIntoBatch = first_record_at_or_after,
    ) -> ListedOffset:
        """The first offset at or after a time, or EARLIEST_TIMESTAMP, LATEST_TIMESTAMP; offset -1: there is none. `look` finds
        the record in a batch; its exceptions pass."""
        with self._storage as log:
            self._role.current_leader()
            self._role.check_epoch(current_leader_epoch)
            if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
                return self._listed(log.log_start_offset)
            if for_replica and timestamp_ms == LATEST_TIMESTAMP:
                return self._listed(log.log_end_offset)
            if timestamp_ms == LATEST_TIMESTAMP:
                self._check_end_is_known()
                return self._listed(self._visible_end(isolation_level))
            is_newest = timestamp_ms == MAX_TIMESTAMP
            found = log.max_timestamp(look) if is_newest else log.offset_for_timestamp(timestamp_ms, look)
            return self._visible(found, self._visible_end(isolation_level))

    def _visible(self, found: tuple[int, int] | None, visible_end: int) -> ListedOffset:
        if found is None:
            return ListedOffset(offset=-1)
        offset, timestamp_ms = found
        if offset >= visible_end:
            self._check_end_is_known()
            return ListedOffset(offset=-1)
        # The epoch in which the record was written: clients use it to detect truncations (KIP-320).
        return ListedOffset(offset=offset, timestamp_ms=timestamp_ms, leader_epoch=self._storage.log.epoch_at(offset))

    def _listed(self, offset: int) -> ListedOffset:
        return ListedOffset(offset=offset, timestamp_ms=-1, leader_epoch=self._role.leader_epoch)

    def end_offset_for_epoch(self, leader_epoch: int, *, current_leader_epoch: int = ANY_EPOCH) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (largest epoch <= the one asked for, its end offset), (-1, -1) when not known."""
        with self._storage as log:
            self._role.current_leader()
            self._role.check_epoch(current_leader_epoch)
            return log.end_offset_for_epoch(leader_epoch)

    def readable_bytes(self, offset: int, *, end_offset: int, max_bytes: int) -> int:
        """How many bytes a fetch could get now, up to `max_bytes`; no record is read for that.

        A read with that limit would end with the last whole batch below it, so it would rarely have that many bytes.
        """
        if not self._storage.log.log_start_offset <= offset < end_offset:
            return 0
        with self._storage as log:
            available = log.read(offset, max_bytes=ANY_SIZE_BYTES, up_to_offset=end_offset).slice
        return min(slice_size(available), max_bytes)

    # --- the log -----------------------------------------------------------------------------------------------------

    def refusal(self, offset: int, last_fetched_epoch: int) -> PartitionRead | None:
        """A result without records: the logs diverge before the offset, or the offset is not in this log."""
        log = self._storage.log
        if last_fetched_epoch >= 0:
            epoch, epoch_end = log.end_offset_for_epoch(last_fetched_epoch)
            if epoch == UNDEFINED or epoch_end == UNDEFINED:
                return self.nothing(error=ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < last_fetched_epoch or epoch_end < offset:
                return self.nothing(diverging_epoch=epoch, diverging_end_offset=epoch_end)
        if not log.log_start_offset <= offset <= log.log_end_offset:
            return self.nothing(error=ErrorCode.OFFSET_OUT_OF_RANGE)
        return None

    def read(
        self, offset: int, max_bytes: int, end_offset: int, at_least_one_batch: bool, *, with_aborted: bool = False
    ) -> PartitionRead:
        log = self._storage.log
        records: RecordSlice = b""
        aborted: tuple[AbortedTransaction, ...] = ()
        if offset < end_offset:
            try:
                records, aborted = self._read_log(offset, max_bytes, end_offset, at_least_one_batch, with_aborted)
            except CorruptRecordError:
                log.damage.verify(offset, max_bytes=max_bytes)  # so that the range of the damage is known
                raise
        return PartitionRead(
            records=records,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted=aborted,
        )

    def _read_log(
        self, offset: int, max_bytes: int, end_offset: int, at_least_one_batch: bool, with_aborted: bool
    ) -> tuple[RecordSlice, tuple[AbortedTransaction, ...]]:
        """The records, and what was aborted among them. Both at once: what ends later is not stable in this read."""
        log = self._storage.log
        read = log.read(offset, max_bytes=max_bytes, up_to_offset=end_offset, at_least_one_batch=at_least_one_batch)
        if not with_aborted:
            return read.slice, ()
        aborted = log.aborted.in_read(read, offset)
        if len(aborted) > self.max_aborted:
            end_offset = sorted(transaction.first_offset for transaction in aborted)[self.max_aborted]
            if offset < end_offset:
                return self._read_log(offset, max_bytes, end_offset, at_least_one_batch, with_aborted)
        return read.slice, aborted

    def nothing(
        self, *, error: int = ErrorCode.NONE, diverging_epoch: int = UNDEFINED, diverging_end_offset: int = UNDEFINED
    ) -> PartitionRead:
        log = self._storage.log
        return PartitionRead(
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            error=error,
            diverging_epoch=diverging_epoch,
            diverging_end_offset=diverging_end_offset,
        )

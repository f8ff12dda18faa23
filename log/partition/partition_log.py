"""The log of one partition on one broker: what it takes, what it gives, and where it begins and ends.

Its parts do the rest: `segments` has the files, `tail` writes, `flushes` makes durable, `damage` knows what is lost.

One thread appends and reads; a `PendingFlush` and `remove_due_files` may run in another beside it, because a disk takes time. A
truncation may run in another thread as well (`begin_change`): meanwhile, only that thread uses the log. Every time is an
argument. A failed write leaves nothing, neither in the file nor in memory.
"""

from collections.abc import Callable
from operator import attrgetter

from ..checkpoints.saved_epochs import SavedEpochs
from ..disk.files import Files
from ..format.record_batch import NO_TIMESTAMP, Buffer, iter_headers, patch
from ..format.record_codec import LookIntoBatch, first_record_at_or_after
from ..segment.append_check import (
    AppendInfo,
    check_client_batches,
    check_epoch,
    check_leader_batches,
    info_of_completed,
    info_of_repeated,
    is_readonly,
    placed_batch,
    stamp_append_time,
)
from ..segment.append_times import AppendTime
from ..segment.open_segments import OpenSegments
from ..segment.producer_state import ProducerState
from ..segment.retention import expired_segments
from ..segment.saved_append_times import SavedAppendTimes
from ..segment.segment import LogRead
from ..settings.config import LogConfig
from ..vocabulary.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    StorageError,
)
from ..vocabulary.topic_partition import TopicPartition
from .aborted_transactions import AbortedTransactions
from .log_damage import LogDamage, remove_oldest_damaged
from .log_flushes import LogFlushes
from .log_producers import LogProducers
from .log_segments import LogSegments
from .log_tail import LogTail
from .partition_folder import PartitionFolder
from .recovery import recover_log

_NOTHING = LogRead(slice=b"")


class PartitionLog:
    """Offsets [log_start_offset, log_end_offset), in segments of which the last one grows."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        topic_partition: TopicPartition,
        topic_id: str,
        config: LogConfig,
        now_ms: int,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        was_stopped_cleanly: bool = False,
        folder_is_durable: bool = False,
        open_segments: OpenSegments | None = None,
        before_truncation: Callable[[int], None] | None = None,
        before_loss: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the folder, which must exist; an empty folder is a new log that begins at `log_start_offset`.

        `before_truncation(end_offset)` is called before records from there on are removed: a stored recovery point must be
        lowered first, or after a crash bytes after it would not be scanned. `before_loss`: see `recover_log`.
        """
        self._files = files
        self.config = config
        self._before_truncation = before_truncation
        self.truncations = 0  # lets a flush or a cleaning detect at its end that it was overtaken
        self.is_changing = False  # the log belongs to another thread, which truncates it or starts it over
        self.is_released = False  # released during a change: the change ends first
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = directory
        self.folder = PartitionFolder(files, directory, is_durable=folder_is_durable)
        self._saved_epochs = SavedEpochs(files, self.folder)
        self._epochs = self._saved_epochs.cache
        if not self._saved_epochs.is_sound:
            recovery_point, was_stopped_cleanly = 0, False
        recovered = recover_log(files, directory, config=config, epochs=self._epochs, recovery_point=recovery_point,
                                log_start_offset=log_start_offset, was_stopped_cleanly=was_stopped_cleanly,
                                before_loss=before_loss)  # fmt: skip
        self.segments = LogSegments(files, recovered.segments, folder=self.folder, opened=open_segments)
        self.aborted = AbortedTransactions(self.segments)
        self.damage = LogDamage(lambda: self.segments.all, lambda: self.is_changing)
        self.has_lost_batches = recovered.has_lost_batches
        self.log_end_offset = self.segments.active.next_offset
        self.log_start_offset = min(max(log_start_offset, self.segments.all[0].base_offset), self.log_end_offset)
        self.high_watermark = self.log_start_offset
        # Everything before it is on the disk; it is also the flushed offset.
        self.recovery_point = self.log_end_offset if was_stopped_cleanly else min(recovery_point, self.log_end_offset)
        self._producers = LogProducers(files, directory)
        self._producers.open(self.segments.all, self.log_end_offset, flushed_end_offset=self.recovery_point)
        self._append_times = SavedAppendTimes(files, directory)
        self._append_times.load(self.segments.all, log_start_offset=self.log_start_offset)
        self.tail = LogTail(topic_partition, self.segments, producers=self._producers, append_times=self._append_times,
                            now_ms=now_ms)  # fmt: skip
        self.flushes = LogFlushes(self, self._saved_epochs, now_ms=now_ms)

    # --- state ---

    @property
    def last_stable_offset(self) -> int:
        """Read_committed consumers read up to here: each transaction that begins below has ended, and its end is replicated."""
        unstable = self._producers.state.transactions.first_unstable_offset(self.high_watermark)
        return (
            self.high_watermark if unstable is None else max(min(self.high_watermark, unstable), self.log_start_offset)
        )

    @property
    def size_bytes(self) -> int:
        return self.segments.sealed.size_bytes + self.segments.active.records.size_bytes

    @property
    def failed(self) -> bool:
        """True if the disk failed: this log accepts no more writes until it is opened again."""
        return bool(self.segments.failure) or self.segments.active.records.failed

    def set_high_watermark(self, offset: int) -> None:
        """Clamped to the offsets of the log."""
        self.high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))

    # --- appending ---

    def append_as_leader(
        self,
        buffer: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        from_coordinator: bool = False,
        transaction_version: int = 1,
    ) -> AppendInfo:
        """Append whole batches of a client, or the markers of a transaction coordinator. Offsets and epoch are patched into
        `buffer` itself if it is writable. Batches that a producer repeats are not appended: `duplicate` if all are.
        Raises what `check_client_batches` and `LogProducers.check` raise, and StorageError.
        """
        config = self.config
        batches = check_client_batches(
            buffer, config=config, next_offset=self.log_end_offset, now_ms=now_ms, from_coordinator=from_coordinator
        )
        if leader_epoch != self._epochs.latest_epoch:
            check_epoch(leader_epoch, log=self.topic_partition, latest_epoch=self._epochs.latest_epoch)
            self._epochs.assign(leader_epoch, self.log_end_offset)
        repeated = self._producers.check(buffer, batches, from_coordinator, transaction_version)
        if repeated:
            if len(repeated) == len(batches):
                return info_of_repeated(repeated, config)
            rest = memoryview(buffer)[batches[len(repeated)].position :]
            return info_of_completed(repeated, self.append_as_leader(rest, leader_epoch=leader_epoch, now_ms=now_ms))
        writable = buffer if not is_readonly(buffer) else bytearray(buffer)
        for batch in batches:
            patch(writable, batch.position, base_offset=batch.base_offset, leader_epoch=leader_epoch)  # type: ignore[arg-type]
        if config.uses_log_append_time:
            batches = [stamp_append_time(writable, batch, now_ms) for batch in batches]  # type: ignore[arg-type]
        try:
            self.tail.write(writable, batches, now_ms, config)
        finally:  # the disk may be full after some of the batches
            self.log_end_offset = self.segments.active.next_offset
            if self.log_end_offset > batches[0].base_offset:
                self._append_times.times.note(batches[0].base_offset, self.log_end_offset, now_ms)
        append_time_ms = now_ms if config.uses_log_append_time else NO_TIMESTAMP
        return AppendInfo(first_offset=batches[0].base_offset, last_offset=batches[-1].last_offset,
                          log_append_time_ms=append_time_ms, size_bytes=len(buffer),
                          max_timestamp_ms=batches[0].max_timestamp_ms if len(batches) == 1 else
                          max(batch.max_timestamp_ms for batch in batches))  # fmt: skip

    def append_as_follower(self, buffer: Buffer, *, now_ms: int = 0, is_fresh: bool = False) -> AppendInfo | None:
        """Append a leader's batches, which have offsets and epochs. A truncated batch at the end is dropped; None if there is no
        whole batch. `is_fresh`: as far as is known, the leader has appended it just now.

        Raises CorruptRecordError for a wrong CRC or an epoch that decreases, OffsetOutOfRangeError for batches that do
        not continue this log, StorageError.
        """
        headers = list(iter_headers(buffer, verify_crc=True))
        if not headers:
            return None
        check_leader_batches(
            headers, log=self.topic_partition, next_offset=self.log_end_offset, epoch=self._epochs.latest_epoch
        )
        batches = [placed_batch(header) for header in headers]
        end = headers[-1].position + headers[-1].size_bytes
        try:
            self.tail.write(memoryview(buffer)[:end], batches, now_ms or headers[-1].max_timestamp_ms, self.config)
        finally:
            self.log_end_offset = self.segments.active.next_offset
            for header in headers:  # a disk may fill up between two batches
                if header.base_offset < self.log_end_offset:
                    self._epochs.assign(header.leader_epoch, header.base_offset)
                    self._append_times.note_replicated(header, now_ms, is_fresh=is_fresh)
        return AppendInfo(first_offset=batches[0].base_offset, last_offset=batches[-1].last_offset,
                          log_append_time_ms=NO_TIMESTAMP, size_bytes=end,
                          max_timestamp_ms=max([batch.max_timestamp_ms for batch in batches]))  # fmt: skip

    def append_time_of(self, offset: int) -> AppendTime | None:
        """When the record was appended here; None if that is not known."""
        return self._append_times.times.time_of(offset)

    @property
    def producers(self) -> ProducerState:
        return self._producers.state  # replaced by a truncation

    # --- reading ---

    def read(self, offset: int, *, max_bytes: int, up_to_offset: int, at_least_one_batch: bool = True) -> LogRead:
        """Whole batches of one segment, from the one that contains `offset`; none that begins at or after `up_to_offset`.

        They are not copied: the caller sends the slice, or reads it. Raises OffsetOutOfRangeError.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition} has offsets {self.log_start_offset} to {self.log_end_offset}, not {offset}"
            )
        if offset >= up_to_offset or offset == self.log_end_offset:
            return _NOTHING
        found = self.segments.read(
            offset, max_bytes=max_bytes, up_to_offset=up_to_offset, at_least_one_batch=at_least_one_batch
        )
        return _NOTHING if found is None or not found.size_bytes else LogRead(slice=found)

    def offset_for_timestamp(
        self, timestamp_ms: int, look: LookIntoBatch = first_record_at_or_after
    ) -> tuple[int, int] | None:
        """The (offset, timestamp) of the first record whose timestamp is at least `timestamp_ms`."""
        return self.segments.sealed.find_timestamp(
            timestamp_ms, from_offset=self.log_start_offset, opened=self.segments.opened, look=look
        )

    def max_timestamp(self, look: LookIntoBatch = first_record_at_or_after) -> tuple[int, int] | None:
        """The (offset, timestamp) of the first record with the largest timestamp."""
        segments = self.segments
        largest_ms = max(segments.sealed.largest_timestamp_ms, segments.active.largest_timestamp[0])
        return None if largest_ms == NO_TIMESTAMP else self.offset_for_timestamp(largest_ms, look)

    # --- leader epochs ---

    @property
    def latest_epoch(self) -> int:
        """-1 when none is known."""
        return self._epochs.latest_epoch

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """Note that `epoch` begins at `offset`, before its first batch is appended."""
        self._epochs.assign(epoch, offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch here that is not above `epoch`, and its end offset; (-1, -1) if that is not known (KIP-279)."""
        return self._epochs.end_offset_for(epoch, log_end_offset=self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        return self._epochs.epoch_at(offset)

    # --- flushing ---

    def flush(self, *, now_ms: int | None = None) -> None:
        """Return when the log is on disk. Raises StorageError."""
        pending = self.flushes.begin(now_ms)
        if pending is not None:
            pending.perform()
            self.flushes.finish(pending)

    # --- truncating and deleting ---

    def begin_change(self) -> None:
        """From now on, another thread truncates this log or starts it over. It flushes, renames and reads, so the disk may delay
        it for any time; until `end_change`, all others must not use the log: `is_changing` shows this."""
        assert not self.is_changing
        self.is_changing = True
        self.truncations += 1  # in the owner's thread: pending work detects that it was overtaken

    def end_change(self) -> None:
        self.is_changing = False
        if self.is_released:
            self.segments.release()

    def begins_inside(self, buffer: Buffer) -> bool:
        """Must this log start over before the first batch? The leader's log begins inside that batch (DeleteRecords)."""
        if self.log_start_offset != self.log_end_offset:
            return False
        first = next(iter_headers(buffer, verify_crc=False), None)
        return first is not None and first.base_offset < self.log_end_offset <= first.last_offset

    def start_over_before(self, buffer: Buffer) -> None:
        """The log is empty. The caller that appends the batches then sets the log start to the leader's."""
        self.truncate_fully_and_start_at(next(iter_headers(buffer, verify_crc=False)).base_offset)

    def truncate_to(self, offset: int) -> None:
        """Cut off everything from `offset` on, durably. If it is inside a batch, the whole batch is removed."""
        if offset >= self.log_end_offset:
            # An epoch that begins at the end has no records: a deposed leader must not claim it (KIP-101).
            self._saved_epochs.truncate_from_end(self.log_end_offset)
            return
        if offset <= self.segments.all[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        self.truncations += 1
        self.segments.swaps.withdraw()
        if self._before_truncation is not None:
            self._before_truncation(self.segments.start_of_batch(offset))
        try:
            self._append_times.truncate_to(offset)
            try:
                self.segments.discard_from(offset)
                self.tail.reopen()
                first_cut = self.segments.active.batch_at(offset)
                if first_cut is not None:
                    self.log_end_offset = first_cut.base_offset  # before the bytes are removed
                self.segments.active.truncate_to(offset)
            finally:
                self._end_at_the_active_segments_end()
            self._files.sync_dir(self.directory)
            self._saved_epochs.save()
            self._producers.restore(self.segments.all, self.log_end_offset)
        except (StorageError, CorruptRecordError):
            self.segments.failure = (
                "a truncation failed"  # the state on the disk is known only after the log is opened again
            )
            raise

    def _end_at_the_active_segments_end(self) -> None:
        self.log_end_offset = self.segments.active.next_offset
        self._epochs.truncate_from_end(self.log_end_offset)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self.log_start_offset = min(max(self.log_start_offset, self.segments.all[0].base_offset), self.log_end_offset)
        self.set_high_watermark(self.high_watermark)

    def set_damage_aside(self) -> None:
        """Cut the log before the first segment with damage, and keep the damaged files as `.damaged`.

        Only for a replica that the cluster does not rely on: the others have the records that are cut off here.
        """
        self.truncate_to(self.damage.where_to_cut())
        remove_oldest_damaged(self._files, self.directory)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and start again at `offset`, for a replica that is too far behind."""
        self.truncations += 1
        self.segments.swaps.withdraw()
        if self._before_truncation is not None:
            self._before_truncation(min(offset, self.segments.all[0].base_offset))
        self._append_times.truncate_to(0)
        try:
            self.tail.start_over(offset, self.config)
            self._files.sync_dir(self.directory)
            self._epochs.clear()
            self._producers.clear()
            self._saved_epochs.save()
        except (StorageError, CorruptRecordError):
            self.segments.failure = "a truncation failed"
            raise
        finally:
            self._end_at_the_active_segments_end()
        self.log_start_offset = self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = offset

    def delete_records_before(self, offset: int) -> None:
        """Raise the log start offset; segments that are wholly below are removed by the next retention."""
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition} can delete records up to offset {self.high_watermark} only, not {offset}"
            )
        self._raise_start(offset)

    def _raise_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.set_high_watermark(self.high_watermark)
            self._epochs.truncate_from_start(offset)
            self._append_times.times.forget_before(offset)

    def delete_old_segments(self, now_ms: int) -> list[int]:
        """Remove the segments from the log that retention allows; return their base offsets. While a cleaned segment is offered,
        none is removed, because a start would bring it back: the next call removes them."""
        if self.segments.swaps.is_outstanding:
            return []
        segments = self.segments.all
        # Evaluated only for the removed segments and one more; mypyc would evaluate a generator expression for all.
        ages = map(attrgetter("age"), segments)
        count = expired_segments(ages, config=self.config, log_start_offset=self.log_start_offset,
                                 high_watermark=self.high_watermark, now_ms=now_ms, log_bytes=self.size_bytes)  # fmt: skip
        if count == len(segments):
            self.tail.roll(now_ms, self.config)
        gone = [segment.base_offset for segment in segments[:count]]
        try:
            for _ in gone:
                self.segments.retire_first(now_ms + self.config.file_delete_delay_ms)
        finally:
            self._raise_start(segments[0].base_offset)
        return gone

    def close(self) -> None:
        """Flush and write everything that a clean start needs. Raises StorageError; then the stop was not clean. No other thread
        uses the log any more: a change that was dropped has no effect."""
        self.is_changing = False
        self.folder.make_durable()
        self.flush()  # first: on a full disk the rest may fail
        self.tail.seal()
        self._saved_epochs.save()
        self.release()

    def release(self) -> None:
        """Close all open files; slices that are being sent keep theirs. A change in another thread ends first."""
        self.truncations += 1
        self.is_released = self.is_changing
        if not self.is_changing:
            self.segments.release()

"""The log of one partition on one broker: appends, reads, truncation, retention.

One thread appends and reads; a `PendingFlush` and `remove_due_files` may run in another beside it, because a disk takes time. A
truncation may run in another thread as well (`begin_change`): meanwhile, only that thread uses the log. Every time is an
argument. A failed write leaves nothing, neither in the file nor in memory.
"""

from collections.abc import Callable, Sequence

from ..checkpoints.saved_epochs import SavedEpochs
from ..disk.files import Files
from ..format.record_batch import NO_PRODUCER_ID, NO_TIMESTAMP, Buffer, iter_headers, patch
from ..format.record_codec import LookIntoBatch, first_record_at_or_after
from ..segment.append_check import (
    AppendInfo,
    PlacedBatch,
    check_client_batches,
    check_leader_batches,
    info_of_duplicate,
    is_readonly,
    repeated_batch,
    stamp_append_time,
)
from ..segment.append_times import AppendTime
from ..segment.open_segments import OpenSegments
from ..segment.producer_state import ProducerState
from ..segment.retention import expired_segments
from ..segment.saved_append_times import SavedAppendTimes
from ..segment.segment import LogRead, LogSegment, segment_holding
from ..segment.transaction_index import AbortedTransaction
from ..settings.config import LogConfig
from ..vocabulary.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    StorageError,
    TooManyFilesError,
)
from ..vocabulary.topic_partition import TopicPartition
from .log_damage import LogDamage, remove_oldest_damaged
from .log_producers import LogProducers
from .log_segments import LogSegments
from .offered_swap import OfferedSwap
from .partition_folder import PartitionFolder
from .pending_flush import PendingFlush
from .recovery import new_segment, recover_log
from .segment_swap import SegmentSwap

IDLE_MS = 600_000  # without appends for this time, a partition needs no open file; it opens again in microseconds
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
        self._config = config
        self._before_truncation = before_truncation
        self._failure = ""  # why the log must be opened again to know the state on the disk
        self._truncations = 0  # lets a flush or a cleaning detect at its end that it was overtaken
        self.is_changing = False  # the log belongs to another thread, which truncates it or starts it over
        self.is_released = False  # released during a change: the change ends first
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = directory
        self.folder = PartitionFolder(files, directory, is_durable=folder_is_durable)
        self._saved_epochs = SavedEpochs(files, directory)
        self._epochs = self._saved_epochs.cache
        if not self._saved_epochs.is_sound:
            recovery_point, was_stopped_cleanly = 0, False
        recovered = recover_log(files, directory, config=config, epochs=self._epochs, recovery_point=recovery_point,
                                log_start_offset=log_start_offset, was_stopped_cleanly=was_stopped_cleanly,
                                before_loss=before_loss)  # fmt: skip
        self._segments = LogSegments(files, recovered.segments, folder=self.folder, opened=open_segments)
        self.damage = LogDamage(lambda: self._segments.all, lambda: self.is_changing)
        self._active_since_ms = now_ms
        self._last_append_ms = now_ms
        self._last_flush_ms = now_ms
        self.has_lost_batches = recovered.has_lost_batches
        self.log_end_offset = self._segments.active.next_offset
        self.log_start_offset = min(max(log_start_offset, self._segments.all[0].base_offset), self.log_end_offset)
        self.high_watermark = self.log_start_offset
        # Everything before it is on the disk; it is also the flushed offset.
        self.recovery_point = self.log_end_offset if was_stopped_cleanly else min(recovery_point, self.log_end_offset)
        self._producers = LogProducers(files, directory)
        self._producers.open(self._segments.all, self.log_end_offset, flushed_end_offset=self.recovery_point)
        self._append_times = SavedAppendTimes(files, directory)
        self._append_times.load(self._segments.all, log_start_offset=self.log_start_offset)

    # --- state ---

    @property
    def config(self) -> LogConfig:
        return self._config

    def update_config(self, config: LogConfig) -> None:
        self._config = config

    @property
    def last_stable_offset(self) -> int:
        """Read_committed consumers read up to here: no record below belongs to an open transaction."""
        unstable = self._producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(self.high_watermark, unstable)

    @property
    def size_bytes(self) -> int:
        return self._segments.sealed.size_bytes + self._segments.active.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments.all)

    @property
    def failed(self) -> bool:
        """True if the disk failed: this log accepts no more writes until it is opened again."""
        return bool(self._failure) or self._segments.unsure or self._segments.active.records.failed

    def set_high_watermark(self, offset: int) -> None:
        """Clamped to the offsets of the log."""
        self.high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))

    # --- appending ---

    def append_as_leader(
        self, buffer: Buffer, *, leader_epoch: int, now_ms: int, from_coordinator: bool = False
    ) -> AppendInfo:
        """Append one or more whole batches of a client; offsets and epoch are patched into `buffer` itself if it is
        writable.

        A repeated batch of an idempotent producer is not appended: the result has `duplicate` and the offsets of the first
        append. Raises what `check_client_batches` and `ProducerState.check` raise, and StorageError.
        """
        config = self._config
        batches = check_client_batches(
            buffer, config=config, next_offset=self.log_end_offset, now_ms=now_ms, from_coordinator=from_coordinator
        )
        if leader_epoch != self._epochs.latest_epoch:
            self._begin_epoch(leader_epoch)
        has_producers = any(batch.producer_id != NO_PRODUCER_ID for batch in batches)
        if has_producers and not from_coordinator:
            repeated = repeated_batch(buffer, batches, self._producers.state)
            if repeated is not None:
                return info_of_duplicate(repeated, config)
        writable = buffer if not is_readonly(buffer) else bytearray(buffer)
        for batch in batches:
            patch(writable, batch.position, base_offset=batch.base_offset, leader_epoch=leader_epoch)  # type: ignore[arg-type]
        if config.uses_log_append_time:
            batches = [stamp_append_time(writable, batch, now_ms) for batch in batches]  # type: ignore[arg-type]
        try:
            self._write(writable, batches, now_ms)
        finally:  # the disk may be full after some of the batches
            if self.log_end_offset > batches[0].base_offset:
                self._append_times.times.note(batches[0].base_offset, self.log_end_offset, now_ms)
        append_time_ms = now_ms if config.uses_log_append_time else NO_TIMESTAMP
        return AppendInfo(first_offset=batches[0].base_offset, last_offset=batches[-1].last_offset,
                          log_append_time_ms=append_time_ms, size_bytes=len(buffer),
                          max_timestamp_ms=max([batch.max_timestamp_ms for batch in batches]))  # fmt: skip

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
        batches = [
            PlacedBatch(header.position, header.size_bytes, header.base_offset, header.last_offset,
                        header.newest_record_ms, header.producer_id)
            for header in headers
        ]  # fmt: skip
        end = headers[-1].position + headers[-1].size_bytes
        try:
            self._write(memoryview(buffer)[:end], batches, now_ms or headers[-1].max_timestamp_ms)
        finally:
            for header in headers:  # a disk may fill up between two batches
                if header.base_offset < self.log_end_offset:
                    self._epochs.assign(header.leader_epoch, header.base_offset)
                    self._append_times.note_replicated(header, now_ms, is_fresh=is_fresh)
        return AppendInfo(first_offset=batches[0].base_offset, last_offset=batches[-1].last_offset,
                          log_append_time_ms=NO_TIMESTAMP, size_bytes=end,
                          max_timestamp_ms=max(batch.max_timestamp_ms for batch in batches))  # fmt: skip

    def _write(self, data: Buffer, batches: list[PlacedBatch], now_ms: int) -> None:
        """Append the batches, to one segment if they fit; else one by one."""
        self._check_takes_writes()
        first, last = batches[0], batches[-1]
        self._roll_if_due(first, now_ms)
        limit = self._config.segment_bytes
        if len(batches) == 1 or self._segments.active.has_room_for(len(data), last.last_offset, limit):
            self._append_to_active(data, batches)
        else:
            view = memoryview(data)
            for batch in batches:
                self._roll_if_due(batch, now_ms)
                whole = view[batch.position : batch.position + batch.size_bytes]
                self._append_to_active(whole, (batch._replace(position=0),))
        self._last_append_ms = now_ms

    def _append_to_active(self, data: Buffer, batches: Sequence[PlacedBatch]) -> None:
        """The only place where the log grows. The producers of each batch are noted at once: the next batch may begin a segment,
        with a snapshot of all producers, or be refused."""
        self._segments.active.append(data, batches)
        self.log_end_offset = batches[-1].last_offset + 1
        try:
            if self._producers.note(data, batches, self._segments.active):
                self.folder.changed()  # the index may be a new file
        except StorageError:
            self._failure = "the index of aborted transactions was refused"  # of a marker that is in the log
            raise

    def _check_takes_writes(self) -> None:
        if self._failure or self._segments.unsure:
            why = self._failure or "a change of its segments failed"
            raise StorageError(f"{self.topic_partition} accepts no more writes since {why}; restart the broker")

    def _roll_if_due(self, batch: PlacedBatch, now_ms: int) -> None:
        active = self._segments.active
        if active.records.size_bytes > 0 and (
            not active.has_room_for(batch.size_bytes, batch.last_offset, self._config.segment_bytes)
            or self._age_ms(batch.max_timestamp_ms, now_ms) > self._config.max_segment_ms
        ):
            self.roll(now_ms)

    def _age_ms(self, timestamp_ms: int, now_ms: int) -> int:
        """The age of the active segment by the timestamps of its records, if they have any: old data rolls as new data does."""
        first_ms = self._segments.active.records.first_timestamp_ms
        if first_ms == NO_TIMESTAMP or timestamp_ms == NO_TIMESTAMP:
            return now_ms - self._active_since_ms
        return timestamp_ms - first_ms

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log end; an empty active segment stays."""
        if self._segments.active.size_bytes == 0:
            return
        self._producers.take_snapshot(self.log_end_offset, self._segments.all)
        self._segments.roll(self.log_end_offset, self._config)
        self._active_since_ms = now_ms

    def append_time_of(self, offset: int) -> AppendTime | None:
        """When the record was appended here; None if that is not known."""
        return self._append_times.times.time_of(offset)

    # --- compaction (see cleaner) ---

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """By base offset; the last one is active."""
        return tuple(self._segments.all)

    @property
    def swaps(self) -> OfferedSwap:
        return self._segments.swaps

    @property
    def truncations(self) -> int:
        """If the number changes, records that were read before may have been replaced, or the log was closed."""
        return self._truncations

    @property
    def producers(self) -> ProducerState:
        return self._producers.state  # replaced by a truncation

    def take_swap(self, swap: SegmentSwap, now_ms: int) -> bool:
        """Replace the others by the cleaned segment, after the flush of the folder. Readers of the others may continue.

        False if the log has changed meanwhile. Raises StorageError; then the log has failed until it is opened again.
        """
        due_ms = now_ms + self._config.file_delete_delay_ms
        return self._segments.take_swap(
            swap, due_ms=due_ms, opened=lambda base: new_segment(self._files, self.directory, base, self._config)
        )

    def aborted_transactions(self, first_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that a read_committed reader of [first_offset, end_offset) must know."""
        return self._segments.aborted_transactions(first_offset, end_offset)

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
        found = self._segments.read(
            offset, max_bytes=max_bytes, up_to_offset=up_to_offset, at_least_one_batch=at_least_one_batch
        )
        return _NOTHING if found is None or not found.size_bytes else LogRead(slice=found)

    def offset_for_timestamp(
        self, timestamp_ms: int, look: LookIntoBatch = first_record_at_or_after
    ) -> tuple[int, int] | None:
        """The (offset, timestamp) of the first record whose timestamp is at least `timestamp_ms`."""
        return self._segments.sealed.find_timestamp(
            timestamp_ms, from_offset=self.log_start_offset, opened=self._segments.opened, look=look
        )

    def max_timestamp(self, look: LookIntoBatch = first_record_at_or_after) -> tuple[int, int] | None:
        """The (offset, timestamp) of the first record with the largest timestamp."""
        segments = self._segments
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

    def _begin_epoch(self, epoch: int) -> None:
        if epoch < self._epochs.latest_epoch:
            raise FencedLeaderEpochError(
                f"{self.topic_partition} is in leader epoch {self._epochs.latest_epoch}, an append claims epoch {epoch}"
            )
        self._epochs.assign(epoch, self.log_end_offset)

    # --- flushing ---

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms requires a flush now, or a sealed segment is not on disk yet: a start after a crash
        should not read the whole log."""
        unflushed = self.log_end_offset - self.recovery_point
        return unflushed > 0 and (
            self.recovery_point < self._segments.active.base_offset
            or unflushed >= self._config.flush_messages
            or now_ms - self._last_flush_ms >= self._config.flush_ms
            or now_ms - self._last_append_ms >= IDLE_MS  # so that the file can be closed
        )

    def begin_flush(self, now_ms: int | None = None) -> PendingFlush | None:
        """The files to flush so that everything here is durable; None if it is, and while the log is changed. Raises
        StorageError.

        Only one at a time. The caller performs it and then calls `finish_flush`; the log may be used meanwhile.
        """
        self._check_takes_writes()
        if self.is_changing or self.recovery_point >= self.log_end_offset:
            return None
        if now_ms is not None:
            self._last_flush_ms = now_ms
        return PendingFlush(
            end_offset=self.log_end_offset,
            truncations=self._truncations,
            files=self._segments.files_to_flush(self.recovery_point),
            sync_names=self.folder.sync,
            save_epochs=self._saved_epochs.save,
        )

    def finish_flush(self, pending: PendingFlush) -> None:
        """Take the result; advances `recovery_point`. Raises the StorageError of the flush. The log has then failed, unless a
        full disk refused the epochs or no descriptor was free: after a failed flush, a second one would wrongly succeed."""
        if pending.error is not None:
            if not pending.is_epochs_error and not isinstance(pending.error, TooManyFilesError):
                self._failure = "a flush failed"
            raise pending.error
        if pending.truncations == self._truncations:
            self.recovery_point = max(self.recovery_point, pending.end_offset)

    def flush(self, *, now_ms: int | None = None) -> None:
        """Return when the log is on disk. Raises StorageError."""
        pending = self.begin_flush(now_ms)
        if pending is not None:
            pending.perform()
            self.finish_flush(pending)

    def save_indexes(self) -> None:
        """Write the active segment's index entries and the producers, so that recovery need not begin at the segment's start."""
        self._segments.active.indexes.save()
        self._append_times.save()
        if self._producers.is_snapshot_due(self.recovery_point):
            self._producers.take_snapshot(self.log_end_offset, self._segments.all)

    # --- truncating and deleting ---

    def begin_change(self) -> None:
        """From now on, another thread truncates this log or starts it over. It flushes, renames and reads, so the disk may delay
        it for any time; until `end_change`, all others must not use the log: `is_changing` shows this."""
        assert not self.is_changing
        self.is_changing = True
        self._truncations += 1  # in the owner's thread: pending work detects that it was overtaken

    def end_change(self) -> None:
        self.is_changing = False
        if self.is_released:
            self._segments.release()

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
        if offset <= self._segments.all[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        self._announce_truncation(offset)
        try:
            self._cut(offset)
            self._files.sync_dir(self.directory)
            self._saved_epochs.save()
            self._producers.restore(self._segments.all, self.log_end_offset)
        except (StorageError, CorruptRecordError):
            self._failure = "a truncation failed"  # the state on the disk is known only after the log is opened again
            raise

    def _cut(self, offset: int) -> None:
        self._append_times.truncate_to(offset)
        try:
            self._segments.discard_from(offset)
            self._reopen_active()
            first_cut = self._segments.active.batch_at(offset)
            if first_cut is not None:
                self.log_end_offset = first_cut.base_offset  # before the bytes are removed
            self._segments.active.truncate_to(offset)
        finally:
            self._end_at_the_active_segments_end()

    def _end_at_the_active_segments_end(self) -> None:
        self.log_end_offset = self._segments.active.next_offset
        self._epochs.truncate_from_end(self.log_end_offset)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self.log_start_offset = min(max(self.log_start_offset, self._segments.all[0].base_offset), self.log_end_offset)
        self.set_high_watermark(self.high_watermark)

    def set_damage_aside(self) -> None:
        """Cut the log before the first segment with damage, and keep the damaged files as `.damaged`.

        Only for a replica that the cluster does not rely on: the others have the records that are cut off here.
        """
        self.truncate_to(self.damage.where_to_cut())
        remove_oldest_damaged(self._files, self.directory)

    def _announce_truncation(self, offset: int) -> None:
        self._truncations += 1
        self.swaps.withdraw()
        if self._before_truncation is not None:
            # The batch with the offset may begin below it, unless it is the first of a segment.
            segment = self._segments.all[segment_holding(self._segments.all, offset)]
            place = None if offset == segment.base_offset else segment.batch_at(offset)
            self._before_truncation(offset if place is None else min(offset, place.base_offset))

    def _reopen_active(self) -> None:
        """Make the last segment active again after a truncation."""
        active = self._segments.active
        if not active.is_active:
            self._segments.opened.forget(active)
            next_offset = active.next_offset
            active.note_batches(active.open_active())
            active.next_offset = max(next_offset, active.next_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and start again at `offset`, for a replica that is too far behind."""
        self._truncations += 1
        self.swaps.withdraw()
        if self._before_truncation is not None:
            self._before_truncation(min(offset, self._segments.all[0].base_offset))
        self._append_times.truncate_to(0)
        try:
            self._segments.start_over(offset, self._config)
            self._active_since_ms = self._last_append_ms
            self._files.sync_dir(self.directory)
            self._epochs.clear()
            self._producers.clear()
            self._saved_epochs.save()
        except (StorageError, CorruptRecordError):
            self._failure = "a truncation failed"
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
        if self.swaps.is_outstanding:
            return []
        segments = self._segments.all
        ages = (segment.age for segment in segments)  # evaluated only for the removed segments and one more
        count = expired_segments(ages, config=self._config, log_start_offset=self.log_start_offset,
                                 high_watermark=self.high_watermark, now_ms=now_ms, log_bytes=self.size_bytes)  # fmt: skip
        if count == len(segments):
            self.roll(now_ms)
        gone = [segment.base_offset for segment in segments[:count]]
        try:
            for _ in gone:
                self._segments.retire_first(now_ms + self._config.file_delete_delay_ms)
        finally:
            self._raise_start(segments[0].base_offset)
        return gone

    def remove_due_files(self, now_ms: int) -> None:
        """Remove files of deleted segments whose delay is over, and of an offer that was given up. In the folder's thread."""
        self._segments.remove_due_files(now_ms)

    def release_if_idle(self, now_ms: int, *, idle_ms: int) -> None:
        """Close the active segment's file if nothing was appended for a while and everything is on disk."""
        active = self._segments.active
        if (
            active.records.is_open
            and now_ms - self._last_append_ms >= idle_ms
            and self.recovery_point == self.log_end_offset
        ):
            active.release()

    def close(self) -> None:
        """Flush and write everything that a clean start needs. Raises StorageError; then the stop was not clean. No other thread
        uses the log any more: a change that was dropped has no effect."""
        self.is_changing = False
        self.folder.make_durable()
        self.flush()  # first: on a full disk the rest may fail
        self._producers.take_snapshot(self.log_end_offset, self._segments.all)
        self._append_times.save()
        self._segments.active.seal()
        self._segments.active.indexes.flush()
        self._saved_epochs.save()
        self.release()

    def abandon(self) -> None:
        """Its folder was renamed: a pending flush changes nothing under the old name, which may be in use again."""
        self.folder.is_gone = self._saved_epochs.is_gone = True

    def release(self) -> None:
        """Close all open files; slices that are being sent keep theirs. A change in another thread ends first."""
        self._truncations += 1
        self.is_released = self.is_changing
        if not self.is_changing:
            self._segments.release()

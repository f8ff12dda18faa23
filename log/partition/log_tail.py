"""The growing end of a log: batches are appended to the active segment, which gives way to a new one when it is full or old.

It writes what the log has checked and placed, and never decides what is appended.
"""

from collections.abc import Sequence

from ..format.record_batch import NO_TIMESTAMP, Buffer
from ..segment.append_check import PlacedBatch
from ..segment.saved_append_times import SavedAppendTimes
from ..settings.config import LogConfig
from ..vocabulary.errors import StorageError
from ..vocabulary.topic_partition import TopicPartition
from .log_producers import LogProducers
from .log_segments import LogSegments


class LogTail:
    """The log ends where the active segment of `segments` ends."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        segments: LogSegments,
        *,
        producers: LogProducers,
        append_times: SavedAppendTimes,
        now_ms: int,
    ) -> None:
        self._topic_partition = topic_partition
        self._segments = segments
        self._producers = producers
        self._append_times = append_times
        self._active_since_ms = now_ms
        self.last_append_ms = now_ms

    def write(self, data: Buffer, batches: list[PlacedBatch], now_ms: int, config: LogConfig) -> None:
        """Append the batches, to one segment if they fit; else one by one. If that fails, the active segment ends behind those
        that were appended. Raises StorageError."""
        self._segments.check_takes_writes(self._topic_partition)
        first, last = batches[0], batches[-1]
        self._roll_if_due(first, now_ms, config)
        if len(batches) == 1 or self._segments.active.has_room_for(len(data), last.last_offset, config.segment_bytes):
            self._append_to_active(data, batches)
        else:
            view = memoryview(data)
            for batch in batches:
                self._roll_if_due(batch, now_ms, config)
                whole = view[batch.position : batch.position + batch.size_bytes]
                self._append_to_active(whole, (batch._replace(position=0),))
        self.last_append_ms = now_ms

    def _append_to_active(self, data: Buffer, batches: Sequence[PlacedBatch]) -> None:
        """The only place where the log grows. The producers of each batch are noted at once: the next batch may begin a segment,
        with a snapshot of all producers, or be refused."""
        self._segments.active.append(data, batches)
        try:
            if self._producers.note(data, batches, self._segments.active):
                self._segments.folder.changed()  # the index may be a new file
        except StorageError:
            self._segments.failure = "the index of aborted transactions was refused"  # of a marker that is in the log
            raise

    def _roll_if_due(self, batch: PlacedBatch, now_ms: int, config: LogConfig) -> None:
        """A segment is as old as the timestamps of its records say, if they have any: old data rolls as new data does."""
        active = self._segments.active
        if not active.records.size_bytes:
            return
        if active.has_room_for(batch.size_bytes, batch.last_offset, config.segment_bytes):
            first_ms, newest_ms = active.records.first_timestamp_ms, batch.max_timestamp_ms
            if first_ms == NO_TIMESTAMP or newest_ms == NO_TIMESTAMP:
                first_ms, newest_ms = self._active_since_ms, now_ms
            if newest_ms - first_ms <= config.max_segment_ms:
                return
        self.roll(now_ms, config)

    def roll(self, now_ms: int, config: LogConfig) -> None:
        """Begin a new segment at the log end; an empty active segment stays."""
        segments = self._segments
        if segments.active.size_bytes == 0:
            return
        log_end_offset = segments.active.next_offset
        self._producers.take_snapshot(log_end_offset, segments.all)
        segments.roll(log_end_offset, config)
        self._active_since_ms = now_ms

    def reopen(self) -> None:
        """Make the last segment active again after a truncation."""
        active = self._segments.active
        if not active.is_active:
            self._segments.opened.forget(active)
            next_offset = active.next_offset
            active.note_batches(active.open_active())
            active.next_offset = max(next_offset, active.next_offset)

    def start_over(self, offset: int, config: LogConfig) -> None:
        """Replace all segments by an empty one."""
        self._segments.start_over(offset, config)
        self._active_since_ms = self.last_append_ms

    def save(self, recovery_point: int) -> None:
        """Write the index entries, the append times and the producers, so that recovery need not begin at the segment's start."""
        segments = self._segments
        segments.active.indexes.save()
        self._append_times.save()
        if self._producers.is_snapshot_due(recovery_point):
            self._producers.take_snapshot(segments.active.next_offset, segments.all)

    def seal(self) -> None:
        """Write everything that a clean start needs, durably: nothing is appended any more."""
        segments = self._segments
        self._producers.take_snapshot(segments.active.next_offset, segments.all)
        self._append_times.save()
        segments.active.seal()
        segments.active.indexes.flush()

"""The segments of one log, in memory as on the disk: each change is made on the disk first, and then in memory.

If the disk refuses a change, it has not happened, or it has happened as a whole: the rename of a `.log` file decides whether a
segment is part of its log, and an index without its log has no meaning. Only if a step cannot be undone, there is a `failure`:
the log accepts no more writes, and opening it again determines its content.
"""

from collections.abc import Sequence
from itertools import islice

from ..disk.due_files import DueFiles
from ..disk.files import AppendFile, Files
from ..segment.open_segments import OpenSegments
from ..segment.sealed_segments import SealedSegments
from ..segment.segment import FileSlice, LogSegment, segment_holding
from ..settings.config import LogConfig
from ..vocabulary.errors import StorageError
from ..vocabulary.topic_partition import TopicPartition
from .offered_swap import OfferedSwap
from .partition_folder import PartitionFolder
from .recovery import new_segment
from .segment_swap import SegmentSwap

_CHANGE_FAILED = "a change of its segments failed"


class LogSegments:
    """`all` is ordered by base offset and never empty; its last segment, `active`, grows."""

    def __init__(
        self, files: Files, found: list[LogSegment], *, folder: PartitionFolder, opened: OpenSegments | None
    ) -> None:
        self._files = files
        self.folder = folder
        self._due_files = DueFiles(files.remove)
        self.opened = opened or OpenSegments()
        self.all = found
        self.active = found[-1]
        self.sealed = SealedSegments(found)
        self.swaps = OfferedSwap(found)
        self.failure = ""  # why the log must be opened again to know the state on the disk

    def check_takes_writes(self, topic_partition: TopicPartition) -> None:
        if self.failure:
            raise StorageError(f"{topic_partition} accepts no more writes since {self.failure}; restart the broker")

    def roll(self, base_offset: int, config: LogConfig) -> None:
        """Begin a new segment and seal the active one. Raises StorageError; then the active one stays."""
        former = self.active
        former.seal()
        try:
            segment = self._new(base_offset, config)
        except StorageError:
            former.is_active = True
            raise
        self.opened.used(former)
        self.all.append(segment)
        self._changed()

    def retire_first(self, due_ms: int) -> None:
        """Raises StorageError; afterwards, `all` shows whether the segment is gone."""
        try:
            self._retire(self.all[0], due_ms)
        finally:
            if self.all[0].records.is_retired:
                del self.all[0]
                self._changed()

    def discard_from(self, offset: int) -> None:
        """Remove the segments that begin at or after `offset`, the last one first. The first of `all` stays."""
        while len(self.all) > 1 and self.active.base_offset >= offset:
            try:
                self._retire(self.active, due_ms=0)
            finally:
                if self.active.records.is_retired:
                    self.all.pop()
                    self._changed()

    def start_over(self, base_offset: int, config: LogConfig) -> None:
        """Replace all segments by an empty one."""
        self.discard_from(0)
        self._retire(self.all[0], due_ms=0)
        self.all[0] = self._new(base_offset, config)
        self._changed()

    def take_swap(self, swap: SegmentSwap, now_ms: int, config: LogConfig) -> bool:
        """Replace the others by the cleaned segment, after the flush of the folder. Readers of the others may continue.

        False if the log has changed meanwhile. Raises StorageError; then the log has failed until it is opened again.
        """
        due_ms = now_ms + config.file_delete_delay_ms
        self.folder.changed()
        try:
            return self.swaps.fulfil(
                swap,
                retire=lambda segment: self._retire(segment, due_ms),
                opened=lambda base_offset: new_segment(self._files, self.folder.path, base_offset, config),
            )
        except StorageError:
            self.failure = self.failure or _CHANGE_FAILED  # the next start completes the swap
            raise
        finally:
            self._changed()

    # --- reading and flushing ---

    def start_of_batch(self, offset: int) -> int:
        """The offset at which the batch with `offset` begins: a truncation removes all of it."""
        segment = self.all[segment_holding(self.all, offset)]
        # It may begin below the offset, unless it is the first of a segment.
        place = None if offset == segment.base_offset else segment.batch_at(offset)
        return offset if place is None else min(offset, place.base_offset)

    def read(self, offset: int, *, max_bytes: int, up_to_offset: int, at_least_one_batch: bool) -> FileSlice | None:
        """Whole batches of one segment, from the batch that contains `offset` or is the next one after it; None if there are
        none."""
        number = len(self.all) - 1
        if offset < self.active.base_offset:
            number = segment_holding(self.all, offset)
            assert number >= 0, f"{self.folder.path} begins at {self.all[0].base_offset}, and {offset} is read"
        for segment in islice(self.all, number, None):
            if segment is not self.active:
                self.opened.used(segment)
            found = segment.read(
                offset, max_bytes=max_bytes, up_to_offset=up_to_offset, at_least_one_batch=at_least_one_batch
            )
            if found is not None:
                return found
        return None

    def to_flush(self, from_offset: int, max_sealed: int | None = None) -> list[LogSegment]:
        """The segments with records from an offset on, the first `max_sealed` sealed ones of them, and the active one only behind
        all sealed ones. None: all."""
        found = self.all[max(segment_holding(self.all, from_offset), 0) :]
        return found if max_sealed is None or len(found) <= max_sealed + 1 else found[:max_sealed]

    def files_to_flush(self, segments: Sequence[LogSegment], from_offset: int) -> tuple[AppendFile, ...]:
        """The files with the records and aborted transactions from an offset on, and the indexes of sealed segments."""
        files: list[AppendFile] = []
        for segment in segments:
            files += segment.files_to_flush(from_offset)
            if segment is not self.active:
                self.opened.used(segment)
        return tuple(files)

    # --- files to be removed ---

    def remove_due_files(self, now_ms: int) -> None:
        """In the folder's thread: unlinking takes time, and an offer that was given up is withdrawn with a flush."""
        try:
            self._due_files.remove_due(now_ms)
        finally:
            self.swaps.withdraw_given_up()

    def release(self) -> None:
        for segment in self.all:
            self.opened.forget(segment)
            segment.release()

    def _new(self, base_offset: int, config: LogConfig) -> LogSegment:
        segment = new_segment(self._files, self.folder.path, base_offset, config)
        try:
            segment.start_empty()
        except StorageError:
            self._forget_made(segment)
            raise
        self.folder.changed()
        return segment

    def _forget_made(self, segment: LogSegment) -> None:
        """Remove a file that was created and not added: a start would take it for the end of the log."""
        try:
            segment.release()
            self._files.remove(segment.path)
        except StorageError:
            self.failure = self.failure or _CHANGE_FAILED
            raise

    def _retire(self, segment: LogSegment, due_ms: int) -> None:
        self._due_files.add(due_ms, *segment.deleted_paths)
        try:
            segment.rename_as_deleted()
        finally:
            if segment.records.is_retired:
                self.folder.changed()
                self.opened.forget(segment)
                segment.release()

    def _changed(self) -> None:
        self.active = self.all[-1]
        self.sealed.changed()

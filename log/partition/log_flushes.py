"""The flushes of one log: when one is due, what it takes along, and what its outcome means for the log."""

from typing import Protocol

from ..checkpoints.saved_epochs import SavedEpochs
from ..settings.config import LogConfig
from ..vocabulary.errors import TooManyFilesError
from ..vocabulary.topic_partition import TopicPartition
from .log_segments import LogSegments
from .log_tail import LogTail
from .partition_folder import PartitionFolder
from .pending_flush import PendingFlush

IDLE_MS = 600_000  # without appends for this time, a partition needs no open file; it opens again in microseconds


class FlushedLog(Protocol):
    """What a flush needs of its log."""

    recovery_point: int  # everything before it is on the disk

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def config(self) -> LogConfig: ...
    @property
    def segments(self) -> LogSegments: ...
    @property
    def tail(self) -> LogTail: ...
    @property
    def folder(self) -> PartitionFolder: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def truncations(self) -> int: ...
    @property
    def is_changing(self) -> bool: ...


class LogFlushes:
    """Only one at a time: `begin` and `finish` in the thread that owns the log, and in between the work in any thread."""

    def __init__(self, log: FlushedLog, epochs: SavedEpochs, *, now_ms: int) -> None:
        self._log = log
        self._epochs = epochs
        self._last_ms = now_ms

    def is_due(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms requires a flush now, or a sealed segment is not on disk yet: a start after a crash
        should not read the whole log."""
        log = self._log
        unflushed = log.log_end_offset - log.recovery_point
        return unflushed > 0 and (
            log.recovery_point < log.segments.active.base_offset
            or unflushed >= log.config.flush_messages
            or now_ms - self._last_ms >= log.config.flush_ms
            or now_ms - log.tail.last_append_ms >= IDLE_MS  # so that the file can be closed
        )

    def sealed(self) -> int:
        """How many segments that grow no more are to be flushed. 0 while the log is changed."""
        log = self._log
        return 0 if log.is_changing else len(log.segments.to_flush(log.recovery_point)) - 1

    def begin(self, now_ms: int | None = None, *, max_sealed: int | None = None) -> PendingFlush | None:
        """The files to flush so that everything in the log is durable; None if it is, and while the log is changed. Raises
        StorageError.

        The caller performs it and then calls `finish`; the log may be used meanwhile. `max_sealed`, at least one: so many
        segments that grow no more; the flush `is_whole` if there are no others.
        """
        log = self._log
        log.segments.check_takes_writes(log.topic_partition)
        if log.is_changing or log.recovery_point >= log.log_end_offset:
            return None
        if now_ms is not None:
            self._last_ms = now_ms
        taken = log.segments.to_flush(log.recovery_point, max_sealed)
        is_whole = taken[-1] is log.segments.active
        return PendingFlush(
            end_offset=log.log_end_offset if is_whole else taken[-1].next_offset,
            sealed=len(taken) - is_whole,
            is_whole=is_whole,
            truncations=log.truncations,
            files=log.segments.files_to_flush(taken, log.recovery_point),
            sync_names=log.folder.sync,
            save_epochs=self._epochs.save,
        )

    def finish(self, pending: PendingFlush) -> None:
        """Take the result; advances `recovery_point`. Raises the StorageError of the flush. The log has then failed, unless a
        full disk refused the epochs or no descriptor was free: after a failed flush, a second one would wrongly succeed."""
        log = self._log
        if pending.error is not None:
            if not pending.is_epochs_error and not isinstance(pending.error, TooManyFilesError):
                log.segments.failure = "a flush failed"
            raise pending.error
        if pending.truncations == log.truncations:
            log.recovery_point = max(log.recovery_point, pending.end_offset)

    def release_if_idle(self, now_ms: int) -> None:
        """Close the active segment's file if nothing was appended for a while and everything is on disk."""
        log = self._log
        active = log.segments.active
        is_idle = now_ms - log.tail.last_append_ms >= IDLE_MS
        if active.records.is_open and is_idle and log.recovery_point == log.log_end_offset:
            active.release()

"""Selects the log that is cleaned next and keeps the results of earlier cleanings: the bookkeeping of compaction.

The log with the highest ratio of dirty bytes comes first. Never cleaned are the active segment, records that are not committed or
belong to an open transaction, and records younger than min.compaction.lag.ms. A log that cannot be cleaned is reported and
skipped for a while; the other logs are still cleaned.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ..disk.files import Files
from ..folders.log_folder import LogFolder
from ..folders.log_manager import LogManager
from ..format.record_batch import NO_TIMESTAMP
from ..partition.partition_log import PartitionLog
from ..vocabulary.errors import BarnabasError, CorruptRecordError, StorageError
from ..vocabulary.topic_partition import TopicPartition
from .cleaning import Cleaning, DirtyPart

_log = logging.getLogger("barnabas.cleaner")
DEFAULT_MAP_SIZE_BYTES = 128 * 1024 * 1024
RETRY_MS = 600_000  # by then, a damaged segment may have been replaced, or space freed on a full disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncleanable:
    cause: str
    retry_at_ms: int


@dataclass(slots=True, kw_only=True)
class CleanerTotals:
    """Since the start of the broker."""

    runs: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_freed: int = 0
    last_ratio: float = 0.0  # of the last run: bytes written / bytes cleaned
    last_run_ms: int | None = None
    max_dirty_ratio: float = 0.0  # over all logs, at the last check
    uncleanable: dict[TopicPartition, Uncleanable] = field(default_factory=dict)


class LogCleaner:
    """Belongs to the thread that owns the logs."""

    def __init__(
        self, logs: LogManager, files: Files, *, map_size_bytes: int = DEFAULT_MAP_SIZE_BYTES,
        worked: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:  # fmt: skip
        self._logs = logs
        self._files = files
        self._map_size_bytes = map_size_bytes
        self._worked = worked
        self._horizons_ms: dict[TopicPartition, int] = {}  # when tombstones of a clean log may go
        self.totals = CleanerTotals()

    def next_cleaning(self, now_ms: int) -> Cleaning | None:
        """The cleaning of the log that needs it most; None if no log needs one."""
        parts = [
            part
            for topic_partition, log in self._logs.logs.items()
            if log.config.is_compacted
            and not log.failed
            and not log.is_changing
            and not log.segments.swaps.is_outstanding
            if not self._is_set_aside(topic_partition, now_ms)
            if (part := self._dirty_part(topic_partition, log, now_ms)) is not None
        ]
        self.totals.max_dirty_ratio = max((part.ratio for part in parts), default=0.0)
        due = max((part for part in parts if part.is_due), key=lambda part: part.ratio, default=None)
        if due is None:
            return None
        return Cleaning(due, files=self._files, map_size_bytes=self._map_size_bytes, now_ms=now_ms, worked=self._worked)

    def finished(self, cleaning: Cleaning, now_ms: int) -> LogFolder | None:
        """All steps are done: the part is clean from now on. The caller must write this to the folder that is returned."""
        topic_partition, stats, totals = cleaning.log.topic_partition, cleaning.stats, self.totals
        totals.runs += 1
        totals.bytes_read += stats.bytes_read
        totals.bytes_written += stats.bytes_written
        totals.bytes_freed += stats.bytes_before - stats.bytes_after
        totals.last_ratio = stats.bytes_after / stats.bytes_before if stats.bytes_before else 1.0
        totals.last_run_ms = now_ms
        totals.uncleanable.pop(topic_partition, None)
        self._horizons_ms.pop(topic_partition, None)
        if cleaning.next_horizon_ms is not None:
            self._horizons_ms[topic_partition] = cleaning.next_horizon_ms
        _log.info("event=cleaned partition=%s up_to=%d bytes_before=%d bytes_after=%d", topic_partition,
                  cleaning.cleaned_up_to, stats.bytes_before, stats.bytes_after)  # fmt: skip
        if self._logs.get(topic_partition) is not cleaning.log:
            return None
        return self._logs.checkpoints.note_cleaned(topic_partition, cleaning.cleaned_up_to)

    def failed(self, cleaning: Cleaning, error: BarnabasError, now_ms: int) -> None:
        """Set the log aside."""
        topic_partition = cleaning.log.topic_partition
        self.totals.failures += 1
        self.totals.uncleanable[topic_partition] = Uncleanable(cause=error.message, retry_at_ms=now_ms + RETRY_MS)
        _log.error("event=uncleanable partition=%s retry_ms=%d cause=%s", topic_partition, RETRY_MS, error)

    def _is_set_aside(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        found = self.totals.uncleanable.get(topic_partition)
        return found is not None and now_ms < found.retry_at_ms

    def _dirty_part(self, topic_partition: TopicPartition, log: PartitionLog, now_ms: int) -> DirtyPart | None:
        try:
            _seal_if_overdue(log, now_ms)
            horizon_ms = self._horizons_ms.get(topic_partition)
            return dirty_part_of(
                log, self._logs.checkpoints.cleaned_up_to(topic_partition), now_ms=now_ms, horizon_ms=horizon_ms
            )
        except (StorageError, CorruptRecordError) as error:
            self.totals.uncleanable[topic_partition] = Uncleanable(cause=error.message, retry_at_ms=now_ms + RETRY_MS)
            _log.error("event=uncleanable partition=%s retry_ms=%d cause=%s", topic_partition, RETRY_MS, error)
            return None


def dirty_part_of(
    log: PartitionLog, cleaned_up_to: int, *, now_ms: int, horizon_ms: int | None = None
) -> DirtyPart | None:
    """The part of a log that may be cleaned; None when nothing may. Raises StorageError and CorruptRecordError."""
    config = log.config
    is_known = log.log_start_offset <= cleaned_up_to <= log.log_end_offset
    first_dirty_offset = cleaned_up_to if is_known else log.log_start_offset
    segments = []
    for segment in log.segments.all[:-1]:
        is_dirty = segment.next_offset > first_dirty_offset
        is_young = config.min_compaction_lag_ms > 0 and now_ms - config.min_compaction_lag_ms < segment.age.newest_ms
        if segment.next_offset > log.last_stable_offset or (is_dirty and is_young):
            break
        segments.append(segment)
    if not segments:
        return None
    end_offset = max(segments[-1].next_offset, first_dirty_offset)
    part = DirtyPart(log=log, segments=segments, first_dirty_offset=first_dirty_offset, end_offset=end_offset)
    has_dirt = part.dirty_bytes > 0
    is_due = (
        (has_dirt and part.ratio > config.min_cleanable_dirty_ratio)
        or (has_dirt and _is_overdue(part, now_ms))
        or (horizon_ms is not None and horizon_ms <= now_ms)
    )
    return DirtyPart(log=log, segments=segments, first_dirty_offset=first_dirty_offset, end_offset=end_offset,
                     is_due=is_due)  # fmt: skip


def _is_overdue(part: DirtyPart, now_ms: int) -> bool:
    """According to max.compaction.lag.ms, which is measured from the first record of the first dirty segment (KIP-354)."""
    oldest = next(segment for segment in part.segments if segment.next_offset > part.first_dirty_offset)
    first_ms = oldest.records.first_timestamp_ms
    return first_ms != NO_TIMESTAMP and now_ms - first_ms > part.log.config.max_compaction_lag_ms


def _seal_if_overdue(log: PartitionLog, now_ms: int) -> None:
    """max.compaction.lag.ms also holds for a topic to which nothing is written any more."""
    active = log.segments.all[-1]
    first_ms = active.records.first_timestamp_ms
    if active.size_bytes and first_ms != NO_TIMESTAMP and now_ms - first_ms > log.config.max_compaction_lag_ms:
        log.tail.roll(now_ms, log.config)

"""Checkpoints of the logs of a broker: the indexes are saved, the offsets noted in the thread that owns the logs, and the files
of the folder written in another one.
"""

from collections.abc import Iterator, Sequence

from ..checkpoints import checkpoint
from ..vocabulary.errors import StorageError
from ..vocabulary.topic_partition import TopicPartition
from .log_folder import LogFolder
from .log_registry import LogRegistry
from .log_removals import LogRemovals
from .log_upkeep import Refusals


class LogCheckpoints:
    """Methods that begin with `write_` may run in other threads, one at a time for each folder."""

    def __init__(self, registry: LogRegistry, removals: LogRemovals, folders: Sequence[LogFolder]) -> None:
        self._registry = registry
        self._removals = removals
        self._folders = folders  # those that are online

    def save_indexes(self, folder: LogFolder) -> Iterator[None]:
        """Save the indexes of one log after the other, without a flush. Raises StorageError."""
        for log in self._registry.in_folder(folder):
            # Others were removed between two steps: their folder is gone, or belongs to a new log of the same name.
            if self._registry.is_here(log) and not log.failed and not log.is_changing:
                log.tail.save(log.recovery_point)
                yield

    def note_offsets(self, folder: LogFolder) -> None:
        """Note the values that a start needs: recovery points, log start offsets, high watermarks. Logs that another thread is
        changing are skipped: that thread has lowered their recovery point already."""
        logs = [log for log in self._registry.in_folder(folder) if not log.is_changing]
        recovery_points = {log.topic_partition: log.recovery_point for log in logs if log.folder.is_durable}
        folder.recovery_points.update(recovery_points)
        folder.log_start_offsets.update({log.topic_partition: log.log_start_offset for log in logs})
        self.note_high_watermarks(folder)

    def note_high_watermarks(self, folder: LogFolder) -> None:
        """Only the high watermarks, which change all the time."""
        logs = self._registry.in_folder(folder)
        folder.high_watermarks.update({log.topic_partition: log.high_watermark for log in logs})

    def write_high_watermarks(self, folder: LogFolder) -> None:
        """Raises StorageError."""
        folder.write_offsets(checkpoint.HIGH_WATERMARKS, folder.high_watermarks)

    def take(self) -> Refusals:
        """A whole checkpoint at once, for callers that may wait for the disk. A failure of one folder does not affect the
        others."""
        refused: Refusals = {}
        for folder in list(self._folders):
            try:
                self.take_of(folder)
            except StorageError as error:
                refused[folder.path] = error
        return refused

    def take_of(self, folder: LogFolder) -> None:
        """Raises StorageError."""
        for _ in self.save_indexes(folder):
            pass
        self.note_offsets(folder)
        self._removals.settle(folder)

    def cleaned_up_to(self, topic_partition: TopicPartition) -> int:
        """The first offset of a log that was not compacted yet; 0 if nothing was."""
        folder = self._registry.folder_of(topic_partition)
        return 0 if folder is None else folder.cleaned_offsets.get(topic_partition, 0)

    def note_cleaned(self, topic_partition: TopicPartition, end_offset: int) -> LogFolder | None:
        """The log is compacted up to there (exclusive). `write_cleaned` of its folder, which is returned, is to follow."""
        folder = self._registry.folder_of(topic_partition)
        if folder is not None:
            folder.cleaned_offsets[topic_partition] = end_offset
        return folder

    def write_cleaned(self, folder: LogFolder) -> None:
        """Raises StorageError."""
        folder.write_offsets(checkpoint.CLEANED_OFFSETS, folder.cleaned_offsets)

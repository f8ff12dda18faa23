"""Which logs a broker has open, and in which folder each of them lies."""

from collections.abc import Mapping
from operator import countOf

from ..partition.partition_log import PartitionLog
from ..vocabulary.topic_partition import TopicPartition
from .log_folder import LogFolder


class LogRegistry:
    """Changed in one thread; `in_folder` may run in others."""

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._folder_of: dict[TopicPartition, LogFolder] = {}  # the same keys

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        return self._logs

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def folder_of(self, topic_partition: TopicPartition) -> LogFolder | None:
        """The folder with the log of a partition; None if there is no log, or it is offline."""
        return self._folder_of.get(topic_partition)

    def is_here(self, log: PartitionLog) -> bool:
        """False for a log that was removed, even if another one has its name now."""
        return self._logs.get(log.topic_partition) is log

    def count_in(self, folder: LogFolder) -> int:
        return countOf(self._folder_of.values(), folder)

    def in_folder(self, folder: LogFolder) -> list[PartitionLog]:
        """May run in another thread, while logs come and go. `copy` is one step for other threads; `list(items())` is not: it
        makes tuples, which may start a garbage collection, whose finalizers let other threads run."""
        found = [self._logs.get(key) for key, place in self._folder_of.copy().items() if place is folder]
        return [log for log in found if log is not None]

    def add(self, log: PartitionLog, folder: LogFolder) -> None:
        self._logs[log.topic_partition] = log
        self._folder_of[log.topic_partition] = folder

    def remove(self, topic_partition: TopicPartition) -> tuple[PartitionLog, LogFolder]:
        """Raises KeyError."""
        folder = self._folder_of.pop(topic_partition)
        return self._logs.pop(topic_partition), folder

    def remove_folder(self, folder: LogFolder) -> dict[TopicPartition, PartitionLog]:
        gone = [topic_partition for topic_partition, found in self._folder_of.items() if found is folder]
        return {topic_partition: self.remove(topic_partition)[0] for topic_partition in gone}

    def clear(self) -> None:
        self._logs.clear()
        self._folder_of.clear()

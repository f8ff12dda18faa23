"""Logs that leave a broker: deleted ones, whose files go after a delay, and strays, whose files are kept for an operator.

A log leaves by a new name of its folder. Its entries in the checkpoint files of the data folder go later, by `settle`: before
that, a crash would give a new log of the same name the recovery point of the old one.
"""

import logging
from collections.abc import Callable
from functools import partial

from ..disk.due_files import DueFiles
from ..disk.files import Files
from ..partition.partition_log import PartitionLog
from ..vocabulary.errors import StorageError
from ..vocabulary.topic_partition import MAX_TOPIC_NAME_LENGTH, TopicPartition
from .folder_loading import DELETE_SUFFIX, STRAY_SUFFIX
from .log_folder import LogFolder
from .log_registry import LogRegistry

_log = logging.getLogger("barnabas.log")
_MAX_FILE_NAME_LENGTH = 255


class LogRemovals:
    """`settle`, `remove_due` and `strays` may run in other threads, one at a time for each folder."""

    def __init__(self, files: Files, registry: LogRegistry) -> None:
        self._files = files
        self._registry = registry
        self._due_folders = DueFiles(files.remove_tree)
        self.unsettled: dict[TopicPartition, LogFolder] = {}  # the checkpoint files may still list these

    def retire(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Delete a log: its files are removed after `file.delete.delay.ms`. Raises StorageError; then the log is still here
        unless its folder was renamed."""
        log, folder = self._released(topic_partition)
        target = f"{folder.path}/{_name_aside(topic_partition, log.topic_id, now_ms, DELETE_SUFFIX)}"
        self._files.rename(log.directory, target)
        folder.has_unsynced_names = True  # if a power loss undoes the deletion, the log comes back as a stray
        self._due_folders.add(now_ms + log.config.file_delete_delay_ms, target)
        self._forget(folder, topic_partition, log)
        _log.info("event=deleted partition=%s folder=%s", topic_partition, target)

    def set_stray_aside(self, topic_partition: TopicPartition, *, now_ms: int) -> str:
        """Take out a log that the cluster does not assign to this broker, and keep its files; return their folder.

        Raises StorageError, as `retire` does.
        """
        log, folder = self._released(topic_partition)
        return self.set_aside(log, folder, now_ms=now_ms)

    def set_aside(self, log: PartitionLog, folder: LogFolder, *, now_ms: int) -> str:
        """The same for a log that is released, and perhaps not in use."""
        topic_partition = log.topic_partition
        target = f"{folder.path}/{_name_aside(topic_partition, log.topic_id, now_ms, STRAY_SUFFIX)}"
        self._files.rename(log.directory, target)
        folder.has_unsynced_names = True
        self._forget(folder, topic_partition, log)
        _log.warning(
            "event=stray partition=%s folder=%s; remove it when its records are not needed", topic_partition, target
        )
        return target

    def strays(self, path: str) -> tuple[str, ...]:
        """The folders of logs that were set aside below an entry of `log.dirs`. Raises StorageError."""
        return tuple(f"{path}/{name}" for name in self._files.list_dir(path) if name.endswith(STRAY_SUFFIX))

    def unsettled_folder(self, topic_partition: TopicPartition) -> LogFolder | None:
        """The folder in which a log of this name was deleted, while its checkpoint files still list it: call `settle` before a
        new log gets the name."""
        return self.unsettled.get(topic_partition)

    def settle(self, folder: LogFolder) -> None:
        """Remove all deletions up to now from the folder and its checkpoint files, durably. Raises StorageError."""
        settled = [topic_partition for topic_partition, place in self.unsettled.copy().items() if place is folder]
        folder.sync_names()
        folder.write_checkpoint()
        for topic_partition in settled:
            self.unsettled.pop(topic_partition, None)

    def found_due(self, paths: list[str], *, now_ms: int) -> None:
        """Folders of deleted logs, found at a start."""
        self._due_folders.add(now_ms, *paths)

    def found_lost(self, folder: LogFolder, is_known: Callable[[TopicPartition], bool]) -> None:
        """The checkpoint files of a folder may list logs that a power loss took, with their folders: after a crash, their offsets
        must not count for new logs of the same names."""
        for offsets in folder.all_offsets:
            for topic_partition in [name for name in offsets if not is_known(name)]:
                del offsets[topic_partition]
                self.unsettled[topic_partition] = folder

    def remove_due(self, folder: LogFolder, now_ms: int) -> None:
        """Remove files of a folder that were deleted long enough ago, and withdraw offers that were given up. In the folder's
        thread. Raises the first StorageError, after the others are removed."""
        refused: StorageError | None = None
        works: list[Callable[[int], None]] = [log.segments.remove_due_files for log in self._registry.in_folder(folder)]
        works.append(partial(self._due_folders.remove_due, below=folder.path))
        for work in works:
            try:
                work(now_ms)
            except StorageError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def folder_failed(self, folder: LogFolder) -> None:
        """Nothing can be written there, and a new log of a name that it has is created in another folder."""
        self._due_folders.forget_below(folder.path)
        self.unsettled = {name: place for name, place in self.unsettled.items() if place is not folder}

    def _released(self, topic_partition: TopicPartition) -> tuple[PartitionLog, LogFolder]:
        log, folder = self._registry.get(topic_partition), self._registry.folder_of(topic_partition)
        assert log is not None and folder is not None, f"there is no log of {topic_partition} here"
        log.release()
        return log, folder

    def _forget(self, folder: LogFolder, topic_partition: TopicPartition, log: PartitionLog) -> None:
        """Forget the log: its folder was renamed. A pending flush changes nothing under the old name, which may be in use
        again."""
        log.folder.is_gone = True
        if self._registry.is_here(log):
            self._registry.remove(topic_partition)
        for offsets in folder.all_offsets:
            offsets.pop(topic_partition, None)
        self.unsettled[topic_partition] = folder


def _name_aside(topic_partition: TopicPartition, topic_id: str, now_ms: int, suffix: str) -> str:
    """Unique, since a topic may be created and deleted again; short enough for a file name, as Kafka does it."""
    tail = f"-{topic_partition.partition}.{topic_id}.{now_ms}{suffix}"
    return topic_partition.topic[: min(MAX_TOPIC_NAME_LENGTH, _MAX_FILE_NAME_LENGTH - len(tail))] + tail

"""What all logs of a broker need from time to time: retention, flushes that are due, folders that are not durable yet."""

import logging
from collections.abc import Callable, Iterator
from functools import partial

from ..disk.files import Files
from ..partition.partition_log import PartitionLog
from ..vocabulary.errors import CorruptRecordError, DiskFailedError, StorageError
from .log_folder import LogFolder
from .log_registry import LogRegistry

_log = logging.getLogger("barnabas.log")
Refusals = dict[str, StorageError]  # by the path of the folder


class LogUpkeep:
    """In the thread that owns the logs, except for `make_folders_durable`."""

    def __init__(self, files: Files, registry: LogRegistry) -> None:
        self._files = files
        self._registry = registry

    def expire_producers(self, now_ms: int, *, expiration_ms: int) -> None:
        """Remove the idempotent producers that sent nothing for that time."""
        for log in self._registry.logs.values():
            if not log.is_changing:
                log.producers.expire(now_ms, expiration_ms=expiration_ms)

    def run_retention(self, now_ms: int, refused: Refusals) -> Iterator[int]:
        """Remove old segments; yield the number of them after each log. If a disk refuses, the next call tries again; the worst
        refusal of each folder is put into `refused`."""
        for log in list(self._registry.logs.values()):
            folder = self._registry.folder_of(log.topic_partition)
            if folder is None or log.failed or log.is_changing or not self._registry.is_here(log):
                continue  # a failed log must be opened again first; others were removed between two steps
            try:
                gone = log.delete_old_segments(now_ms)
                log.flushes.release_if_idle(now_ms)
            except (StorageError, CorruptRecordError) as error:
                _log.error("event=retention_failed partition=%s cause=%s", log.topic_partition, error)
                if isinstance(error, DiskFailedError) or (
                    isinstance(error, StorageError) and folder.path not in refused
                ):
                    refused[folder.path] = error
                continue
            if gone:
                _log.info("event=segments_deleted partition=%s first=%d count=%d log_start_offset=%d",
                          log.topic_partition, gone[0], len(gone), log.log_start_offset)  # fmt: skip
            yield len(gone)

    def due_for_flush(self, now_ms: int) -> list[PartitionLog]:
        """The logs that need a flush because of flush.messages, flush.ms or a full segment."""
        return [
            log
            for log in self._registry.logs.values()
            if not log.is_changing and log.flushes.is_due(now_ms) and not log.failed
        ]

    def make_folders_durable(self, folder: LogFolder) -> None:
        """Make the folders of logs durable that were created since the last call. May run in another thread: each costs some
        flushes. Their entries in the data folder are flushed together."""
        new = [log for log in self._registry.in_folder(folder) if not log.folder.is_durable and not log.folder.is_gone]
        flushed = [log for log in new if self._is_done(log, log.folder.flush_content)]
        if not flushed or not self._is_done(flushed[0], partial(self._files.sync_dir, folder.path)):
            return
        for log in flushed:
            log.folder.is_durable = True

    def _is_done(self, log: PartitionLog, flush: Callable[[], None]) -> bool:
        try:
            flush()
        except StorageError as error:  # the next flush tries again, unless the log was deleted meanwhile
            if self._registry.is_here(log):
                _log.error("event=folder_not_durable partition=%s cause=%s", log.topic_partition, error)
            return False
        return True

"""All partition logs of a broker, over the folders of `log.dirs`: loading, creating, deleting, checkpoints, retention.

A folder that fails goes offline with all its logs, and the others continue; `reopen_folder` and `attach` bring it back.
Methods that only access the disk (`load_folder`, `reopen_folder`, `give_up`, `remove_due`, `close_folder`, `settle_deletions`,
`make_folders_durable`, those that begin with `write_`) may run in other threads, one at a time for each folder; all others run in
one thread.
"""

import base64
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from ..checkpoints import checkpoint
from ..disk.due_files import DueFiles
from ..disk.files import DiskUsage, Files
from ..partition.partition_folder import make_partition_folder, read_topic_id
from ..partition.partition_log import PartitionLog
from ..segment.open_segments import MAX_OPEN_SEALED_SEGMENTS, OpenSegments
from ..settings.config import LogConfig
from ..vocabulary.errors import (
    CorruptRecordError,
    DiskFailedError,
    InconsistentClusterIdError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from ..vocabulary.topic_partition import MAX_TOPIC_NAME_LENGTH, TopicPartition, check_topic_name
from .folder_loading import DELETE_SUFFIX, STRAY_SUFFIX, ConfigFor, LoadedFolder, LoadProgress, load_folder, open_log
from .log_folder import ForeignFolderError, LogFolder, OfflineFolder

_log = logging.getLogger("barnabas.log")
_MAX_FILE_NAME_LENGTH = 255
Refusals = dict[str, StorageError]  # by the path of the folder


def new_directory_id(random_bytes: bytes | None = None) -> str:
    """A random id in Kafka's form: 16 bytes in URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(random_bytes or uuid.uuid4().bytes).rstrip(b"=").decode()


class LogManager:
    """Maps partitions to their logs. A log that cannot be opened, or whose folder is offline, is named in `offline`."""

    def __init__(
        self,
        files: Files,
        log_dirs: Sequence[str],
        *,
        node_id: int,
        defaults: LogConfig | None = None,
        new_directory_id: Callable[[], str] = new_directory_id,
    ) -> None:
        """Lock the folders. A folder that cannot be used is offline. Raises StorageError if no folder can be used, or if one
        belongs to another node."""
        self._files = files
        self._node_id = node_id
        self._defaults = defaults or LogConfig()
        self._new_directory_id = new_directory_id
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._folder_of: dict[TopicPartition, LogFolder] = {}
        self._open_segments_limit = MAX_OPEN_SEALED_SEGMENTS // max(1, len(log_dirs))
        self._due_folders = DueFiles(files.remove_tree)
        self._deleted: dict[
            TopicPartition, LogFolder
        ] = {}  # since the last checkpoint, whose files may still list them
        self._is_loaded = False
        self._is_closed = False
        self._places = tuple(log_dirs)
        self._offline_in: dict[TopicPartition, str | None] = {}  # the folder; None: an offline one, or none
        self.offline: dict[TopicPartition, str] = {}  # and why
        self.offline_folders: dict[str, OfflineFolder] = {}
        self.failing: dict[str, LogFolder] = {}  # removed from `_folders`; `give_up` is to follow
        self.folders: list[LogFolder] = []
        refused: StorageError | None = None
        try:
            for path in log_dirs:
                try:
                    self.folders.append(self._open_folder(path))
                except ForeignFolderError:
                    raise
                except StorageError as error:
                    refused = refused or error
                    self.offline_folders[path] = OfflineFolder(cause=error.message, since_ms=-1)
            if refused is not None and not self.folders:
                raise refused
            if len({folder.cluster_id for folder in self.folders if folder.cluster_id is not None}) > 1:
                raise InconsistentClusterIdError(f"log.dirs names folders of different clusters: {', '.join(log_dirs)}")
        except BaseException:
            self._unlock()
            raise

    def _open_folder(self, path: str) -> LogFolder:
        return LogFolder(
            self._files,
            path,
            node_id=self._node_id,
            new_directory_id=self._new_directory_id(),
            open_segments=OpenSegments(self._open_segments_limit, lock=threading.Lock()),
        )

    # --- what there is ---

    @property
    def cluster_id(self) -> str | None:
        """None until the broker has joined a cluster."""
        return next((folder.cluster_id for folder in self.folders if folder.cluster_id is not None), None)

    @property
    def was_stopped_cleanly(self) -> bool:
        return all(folder.was_stopped_cleanly for folder in self.folders)

    @property
    def may_have_lost_writes(self) -> bool:
        """True if the machine stopped without a clean stop of the broker: acknowledged writes may be lost."""
        return any(folder.may_have_lost_writes for folder in self.folders)

    @property
    def places(self) -> tuple[str, ...]:
        """The paths of `log.dirs`, whatever their state."""
        return self._places

    def disk_usage(self, path: str) -> DiskUsage:
        """Raises StorageError. May run in another thread."""
        return self._files.disk_usage(path)

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        return self._logs

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def join_cluster(self, cluster_id: str) -> None:
        """Each folder's `write_meta` is to follow. Raises InconsistentClusterIdError if a folder holds the data of another
        cluster."""
        for folder in self.folders:
            folder.join_cluster(cluster_id)

    # --- loading ---

    def load(self, *, now_ms: int, config_for: ConfigFor | None = None) -> None:
        """Open every partition of every folder; only data after the recovery points is scanned."""
        self.begin_loading(now_ms)
        for folder in list(self.folders):
            try:
                self.attach(self.load_folder(folder, now_ms=now_ms, config_for=config_for), now_ms=now_ms)
            except StorageError as error:
                self.fail_folder(folder.path, error.message, now_ms=now_ms)
                self.give_up(folder.path)
        self.end_loading()

    def begin_loading(self, now_ms: int) -> None:
        """Folders that the start could not open are offline from now on."""
        for path, folder in self.offline_folders.items():
            self.offline_folders[path] = OfflineFolder(cause=folder.cause, since_ms=now_ms)
            _log.error("event=folder_offline folder=%s cause=%s", path, folder.cause)

    def load_folder(
        self,
        folder: LogFolder,
        *,
        now_ms: int,
        config_for: ConfigFor | None = None,
        progress: LoadProgress | None = None,
    ) -> LoadedFolder:
        """Open the partitions of one folder, in any thread; `attach` the result. Raises StorageError."""
        return load_folder(
            self._files, folder, config_for or (lambda topic: self._defaults), now_ms=now_ms, progress=progress
        )

    def attach(self, loaded: LoadedFolder, *, now_ms: int) -> None:
        """Take over the logs that were found in a folder."""
        folder = loaded.folder
        if folder not in self.folders:
            self.folders.append(folder)
            self.folders.sort(key=lambda known: self._places.index(known.path))
            self.offline_folders.pop(folder.path, None)
            self._forget_offline(folder.path)
        for topic_partition in loaded.logs:
            self.offline.pop(topic_partition, None)
            self._offline_in.pop(topic_partition, None)
        self._due_folders.add(now_ms, *loaded.due_folders)
        self._note_offline(loaded.offline, folder.path)
        for topic_partition, log in loaded.logs.items():
            known = self._logs.get(topic_partition)
            if known is None:
                self._logs[topic_partition] = log
                self._folder_of[topic_partition] = folder
                continue
            log.release()
            if log.topic_id != known.topic_id and folder.path not in self.offline_folders:
                # Its topic was deleted while the folder was offline, or the metadata is older than the log.
                self._set_aside(folder, topic_partition, log, now_ms)
                continue
            self.offline[topic_partition] = (
                f"the partition is in two folders of log.dirs: {log.directory} is not used, remove one of them"
            )
            _log.error("event=duplicate_partition folder=%s", log.directory)

    def end_loading(self) -> None:
        self._is_loaded = True
        _log.info("event=loaded partitions=%d offline=%d offline_folders=%d clean=%s", len(self._logs),
                  len(self.offline), len(self.offline_folders), self.was_stopped_cleanly)  # fmt: skip

    # --- folders that fail and come back ---

    def folder_of(self, topic_partition: TopicPartition) -> LogFolder | None:
        """The folder with the log of a partition; None if there is no log, or it is offline."""
        return self._folder_of.get(topic_partition)

    def fail_folder(self, path: str, cause: str, *, now_ms: int) -> list[TopicPartition]:
        """Take a folder offline with all its logs, which are returned. `give_up` is to follow: then no file of it stays open, so
        that it can be unmounted."""
        folder = next((folder for folder in self.folders if folder.path == path), None)
        if folder is None:
            return []
        self.folders.remove(folder)
        self.offline_folders[path] = OfflineFolder(
            directory_id=folder.directory_id, cause=cause, since_ms=now_ms, was_in_use=True
        )
        gone = [topic_partition for topic_partition, found in self._folder_of.items() if found is folder]
        for topic_partition in gone:
            self._folder_of.pop(topic_partition)
            self._logs.pop(topic_partition).release()
        self._note_offline(dict.fromkeys(gone, f"the data folder {path} is offline: {cause}"), path)
        self._due_folders.forget_below(path)
        # Nothing can be written there, and a new log of that name is created in another folder.
        self._deleted = {name: place for name, place in self._deleted.items() if place is not folder}
        self.failing[path] = folder
        _log.error("event=folder_offline folder=%s partitions=%d cause=%s", path, len(gone), cause)
        return gone

    def give_up(self, path: str) -> None:
        """Record in a failed folder that writes may be lost, and unlock it: nothing uses it any more."""
        folder = self.failing.get(path)
        if folder is None:
            return
        # It has failed. The cluster learns of the loss anyway, unless this process dies before.
        with suppress(StorageError):
            folder.note_lost_writes()
        folder.close()
        del self.failing[path]

    def fail_log(self, topic_partition: TopicPartition, cause: str) -> None:
        """One log has failed and its folder has not: only the log goes offline."""
        log = self._logs.pop(topic_partition, None)
        if log is not None:
            folder = self._folder_of.pop(topic_partition)
            log.release()
            folder.recovery_points.pop(topic_partition, None)
            self._note_offline({topic_partition: cause}, folder.path)

    def reopen_folder(
        self, path: str, *, now_ms: int, config_for: ConfigFor, progress: LoadProgress | None = None
    ) -> LoadedFolder:
        """Recover the logs of an offline folder, for `attach`. Raises StorageError, InconsistentClusterIdError."""
        folder = self._open_folder(path)
        try:
            if self.cluster_id is not None:
                folder.join_cluster(self.cluster_id)
                folder.write_meta()
            return self.load_folder(folder, now_ms=now_ms, config_for=config_for, progress=progress)
        except BaseException:
            folder.close()
            raise

    def reload_offline(self, path: str, *, now_ms: int, config_for: ConfigFor) -> LoadedFolder:
        """Open the logs of a folder again that could not be opened, or that failed alone. Raises StorageError."""
        folder = next(folder for folder in self.folders if folder.path == path)
        only = frozenset(self.offline_in(path))
        return load_folder(self._files, folder, config_for, now_ms=now_ms, only=only)

    def offline_in(self, path: str) -> list[TopicPartition]:
        """The offline partitions of a folder; while the folder itself is offline, also those that may be in it."""
        return [
            topic_partition
            for topic_partition, place in self._offline_in.items()
            if place == path or (place is None and path in self.offline_folders)
        ]

    def _note_offline(self, causes: Mapping[TopicPartition, str], path: str | None) -> None:
        self.offline.update(causes)
        self._offline_in.update(dict.fromkeys(causes, path))

    def _forget_offline(self, path: str) -> None:
        """The folder is back: forget its offline partitions, and, once no folder is missing, those without a known folder."""
        missing = set(self.offline_folders)
        for topic_partition, place in list(self._offline_in.items()):
            if place == path or (place is None and not missing):
                del self._offline_in[topic_partition]
                self.offline.pop(topic_partition, None)

    # --- creating and deleting ---

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: str,
        now_ms: int,
        config: LogConfig | None = None,
        is_new: bool = True,
    ) -> PartitionLog:
        """A new log goes to the folder with the fewest logs. Raises StorageError if the existing log is offline.

        `is_new` False: the log may have existed here before. Then it is not created again while a folder that may hold it is
        offline (KIP-112): an empty replica in its place would lose records that it has acknowledged.
        """
        log = self._logs.get(topic_partition)
        if log is not None:
            return log
        if topic_partition in self.offline:
            raise StorageError(f"{topic_partition} is offline: {self.offline[topic_partition]}")
        if not is_new and self.offline_folders:
            cause = f"it may be in a data folder that is offline: {', '.join(self.offline_folders)}"
            self._note_offline({topic_partition: cause}, None)
            raise StorageError(f"{topic_partition} is offline: {cause}")
        check_topic_name(topic_partition.topic)
        folder = min(self.folders, key=lambda folder: (folder.is_full, self._log_count(folder)))
        directory = f"{folder.path}/{topic_partition}"
        topic_id = self._make_folder(directory, topic_id)
        if any([offsets.pop(topic_partition, 0) for offsets in folder.all_offsets]):
            self._deleted[topic_partition] = (
                folder  # a power loss took its folder: after a crash, its log start must not count
            )
        if topic_partition in self._deleted:
            self.settle_deletions(self._deleted[topic_partition])  # callers that must not wait do it beforehand
        log = open_log(self._files, folder, topic_partition, config or self._defaults, now_ms, topic_id)
        self._logs[topic_partition] = log
        self._folder_of[topic_partition] = folder
        return log

    def _make_folder(self, directory: str, topic_id: str) -> str:
        """Return the topic id of the folder; that of an earlier topic if its log was not loaded. Raises StorageError."""
        if self._files.exists(directory):
            found = read_topic_id(self._files, directory)
            if found is not None:
                return found
            self._files.remove_tree(directory)
        make_partition_folder(self._files, directory, topic_id)
        return topic_id

    def _log_count(self, folder: LogFolder) -> int:
        return sum(found is folder for found in self._folder_of.values())

    def delete(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Take the log out at once; its files are removed after `file.delete.delay.ms`. Raises UnknownTopicOrPartitionError, and
        StorageError: then the log is still here unless its folder was renamed."""
        log = self._logs.get(topic_partition)
        if log is None:
            if self._offline_in.pop(topic_partition, "") == "":
                raise UnknownTopicOrPartitionError(f"there is no log of {topic_partition} here")
            del self.offline[topic_partition]  # the files in its folder are handled when that is back
            return
        log.release()
        self._retire(self._folder_of[topic_partition], topic_partition, log, now_ms)

    def set_stray_aside(self, topic_partition: TopicPartition, *, now_ms: int) -> str:
        """Take out a log that the cluster does not assign to this broker, and keep its files; return their folder.

        Raises StorageError, as `delete` does.
        """
        log = self._logs[topic_partition]
        log.release()
        return self._set_aside(self._folder_of[topic_partition], topic_partition, log, now_ms)

    def _set_aside(self, folder: LogFolder, topic_partition: TopicPartition, log: PartitionLog, now_ms: int) -> str:
        target = f"{folder.path}/{self._name_aside(topic_partition, log.topic_id, now_ms, STRAY_SUFFIX)}"
        self._files.rename(log.directory, target)
        folder.has_unsynced_names = True
        self._forget(folder, topic_partition, log)
        _log.warning(
            "event=stray partition=%s folder=%s; remove it when its records are not needed", topic_partition, target
        )
        return target

    def strays(self, path: str) -> tuple[str, ...]:
        """The folders of logs that were set aside below an entry of `log.dirs`. Raises StorageError. May run in another
        thread."""
        return tuple(f"{path}/{name}" for name in self._files.list_dir(path) if name.endswith(STRAY_SUFFIX))

    def _retire(self, folder: LogFolder, topic_partition: TopicPartition, log: PartitionLog, now_ms: int) -> None:
        target = f"{folder.path}/{self._name_aside(topic_partition, log.topic_id, now_ms, DELETE_SUFFIX)}"
        self._files.rename(log.directory, target)
        folder.has_unsynced_names = True  # if a power loss undoes the deletion, the log comes back as a stray
        self._due_folders.add(now_ms + log.config.file_delete_delay_ms, target)
        self._forget(folder, topic_partition, log)
        _log.info("event=deleted partition=%s folder=%s", topic_partition, target)

    def _forget(self, folder: LogFolder, topic_partition: TopicPartition, log: PartitionLog) -> None:
        """Forget the log: its folder was renamed."""
        log.folder.is_gone = True
        if self._logs.get(topic_partition) is log:
            del self._logs[topic_partition], self._folder_of[topic_partition]
        for offsets in folder.all_offsets:
            offsets.pop(topic_partition, None)
        self._deleted[topic_partition] = folder

    @staticmethod
    def _name_aside(topic_partition: TopicPartition, topic_id: str, now_ms: int, suffix: str) -> str:
        """Unique, since a topic may be created and deleted again; short enough for a file name, as Kafka does it."""
        tail = f"-{topic_partition.partition}.{topic_id}.{now_ms}{suffix}"
        return topic_partition.topic[: min(MAX_TOPIC_NAME_LENGTH, _MAX_FILE_NAME_LENGTH - len(tail))] + tail

    # --- periodic work ---

    def expire_producers(self, now_ms: int, *, expiration_ms: int) -> None:
        """Remove the idempotent producers that sent nothing for that time."""
        for log in self._logs.values():
            if not log.is_changing:
                log.producers.expire(now_ms, expiration_ms=expiration_ms)

    def unsettled_folder(self, topic_partition: TopicPartition) -> LogFolder | None:
        """The folder in which a log of this name was deleted, while its checkpoint files still list it. A crash must not give a
        new log the recovery point of the old one: call `settle_deletions` first."""
        return self._deleted.get(topic_partition)

    def settle_deletions(self, folder: LogFolder) -> None:
        """Remove all deletions up to now from the folder and its checkpoint files, durably. Raises StorageError."""
        settled = [topic_partition for topic_partition, place in self._deleted.copy().items() if place is folder]
        folder.sync_names()
        folder.write_checkpoint()
        for topic_partition in settled:
            self._deleted.pop(topic_partition, None)

    def run_retention(self, now_ms: int, refused: Refusals) -> Iterator[int]:
        """Remove old segments; yield the number of them after each log. If a disk refuses, the next call tries again; the worst
        refusal of each folder is put into `refused`."""
        for topic_partition, log in list(self._logs.items()):
            if log.failed or log.is_changing or self._logs.get(topic_partition) is not log:
                continue  # a failed log must be opened again first; others were removed between two steps
            try:
                gone = log.delete_old_segments(now_ms)
                log.flushes.release_if_idle(now_ms)
            except (StorageError, CorruptRecordError) as error:
                _log.error("event=retention_failed partition=%s cause=%s", topic_partition, error)
                path = self._folder_of[topic_partition].path
                if isinstance(error, DiskFailedError) or (isinstance(error, StorageError) and path not in refused):
                    refused[path] = error
                continue
            if gone:
                _log.info("event=segments_deleted partition=%s first=%d count=%d log_start_offset=%d",
                          topic_partition, gone[0], len(gone), log.log_start_offset)  # fmt: skip
            yield len(gone)

    def remove_due(self, folder: LogFolder, now_ms: int) -> None:
        """Remove files of a folder that were deleted long enough ago, and withdraw offers that were given up. In the folder's
        thread. Raises the first StorageError, after the others are removed."""
        refused: StorageError | None = None
        works: list[Callable[[int], None]] = [log.segments.remove_due_files for log in self.logs_in(folder)]
        works.append(partial(self._due_folders.remove_due, below=folder.path))
        for work in works:
            try:
                work(now_ms)
            except StorageError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def make_folders_durable(self, folder: LogFolder) -> None:
        """Make the folders of logs durable that were created since the last call. May run in another thread: each costs some
        flushes."""
        for log in [log for log in self.logs_in(folder) if not log.folder.is_durable]:
            try:
                log.folder.make_durable()
            except StorageError as error:  # the next flush tries again, unless the log was deleted meanwhile
                if self._logs.get(log.topic_partition) is log:
                    _log.error("event=folder_not_durable partition=%s cause=%s", log.topic_partition, error)

    def due_for_flush(self, now_ms: int) -> list[PartitionLog]:
        """The logs that need a flush because of flush.messages, flush.ms or a full segment."""
        return [
            log for log in self._logs.values() if not log.is_changing and log.flushes.is_due(now_ms) and not log.failed
        ]

    # A checkpoint: the indexes are saved, the offsets noted in the thread that owns the logs, and written in another one.

    def save_indexes(self, folder: LogFolder) -> Iterator[None]:
        """Save the indexes of one log after the other, without a flush. Raises StorageError."""
        for log in self.logs_in(folder):
            # Others were removed between two steps: their folder is gone, or belongs to a new log of the same name.
            if self._logs.get(log.topic_partition) is log and not log.failed and not log.is_changing:
                log.tail.save(log.recovery_point)
                yield

    def note_offsets(self, folder: LogFolder) -> None:
        """Note the values that a start needs: recovery points, log start offsets, high watermarks. Logs that another thread is
        changing are skipped: that thread has lowered their recovery point already."""
        logs = [log for log in self.logs_in(folder) if not log.is_changing]
        recovery_points = {log.topic_partition: log.recovery_point for log in logs if log.folder.is_durable}
        folder.recovery_points.update(recovery_points)
        folder.log_start_offsets.update({log.topic_partition: log.log_start_offset for log in logs})
        self.note_high_watermarks(folder)

    def note_high_watermarks(self, folder: LogFolder) -> None:
        """Only the high watermarks, which change all the time."""
        folder.high_watermarks.update({log.topic_partition: log.high_watermark for log in self.logs_in(folder)})

    def write_high_watermarks(self, folder: LogFolder) -> None:
        """Raises StorageError."""
        folder.write_offsets(checkpoint.HIGH_WATERMARKS, folder.high_watermarks)

    def checkpoint(self) -> Refusals:
        """A whole checkpoint at once, for callers that may wait for the disk. A failure of one folder does not affect the
        others."""
        refused: Refusals = {}
        for folder in list(self.folders):
            try:
                self._checkpoint(folder)
            except StorageError as error:
                refused[folder.path] = error
        return refused

    def _checkpoint(self, folder: LogFolder) -> None:
        for _ in self.save_indexes(folder):
            pass
        self.note_offsets(folder)
        self.settle_deletions(folder)

    def logs_in(self, folder: LogFolder) -> list[PartitionLog]:
        """May run in another thread, while logs come and go. `copy` is one step for other threads; `list(items())` is not: it
        makes tuples, which may start a garbage collection, whose finalizers let other threads run."""
        found = [self._logs.get(key) for key, place in self._folder_of.copy().items() if place is folder]
        return [log for log in found if log is not None]

    def cleaned_up_to(self, topic_partition: TopicPartition) -> int:
        """The first offset of a log that was not compacted yet; 0 if nothing was."""
        return self._folder_of[topic_partition].cleaned_offsets.get(topic_partition, 0)

    def note_cleaned(self, topic_partition: TopicPartition, end_offset: int) -> LogFolder:
        """The log is compacted up to there (exclusive). `write_cleaned` of its folder, which is returned, is to follow."""
        folder = self._folder_of[topic_partition]
        folder.cleaned_offsets[topic_partition] = end_offset
        return folder

    def write_cleaned(self, folder: LogFolder) -> None:
        """Raises StorageError."""
        folder.write_offsets(checkpoint.CLEANED_OFFSETS, folder.cleaned_offsets)

    # --- stopping ---

    def close(self) -> None:
        """Stop cleanly: flush all, checkpoint, mark each folder whose logs could all be closed, unlock.

        If `load` did not complete, some logs were not checked, so the next start must check them. May be
        called twice.
        """
        if self._is_closed:
            return
        for folder in self.folders:
            self.close_folder(folder)
        for path in list(self.failing):
            self.give_up(path)
        self.end_closing()

    def close_folder(self, folder: LogFolder) -> None:
        """Flush the logs of one folder, and mark it as clean if that succeeded. May run in another thread."""
        try:
            is_clean = self._close_logs(folder)
            folder.write_meta()
            if self._is_loaded:
                self._checkpoint(folder)
            if self._is_loaded and is_clean:
                folder.mark_clean()
        except StorageError as error:
            _log.error("event=unclean_stop folder=%s cause=%s", folder.path, error)

    def end_closing(self) -> None:
        """Every folder has been closed: unlock them."""
        self._is_closed = True
        self._logs.clear()
        self._folder_of.clear()
        self._unlock()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _close_logs(self, folder: LogFolder) -> bool:
        is_clean = True
        for log in self.logs_in(folder):
            try:
                log.close()
            except StorageError as error:
                is_clean = False
                _log.error("event=unclean_stop partition=%s cause=%s", log.topic_partition, error)
        return is_clean

    def _unlock(self) -> None:
        for folder in self.folders:
            folder.close()

"""All partition logs of a broker, over the folders of `log.dirs`: opening, creating and closing them, and folders that fail.

A folder that fails goes offline with all its logs, and the others continue; `reopen_folder` and `attach` bring it back. The parts
do the rest: `registry` finds logs, `removals` deletes them, `upkeep` and `checkpoints` are the periodic work.

Methods that only access the disk (`load_folder`, `reopen_folder`, `give_up`, `close_logs`, `end_folder`) may run in other
threads, one at a time for each folder, but `close_logs` for some logs of it beside others; all others run in one thread.
"""

import base64
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ..disk.files import DiskUsage, Files
from ..partition.partition_folder import make_partition_folder, read_topic_id
from ..partition.partition_log import PartitionLog
from ..segment.open_segments import MAX_OPEN_SEALED_SEGMENTS, OpenSegments
from ..settings.config import LogConfig
from ..vocabulary.errors import InconsistentClusterIdError, StorageError, UnknownTopicOrPartitionError
from ..vocabulary.topic_partition import TopicPartition, check_topic_name
from .folder_loading import ConfigFor, LoadedFolder, LoadProgress, load_folder, open_log
from .log_checkpoints import LogCheckpoints
from .log_folder import ForeignFolderError, LogFolder, OfflineFolder
from .log_registry import LogRegistry
from .log_removals import LogRemovals
from .log_upkeep import LogUpkeep
from .offline_logs import OfflineLogs

_log = logging.getLogger("barnabas.log")


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
        max_open_segments: int = MAX_OPEN_SEALED_SEGMENTS,
    ) -> None:
        """Lock the folders. A folder that cannot be used is offline. `max_open_segments`: sealed ones, over all folders.

        Raises StorageError if no folder can be used, or if one belongs to another node."""
        self._files = files
        self._node_id = node_id
        self._defaults = defaults or LogConfig()
        self._new_directory_id = new_directory_id
        self._open_segments_limit = max(1, max_open_segments // max(1, len(log_dirs)))
        self._is_loaded = False
        self.is_closed = False
        self.places = tuple(log_dirs)  # whatever their state
        self.offline_folders: dict[str, OfflineFolder] = {}
        self.offline = OfflineLogs(self.offline_folders)
        self.failing: dict[str, LogFolder] = {}  # removed from `folders`; `give_up` is to follow
        self.folders: list[LogFolder] = []
        self.registry = LogRegistry()
        self.removals = LogRemovals(files, self.registry)
        self.upkeep = LogUpkeep(files, self.registry)
        self.checkpoints = LogCheckpoints(self.registry, self.removals, self.folders)
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

    def disk_usage(self, path: str) -> DiskUsage:
        """Raises StorageError. May run in another thread."""
        return self._files.disk_usage(path)

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        return self.registry.logs

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self.registry.get(topic_partition)

    def folder_of(self, topic_partition: TopicPartition) -> LogFolder | None:
        """The folder with the log of a partition; None if there is no log, or it is offline."""
        return self.registry.folder_of(topic_partition)

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
            self.folders.sort(key=lambda known: self.places.index(known.path))
            self.offline_folders.pop(folder.path, None)
            self.offline.folder_is_back(folder.path)
        self.offline.forget(loaded.logs)
        self.removals.found_due(loaded.due_folders, now_ms=now_ms)
        self.offline.note(loaded.offline, folder.path)
        for topic_partition, log in loaded.logs.items():
            known = self.registry.get(topic_partition)
            if known is None:
                self.registry.add(log, folder)
                continue
            log.release()
            if log.topic_id != known.topic_id and folder.path not in self.offline_folders:
                # Its topic was deleted while the folder was offline, or the metadata is older than the log.
                self.removals.set_aside(log, folder, now_ms=now_ms)
                continue
            self.offline.note_twin(
                topic_partition,
                f"the partition is in two folders of log.dirs: {log.directory} is not used, remove one of them",
            )
            _log.error("event=duplicate_partition folder=%s", log.directory)
        here = {log.topic_partition for log in self.registry.in_folder(folder)}
        self.removals.found_lost(
            folder, lambda topic_partition: topic_partition in here or topic_partition in self.offline
        )

    def end_loading(self) -> None:
        self._is_loaded = True
        _log.info("event=loaded partitions=%d offline=%d offline_folders=%d clean=%s", len(self.logs),
                  len(self.offline), len(self.offline_folders), self.was_stopped_cleanly)  # fmt: skip

    # --- folders that fail and come back ---

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
        gone = self.registry.remove_folder(folder)
        for log in gone.values():
            log.release()
        self.offline.note(dict.fromkeys(gone, f"the data folder {path} is offline: {cause}"), path)
        self.removals.folder_failed(folder)
        self.failing[path] = folder
        _log.error("event=folder_offline folder=%s partitions=%d cause=%s", path, len(gone), cause)
        return list(gone)

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
        if self.registry.get(topic_partition) is not None:
            log, folder = self.registry.remove(topic_partition)
            log.release()
            folder.recovery_points.pop(topic_partition, None)
            self.offline.note({topic_partition: cause}, folder.path)

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
        only = frozenset(self.offline.in_folder(path))
        return load_folder(self._files, folder, config_for, now_ms=now_ms, only=only)

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
        log = self.registry.get(topic_partition)
        if log is not None:
            return log
        if topic_partition in self.offline:
            raise StorageError(f"{topic_partition} is offline: {self.offline[topic_partition]}")
        if not is_new and self.offline_folders:
            cause = f"it may be in a data folder that is offline: {', '.join(self.offline_folders)}"
            self.offline.note({topic_partition: cause}, None)
            raise StorageError(f"{topic_partition} is offline: {cause}")
        check_topic_name(topic_partition.topic)
        if not self.folders:  # the broker is about to stop
            raise StorageError(f"cannot create {topic_partition}: every data folder of the broker is offline")
        folder = self.folders[0]
        if len(self.folders) > 1:
            folder = min(self.folders, key=lambda folder: (folder.is_full, self.registry.count_in(folder)))
        directory = f"{folder.path}/{topic_partition}"
        topic_id = self._make_folder(directory, topic_id)
        unsettled = self.removals.unsettled_folder(topic_partition)
        if unsettled is not None:
            self.removals.settle(unsettled)  # callers that must not wait do it beforehand
        log = open_log(self._files, folder, topic_partition, config or self._defaults, now_ms, topic_id)
        self.registry.add(log, folder)
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

    def delete(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Take the log out at once; its files are removed after `file.delete.delay.ms`. Raises UnknownTopicOrPartitionError, and
        StorageError: then the log is still here unless its folder was renamed."""
        if self.registry.get(topic_partition) is not None:
            self.removals.retire(topic_partition, now_ms=now_ms)
        elif self.offline.has_place(topic_partition):
            self.offline.forget([topic_partition])  # the files in its folder are handled when that is back
        else:
            raise UnknownTopicOrPartitionError(f"there is no log of {topic_partition} here")

    # --- stopping ---

    def close(self) -> None:
        """Stop cleanly: flush all, checkpoint, mark each folder whose logs could all be closed, unlock.

        If `load` did not complete, some logs were not checked, so the next start must check them. May be
        called twice.
        """
        if self.is_closed:
            return
        self.begin_closing()
        for folder in self.folders:
            self.end_folder(folder, is_clean=self.close_logs(self.logs_of(folder)))
        for path in list(self.failing):
            self.give_up(path)
        self.end_closing()

    def begin_closing(self) -> None:
        """Before `close_logs`: threads that flush their logs must not release segments of others."""
        for folder in self.folders:
            folder.open_segments.leave_to_their_logs()

    def logs_of(self, folder: LogFolder) -> list[PartitionLog]:
        return self.registry.in_folder(folder)

    def close_logs(self, logs: Sequence[PartitionLog]) -> bool:
        """Flush and close them. False: some could not be closed cleanly."""
        is_clean = True
        for log in logs:
            try:
                log.close()
            except StorageError as error:
                is_clean = False
                _log.error("event=unclean_stop partition=%s cause=%s", log.topic_partition, error)
        return is_clean

    def end_folder(self, folder: LogFolder, *, is_clean: bool) -> None:
        """All of its logs are closed. Write its checkpoints, and mark it as clean if all of that succeeded."""
        try:
            folder.write_meta()
            if self._is_loaded:
                self.checkpoints.take_of(folder)
            if self._is_loaded and is_clean:
                folder.mark_clean()
        except StorageError as error:
            _log.error("event=unclean_stop folder=%s cause=%s", folder.path, error)

    def end_closing(self) -> None:
        """Every folder has been closed: unlock them."""
        self.is_closed = True
        self.registry.clear()
        self._unlock()

    def _unlock(self) -> None:
        for folder in self.folders:
            folder.close()

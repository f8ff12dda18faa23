"""All partition logs of a broker, over the folders of `log.dirs`: loading, creating, deleting, checkpoints, retention.

`remove_due` only touches the disk and may run in another thread; everything else runs in one.
"""

import base64
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from . import checkpoint
from .config import LogConfig
from .errors import CorruptRecordError, InconsistentClusterIdError, StorageError, UnknownTopicOrPartitionError
from .files import Files
from .log_folder import LogFolder
from .open_segments import OpenSegments
from .partition_log import PartitionLog
from .topic_partition import MAX_TOPIC_NAME_LENGTH, TopicPartition, check_topic_name

_log = logging.getLogger("barnabas.log")
PARTITION_METADATA = "partition.metadata"
DELETE_SUFFIX = "-delete"
IDLE_MS = 600_000  # a partition without appends for so long needs no open file; it opens again in microseconds
_MAX_FILE_NAME_LENGTH = 255


def new_directory_id(random_bytes: bytes | None = None) -> str:
    """A random id as Kafka writes them: 16 bytes in URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(random_bytes or uuid.uuid4().bytes).rstrip(b"=").decode()


class LogManager:
    """Maps partitions to their logs. A log that cannot be opened is left out and named in `offline`."""

    def __init__(
        self,
        files: Files,
        log_dirs: Sequence[str],
        *,
        node_id: int,
        defaults: LogConfig | None = None,
        new_directory_id: Callable[[], str] = new_directory_id,
    ) -> None:
        """Lock the folders. Raises StorageError when one is in use, or is another node's."""
        self._files = files
        self._defaults = defaults or LogConfig()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._folder_of: dict[TopicPartition, LogFolder] = {}
        self._open_segments = OpenSegments()
        self._due_folders: list[tuple[int, str]] = []
        self._deleted: set[TopicPartition] = set()  # since the last checkpoint: its files may still name them
        self._is_loaded = False
        self._is_closed = False
        self.offline: dict[TopicPartition, str] = {}
        self.folders: list[LogFolder] = []
        try:
            for path in log_dirs:
                self.folders.append(LogFolder(files, path, node_id=node_id, new_directory_id=new_directory_id()))
            if len({folder.cluster_id for folder in self.folders if folder.cluster_id is not None}) > 1:
                raise InconsistentClusterIdError(f"the folders {', '.join(log_dirs)} belong to different clusters")
        except BaseException:
            self._unlock()
            raise

    # --- what there is ---

    @property
    def cluster_id(self) -> str | None:
        """None as long as the broker has joined no cluster."""
        return next((folder.cluster_id for folder in self.folders if folder.cluster_id is not None), None)

    @property
    def was_stopped_cleanly(self) -> bool:
        return all(folder.was_stopped_cleanly for folder in self.folders)

    @property
    def may_have_lost_writes(self) -> bool:
        """True after a stop of the machine without a clean stop of the broker: acknowledged writes may be gone."""
        return any(folder.may_have_lost_writes for folder in self.folders)

    def loss_was_told(self) -> None:
        """The cluster knows of it. Raises StorageError."""
        for folder in self.folders:
            folder.loss_was_told()

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        return self._logs

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """The high watermark when it was written last, before the start; 0 when it never was."""
        return next(
            (found for folder in self.folders if (found := folder.high_watermarks.get(topic_partition)) is not None), 0
        )

    def join_cluster(self, cluster_id: str) -> None:
        """Raises InconsistentClusterIdError when a folder holds the data of another cluster."""
        for folder in self.folders:
            folder.join_cluster(cluster_id)

    # --- loading and creating ---

    def load(self, *, now_ms: int, config_for: Callable[[str], LogConfig] | None = None) -> None:
        """Open every partition of every folder; only what lies behind the recovery points is scanned."""
        for folder in self.folders:
            for name in self._files.list_dir(folder.path):
                if name.endswith(DELETE_SUFFIX):
                    self._due_folders.append((now_ms, f"{folder.path}/{name}"))
                    continue
                topic_partition = _partition_of(name)
                if topic_partition is not None:
                    config = config_for(topic_partition.topic) if config_for is not None else self._defaults
                    self._load(folder, topic_partition, config, now_ms)
        self._is_loaded = True
        _log.info("event=loaded partitions=%d offline=%d clean=%s", len(self._logs), len(self.offline),
                  self.was_stopped_cleanly)  # fmt: skip

    def _load(self, folder: LogFolder, topic_partition: TopicPartition, config: LogConfig, now_ms: int) -> None:
        directory = f"{folder.path}/{topic_partition}"
        if topic_partition in self._logs:
            self.offline[topic_partition] = (
                f"it is in two folders of log.dirs: {directory} is left out, remove one of them"
            )
            _log.error("event=duplicate_partition folder=%s", directory)
            return
        try:
            log = self._open(folder, topic_partition, config, now_ms)
        except (StorageError, CorruptRecordError) as error:
            self.offline[topic_partition] = error.message
            folder.recovery_points.pop(topic_partition, None)  # no stop is clean for a log that nobody could recover
            _log.error("event=offline partition=%s cause=%s", topic_partition, error)
            return
        log.set_high_watermark(folder.high_watermarks.get(topic_partition, 0))

    def _open(
        self, folder: LogFolder, topic_partition: TopicPartition, config: LogConfig, now_ms: int, topic_id: str = ""
    ) -> PartitionLog:
        directory = f"{folder.path}/{topic_partition}"
        metadata = checkpoint.read_properties(self._files, f"{directory}/{PARTITION_METADATA}", separator=": ")
        log = PartitionLog(
            self._files,
            directory,
            topic_partition=topic_partition,
            topic_id=metadata.get("topic_id", topic_id),
            config=config,
            now_ms=now_ms,
            log_start_offset=folder.log_start_offsets.get(topic_partition, 0),
            recovery_point=folder.recovery_points.get(topic_partition, 0),
            was_stopped_cleanly=folder.was_stopped_cleanly and topic_partition in folder.recovery_points,
            open_segments=self._open_segments,
            before_truncation=lambda end_offset: self._lower_recovery_point(folder, topic_partition, end_offset),
        )
        self._logs[topic_partition] = log
        self._folder_of[topic_partition] = folder
        return log

    def get_or_create(
        self, topic_partition: TopicPartition, *, topic_id: str, now_ms: int, config: LogConfig | None = None
    ) -> PartitionLog:
        """A new log goes to the folder with the fewest. Raises StorageError when the log that is there is offline."""
        log = self._logs.get(topic_partition)
        if log is not None:
            return log
        if topic_partition in self.offline:
            raise StorageError(f"{topic_partition} is offline: {self.offline[topic_partition]}")
        check_topic_name(topic_partition.topic)
        folder = min(self.folders, key=self._log_count)
        directory = f"{folder.path}/{topic_partition}"
        self._files.make_dirs(directory)
        checkpoint.write_properties(
            self._files, f"{directory}/{PARTITION_METADATA}", {"version": "0", "topic_id": topic_id}, separator=": "
        )
        for offsets in (folder.recovery_points, folder.log_start_offsets, folder.high_watermarks):
            offsets.pop(topic_partition, None)  # of a partition of the same name that was deleted
        if topic_partition in self._deleted:
            self.checkpoint()  # a crash must not give the new log the old one's recovery point
        return self._open(folder, topic_partition, config or self._defaults, now_ms, topic_id)

    def _log_count(self, folder: LogFolder) -> int:
        return sum(found is folder for found in self._folder_of.values())

    def delete(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Take the log out at once; its files go after `file.delete.delay.ms`. Raises UnknownTopicOrPartitionError."""
        log = self._logs.pop(topic_partition, None)
        if log is None:
            raise UnknownTopicOrPartitionError(f"there is no log of {topic_partition} here")
        folder = self._folder_of.pop(topic_partition)
        log.release()
        target = f"{folder.path}/{self._name_for_deletion(topic_partition, log.topic_id, now_ms)}"
        self._files.rename(log.directory, target)
        self._files.sync_dir(folder.path)
        self._due_folders.append((now_ms + log.config.file_delete_delay_ms, target))
        for offsets in (folder.recovery_points, folder.log_start_offsets, folder.high_watermarks):
            offsets.pop(topic_partition, None)
        self._deleted.add(topic_partition)
        _log.info("event=deleted partition=%s folder=%s", topic_partition, target)

    @staticmethod
    def _name_for_deletion(topic_partition: TopicPartition, topic_id: str, now_ms: int) -> str:
        """Unique, since a topic may be made and deleted again; short enough for a file name, as Kafka does it."""
        tail = f"-{topic_partition.partition}.{topic_id}.{now_ms}{DELETE_SUFFIX}"
        return topic_partition.topic[: min(MAX_TOPIC_NAME_LENGTH, _MAX_FILE_NAME_LENGTH - len(tail))] + tail

    # --- what is done from time to time ---

    def run_retention(self, now_ms: int) -> int:
        """Let old segments go; return how many. A log whose disk refuses is passed over, its owner sees `failed`."""
        count = 0
        for topic_partition, log in list(self._logs.items()):
            try:
                gone = log.delete_old_segments(now_ms)
                log.release_if_idle(now_ms, idle_ms=IDLE_MS)
            except (StorageError, CorruptRecordError) as error:
                _log.error("event=retention_failed partition=%s cause=%s", topic_partition, error)
                continue
            if gone:
                count += len(gone)
                _log.info("event=segments_deleted partition=%s first=%d count=%d log_start_offset=%d",
                          topic_partition, gone[0], len(gone), log.log_start_offset)  # fmt: skip
        return count

    def remove_due(self, now_ms: int) -> None:
        """Unlink what was deleted long enough ago. May run in another thread."""
        for log in list(self._logs.values()):
            log.remove_due_files(now_ms)
        for entry in [entry for entry in self._due_folders if entry[0] <= now_ms]:
            self._files.remove_tree(entry[1])
            self._due_folders.remove(entry)

    def due_for_flush(self, now_ms: int) -> list[PartitionLog]:
        """The logs of which flush.messages, flush.ms or a full segment asks for a flush."""
        return [log for log in self._logs.values() if log.is_flush_due(now_ms) and not log.failed]

    def folder_of(self, topic_partition: TopicPartition) -> str:
        """The data folder that holds it; "" when it is gone. Folders are disks: one's flushes need not wait for another's."""
        folder = self._folder_of.get(topic_partition)
        return "" if folder is None else folder.path

    def checkpoint(self) -> None:
        """Write the offsets that a start needs: recovery points, log start offsets, high watermarks."""
        for folder in self.folders:
            self._checkpoint(folder)
        self._deleted.clear()

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks alone, which change all the time."""
        for folder in self.folders:
            self._checkpoint_high_watermarks(folder)

    def _checkpoint_high_watermarks(self, folder: LogFolder) -> None:
        folder.high_watermarks.update({log.topic_partition: log.high_watermark for log in self._logs_in(folder)})
        folder.write_offsets(checkpoint.HIGH_WATERMARKS, folder.high_watermarks)

    def _checkpoint(self, folder: LogFolder) -> None:
        logs = list(self._logs_in(folder))
        for log in logs:
            if not log.failed:
                log.save_indexes()
        recovery_points = {log.topic_partition: log.recovery_point for log in logs}
        folder.recovery_points.update(recovery_points)
        folder.write_offsets(checkpoint.RECOVERY_POINTS, folder.recovery_points)
        folder.log_start_offsets.update({log.topic_partition: log.log_start_offset for log in logs})
        folder.write_offsets(checkpoint.LOG_START_OFFSETS, folder.log_start_offsets)
        self._checkpoint_high_watermarks(folder)

    def _lower_recovery_point(self, folder: LogFolder, topic_partition: TopicPartition, end_offset: int) -> None:
        """Before a truncation: after a crash everything behind the new end must be scanned, whatever is written
        there."""
        if folder.recovery_points.get(topic_partition, 0) > end_offset:
            folder.recovery_points[topic_partition] = end_offset
            folder.write_offsets(checkpoint.RECOVERY_POINTS, folder.recovery_points)

    def _logs_in(self, folder: LogFolder) -> Iterable[PartitionLog]:
        return (log for key, log in self._logs.items() if self._folder_of[key] is folder)

    # --- stopping ---

    def close(self) -> None:
        """Stop cleanly: flush all, checkpoint, mark each folder whose logs could all be closed, unlock.

        Where `load` did not come to its end there are logs that nobody looked at, so the next start must do that. May be
        called twice.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for folder in self.folders:
            try:
                is_clean = self._close_logs(folder)
                if self._is_loaded:
                    self._checkpoint(folder)
                if self._is_loaded and is_clean:
                    folder.mark_clean()
            except StorageError as error:
                _log.error("event=unclean_stop folder=%s cause=%s", folder.path, error)
        self._logs.clear()
        self._folder_of.clear()
        self._unlock()

    def _close_logs(self, folder: LogFolder) -> bool:
        is_clean = True
        for log in self._logs_in(folder):
            try:
                log.close()
            except StorageError as error:
                is_clean = False
                _log.error("event=unclean_stop partition=%s cause=%s", log.topic_partition, error)
        return is_clean

    def _unlock(self) -> None:
        for folder in self.folders:
            folder.close()


def _partition_of(name: str) -> TopicPartition | None:
    """The partition that a folder of this name holds; None for what is not ours."""
    topic, found, partition = name.rpartition("-")
    if not found or not topic or not partition.isascii() or not partition.isdigit():
        return None
    return TopicPartition(topic, int(partition))

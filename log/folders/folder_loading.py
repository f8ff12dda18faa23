"""Opening the partition logs of one data folder: used at a start, and when a folder comes back.

Nothing here depends on other folders, so that each folder may be loaded in its own thread. Only data after the recovery points is
read; after an unclean stop it is read from the disk and not from memory, which may hold data that never reached the disk.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ..checkpoints import checkpoint
from ..disk.files import Files
from ..partition.partition_folder import read_topic_id
from ..partition.partition_log import PartitionLog
from ..segment.segment import LOG_SUFFIX
from ..settings.config import LogConfig
from ..vocabulary.errors import CorruptRecordError, StorageError
from ..vocabulary.topic_partition import TopicPartition
from .log_folder import LogFolder

_log = logging.getLogger("barnabas.log")
DELETE_SUFFIX = "-delete"
# For a partition that the cluster does not assign to this broker. The folder is kept until an operator removes it.
STRAY_SUFFIX = "-stray"

ConfigFor = Callable[[str], LogConfig]


class LoadingStoppedError(StorageError):
    """The broker had to stop while it loaded its logs."""


@dataclass(slots=True, kw_only=True)
class LoadProgress:
    """The progress of loading one folder. Written by its thread, read by others; others set `wants_stop`."""

    path: str
    partitions_total: int = 0
    partitions_done: int = 0
    scanned_bytes: int = 0  # after the recovery points
    is_done: bool = False
    wants_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFolder:
    """Everything that was found in a folder; not registered anywhere yet."""

    folder: LogFolder
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    offline: dict[TopicPartition, str] = field(default_factory=dict)  # logs that could not be opened, and why
    due_folders: list[str] = field(default_factory=list)  # of partitions that were deleted


def load_folder(
    files: Files,
    folder: LogFolder,
    config_for: ConfigFor,
    *,
    now_ms: int,
    progress: LoadProgress | None = None,
    only: frozenset[TopicPartition] | None = None,
) -> LoadedFolder:
    """Open every partition of a folder, or `only` some. Partitions that cannot be opened are noted in `offline`.

    Raises StorageError, LoadingStoppedError.
    """
    progress = progress or LoadProgress(path=folder.path)
    loaded = LoadedFolder(folder=folder)
    found: list[TopicPartition] = []
    for name in files.list_dir(folder.path):
        topic_partition = partition_of(name)
        if only is not None and topic_partition not in only:
            continue
        if name.endswith(STRAY_SUFFIX):
            _log.warning("event=stray_kept folder=%s/%s; remove it when its records are not needed", folder.path, name)
        elif name.endswith(DELETE_SUFFIX):
            loaded.due_folders.append(f"{folder.path}/{name}")
        elif topic_partition is not None:
            found.append(topic_partition)
    progress.partitions_total = len(found)
    for topic_partition in found:
        if progress.wants_stop:
            raise LoadingStoppedError(f"loading {folder.path} was stopped before it was complete")
        _load(files, loaded, topic_partition, config_for(topic_partition.topic), now_ms, progress)
        progress.partitions_done += 1
    progress.is_done = True
    return loaded


def _load(
    files: Files,
    loaded: LoadedFolder,
    topic_partition: TopicPartition,
    config: LogConfig,
    now_ms: int,
    progress: LoadProgress,
) -> None:
    folder = loaded.folder
    try:
        if not _is_clean(folder, topic_partition):
            progress.scanned_bytes += _read_from_disk(files, folder, topic_partition)
        directory = f"{folder.path}/{topic_partition}"
        is_known_durable = topic_partition in folder.recovery_points
        may_be_unfinished = folder.may_have_lost_writes and not is_known_durable
        topic_id = read_topic_id(files, directory, may_be_unfinished=may_be_unfinished)
        if topic_id is None:
            _log.warning("event=unfinished_partition_removed folder=%s", directory)
            files.remove_tree(directory)
            return
        log = open_log(files, folder, topic_partition, config, now_ms, topic_id)
    except (StorageError, CorruptRecordError) as error:
        loaded.offline[topic_partition] = error.message
        # The log was not recovered, so the next start must not trust a clean stop.
        folder.recovery_points.pop(topic_partition, None)
        _log.error("event=offline partition=%s cause=%s", topic_partition, error)
        return
    log.set_high_watermark(folder.high_watermarks.get(topic_partition, 0))
    loaded.logs[topic_partition] = log


def _is_clean(folder: LogFolder, topic_partition: TopicPartition) -> bool:
    return folder.was_stopped_cleanly and topic_partition in folder.recovery_points


def _read_from_disk(files: Files, folder: LogFolder, topic_partition: TopicPartition) -> int:
    """Make the segments after the recovery point be read from the disk; return their size in bytes."""
    directory = f"{folder.path}/{topic_partition}"
    recovery_point = folder.recovery_points.get(topic_partition, 0)
    names = [name for name in files.list_dir(directory) if name.endswith(LOG_SUFFIX)]
    bases = [int(stem) if (stem := name[: -len(LOG_SUFFIX)]).isdigit() else -1 for name in names]
    size_bytes = 0
    for name, end_offset in zip(names, [*bases[1:], None], strict=False):
        if end_offset is None or end_offset > recovery_point:
            files.drop_cached(f"{directory}/{name}")
            size_bytes += files.size_bytes(f"{directory}/{name}")
    return size_bytes


def open_log(
    files: Files,
    folder: LogFolder,
    topic_partition: TopicPartition,
    config: LogConfig,
    now_ms: int,
    topic_id: str,
) -> PartitionLog:
    """Open one partition of a folder, which may be new. Raises StorageError, CorruptRecordError."""
    directory = f"{folder.path}/{topic_partition}"

    def lower_recovery_point(end_offset: int) -> None:
        """Before a truncation: after a crash, everything after the new end must be scanned, whatever is written there."""
        folder.lower(checkpoint.RECOVERY_POINTS, folder.recovery_points, topic_partition, end_offset)
        # Records that are appended there are dirty.
        folder.lower(checkpoint.CLEANED_OFFSETS, folder.cleaned_offsets, topic_partition, end_offset)
        lower_log_start(end_offset)

    def lower_log_start(offset: int) -> None:
        """For a log that lost its end, or was cut, below the start that was stored: otherwise, records appended from there on
        would count as deleted after the next crash."""
        folder.lower(checkpoint.LOG_START_OFFSETS, folder.log_start_offsets, topic_partition, offset)

    log = PartitionLog(
        files,
        directory,
        topic_partition=topic_partition,
        topic_id=topic_id,
        config=config,
        now_ms=now_ms,
        log_start_offset=folder.log_start_offsets.get(topic_partition, 0),
        recovery_point=folder.recovery_points.get(topic_partition, 0),
        was_stopped_cleanly=_is_clean(folder, topic_partition),
        folder_is_durable=topic_partition in folder.recovery_points,
        open_segments=folder.open_segments,
        before_truncation=lower_recovery_point,
        before_loss=folder.note_lost_writes,  # the cluster does not rely on this replica until it has copied them from its leader
    )
    lower_log_start(log.log_start_offset)
    return log


def partition_of(name: str) -> TopicPartition | None:
    """The partition that a folder of this name holds; None for other folders."""
    topic, found, partition = name.rpartition("-")
    if not found or not topic or not partition.isascii() or not partition.isdigit():
        return None
    return TopicPartition(topic, int(partition))

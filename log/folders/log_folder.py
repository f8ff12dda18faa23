"""One entry of `log.dirs`: its lock, its identity, its checkpoint files, and how the last broker on it stopped.

The clean-shutdown marker is written last, and removed when the folder is opened. If only the marker is missing, the process was
killed, and the kernel kept its writes. If the boot id differs as well, the machine went down, and unflushed data may be lost. A
file records this until the cluster has been informed: the next start sees the new boot id, and a broker may be killed before it
registers.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from ..checkpoints import checkpoint
from ..disk.files import Files
from ..segment.open_segments import OpenSegments
from ..vocabulary.cluster_mismatch import cluster_mismatch
from ..vocabulary.errors import InconsistentClusterIdError, StorageError
from ..vocabulary.metadata_position import MetadataPosition
from ..vocabulary.topic_partition import TopicPartition

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".barnabas_clean_shutdown"
BOOT_ID_FILE = ".barnabas_boot_id"
LOST_WRITES_FILE = ".barnabas_lost_writes"
META_PROPERTIES = "meta.properties"
KNOWN_METADATA_FILE = ".barnabas_known_metadata"
_VERSION = "1"
_POSITION_FIELDS = frozenset(MetadataPosition.__struct_fields__)
_log = logging.getLogger("barnabas.log")


class ForeignFolderError(StorageError):
    """The folder belongs to another node: an error in the configuration, not of a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineFolder:
    """An entry of `log.dirs` that cannot be used until it is brought back."""

    cause: str
    since_ms: int
    directory_id: str = ""  # "": it could not be read
    was_in_use: bool = False  # it failed while in use, so the last writes may be lost


def check_owner(files: Files, path: str, node_id: int) -> None:
    """For tools that open no logs: raises ForeignFolderError for a folder of another node. One without an identity passes."""
    meta = checkpoint.read_properties(files, f"{path}/{META_PROPERTIES}")
    if meta:
        _check_owner(meta, path, node_id)


def _check_owner(meta: Mapping[str, str], path: str, node_id: int) -> None:
    if meta.get("node.id") != str(node_id):
        raise ForeignFolderError(
            f"{path} belongs to node {meta.get('node.id')}, this is node {node_id}: correct node.id or log.dirs"
        )


class LogFolder:
    """An open, locked data folder."""

    is_full = False  # new replicas go to other folders while there is no space

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        node_id: int,
        new_directory_id: str,
        open_segments: OpenSegments | None = None,
    ) -> None:
        """Lock the folder and read its identity. Raises StorageError; a folder of another node is refused."""
        files.make_dirs(path)
        self._files = files
        self._writing = threading.Lock()  # for a checkpoint in another thread and a truncation in the owner's
        self._is_meta_written = True
        self.has_unsynced_names = False  # partitions were deleted, and would come back after a power loss
        self._lock = files.lock(f"{path}/{LOCK_FILE}")
        self.path = path
        self.open_segments = open_segments or OpenSegments(lock=threading.Lock())
        try:
            self._open(node_id, new_directory_id)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, node_id: int, new_directory_id: str) -> None:
        meta_path = f"{self.path}/{META_PROPERTIES}"
        self._meta = checkpoint.read_properties(self._files, meta_path)
        if not self._meta:
            self._meta = {"version": _VERSION, "node.id": str(node_id), "directory.id": new_directory_id}
            checkpoint.write_properties(self._files, meta_path, self._meta)
        _check_owner(self._meta, self.path, node_id)
        marker = f"{self.path}/{CLEAN_SHUTDOWN_FILE}"
        boot_path = f"{self.path}/{BOOT_ID_FILE}"
        boot_id = self._files.boot_id()
        known = checkpoint.read_properties(self._files, boot_path).get("boot.id")
        self.was_stopped_cleanly = self._files.exists(marker)
        lost_marker = f"{self.path}/{LOST_WRITES_FILE}"
        is_lossy_start = not self.was_stopped_cleanly and known is not None and known != boot_id
        self.may_have_lost_writes = is_lossy_start or self._files.exists(lost_marker)
        if is_lossy_start:  # before the new boot id, after which the next start would not notice the loss
            self._files.write_atomically(lost_marker, boot_id.encode())
        if known != boot_id:
            checkpoint.write_properties(self._files, boot_path, {"boot.id": boot_id})
        if self.was_stopped_cleanly:
            self._files.remove(marker)
            self._files.sync_dir(self.path)
        self.known_metadata = self._read_known_metadata()
        self._written_metadata = self.known_metadata
        self.recovery_points = self._read_offsets(checkpoint.RECOVERY_POINTS)
        self.log_start_offsets = self._read_offsets(checkpoint.LOG_START_OFFSETS)
        self.high_watermarks = self._read_offsets(checkpoint.HIGH_WATERMARKS)
        self.cleaned_offsets = self._read_offsets(checkpoint.CLEANED_OFFSETS)

    @property
    def directory_id(self) -> str:
        return self._meta["directory.id"]

    @property
    def cluster_id(self) -> str | None:
        return self._meta.get("cluster.id")

    @property
    def all_offsets(self) -> tuple[dict[TopicPartition, int], ...]:
        """All offsets that are noted for partitions of this folder."""
        return self.recovery_points, self.log_start_offsets, self.high_watermarks, self.cleaned_offsets

    def join_cluster(self, cluster_id: str) -> None:
        """Note the cluster, which `write_meta` then writes. Raises InconsistentClusterIdError if the folder holds the data of
        another one."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id is not None:
            text = cluster_mismatch(f"the data folder {self.path}", self.cluster_id, ("this broker", cluster_id))
            raise InconsistentClusterIdError(text)
        self._meta = {**self._meta, "cluster.id": cluster_id}
        self._is_meta_written = False

    # --- operations that wait for the disk: not in the thread that serves ---

    def write_meta(self) -> None:
        with self._writing:
            if not self._is_meta_written:
                checkpoint.write_properties(self._files, f"{self.path}/{META_PROPERTIES}", self._meta)
                self._is_meta_written = True

    def loss_was_told(self) -> None:
        """The cluster knows that writes may be lost here, and does not rely on them: from now on this folder is sound."""
        if self.may_have_lost_writes:
            self.may_have_lost_writes = False
            self._files.remove(f"{self.path}/{LOST_WRITES_FILE}")
            self._files.sync_dir(self.path)

    def sync_names(self) -> None:
        """Make the creation and deletion of partitions durable."""
        if self.has_unsynced_names:
            self.has_unsynced_names = False
            try:
                self._files.sync_dir(self.path)
            except StorageError:
                self.has_unsynced_names = True
                raise

    def note_lost_writes(self) -> None:
        """Accepted writes may be lost: a later start must report it to the cluster. This can fail on a failing disk, too."""
        self.may_have_lost_writes = True
        self._files.write_atomically(f"{self.path}/{LOST_WRITES_FILE}", self._files.boot_id().encode())

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the current offsets, taken when this writer holds the lock: an older state never replaces a newer one, so that a
        checkpoint does not undo a truncation that lowers an offset meanwhile."""
        with self._writing:
            checkpoint.write_offsets(self._files, f"{self.path}/{name}", dict(offsets))

    def write_known_metadata(self) -> None:
        """Write `known_metadata` if it has changed."""
        with self._writing:
            known = self.known_metadata
            if known != self._written_metadata:
                noted = {key: str(value) for key, value in structs.asdict(known).items()}
                checkpoint.write_properties(self._files, f"{self.path}/{KNOWN_METADATA_FILE}", noted)
                self._written_metadata = known

    def write_checkpoint(self) -> None:
        """Write all noted offsets of partitions, and the known position in the metadata."""
        self.write_known_metadata()
        self.write_offsets(checkpoint.RECOVERY_POINTS, self.recovery_points)
        self.write_offsets(checkpoint.LOG_START_OFFSETS, self.log_start_offsets)
        self.write_offsets(checkpoint.HIGH_WATERMARKS, self.high_watermarks)

    def lower(
        self, name: str, offsets: dict[TopicPartition, int], topic_partition: TopicPartition, offset: int
    ) -> None:
        """Write a lower offset, and adopt it when it is written; after an error, the caller tries again."""
        if offsets.get(topic_partition, 0) > offset:
            with self._writing:
                checkpoint.write_offsets(self._files, f"{self.path}/{name}", {**offsets, topic_partition: offset})
                offsets[topic_partition] = offset  # a checkpoint that waits for the lock must not write the old one

    def mark_clean(self) -> None:
        """The last write of a clean stop. A stop is not clean while a loss has not been reported."""
        if self.may_have_lost_writes:
            return
        self._files.write_atomically(f"{self.path}/{CLEAN_SHUTDOWN_FILE}", self._files.boot_id().encode())

    def close(self) -> None:
        self._lock.release()

    def _read_known_metadata(self) -> MetadataPosition:
        try:
            noted = checkpoint.read_properties(self._files, f"{self.path}/{KNOWN_METADATA_FILE}")
            return MetadataPosition(**{key: int(value) for key, value in noted.items() if key in _POSITION_FIELDS})
        except (checkpoint.DamagedCheckpointError, ValueError) as error:
            # It helps to detect a quorum from an old backup; a broker works without it.
            _log.warning("event=known_metadata_damaged folder=%s cause=%s", self.path, error)
            return MetadataPosition()

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoint.read_offsets(self._files, f"{self.path}/{name}")
        except checkpoint.DamagedCheckpointError:
            # All of them are lower bounds for values in the logs: without them, more is scanned.
            self.was_stopped_cleanly = False
            return {}

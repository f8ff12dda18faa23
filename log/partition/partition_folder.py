"""The folder of a partition and `partition.metadata`, the file in it that has its topic id.

A folder is created without any flush: the creation of a topic may create thousands of them at once, in the broker's loop. Upkeep
makes them durable soon afterwards in another thread, and so does the first flush of the log, if that comes first. Before that,
nothing in the folder is promised to survive a power loss: a start after a power loss drops a folder without a known topic id, and
the cluster learns that writes were lost here.
"""

from ..checkpoints import checkpoint
from ..disk.files import Files
from ..vocabulary.errors import StorageError

PARTITION_METADATA = "partition.metadata"
_SEPARATOR = ": "
_VERSION = "0"


def make_partition_folder(files: Files, directory: str, topic_id: str) -> None:
    """Make the folder and its metadata, not durably. Existing files are replaced: the caller has checked them."""
    files.make_dirs(directory, durable=False)
    file = files.open_append(_path(directory))
    file.truncate(0)
    file.append(checkpoint.properties_text({"version": _VERSION, "topic_id": topic_id}, separator=_SEPARATOR).encode())
    file.close()


def read_topic_id(files: Files, directory: str, *, may_be_unfinished: bool = False) -> str | None:
    """The topic id of a folder; None if a crash came before it was on the disk, and the folder has no flushed records.
    `may_be_unfinished`: the machine went down, and the folder is not known to have been durable before.

    Raises StorageError if the id is missing from a folder with records: then the topic of the records is not known.
    """
    path = _path(directory)
    fault = "is missing"
    if files.exists(path):
        try:
            found = checkpoint.read_properties(files, path, separator=_SEPARATOR)
            if found.get("topic_id") and found.get("version") == _VERSION and files.read_bytes(path).endswith(b"\n"):
                return found["topic_id"]
            fault = "is cut"
        except checkpoint.DamagedCheckpointError:
            fault = "is damaged"
    if may_be_unfinished or not has_records(files, directory):
        return None
    raise StorageError(
        f"{path} {fault}, and the folder has records that may be of any topic of that name: write the topic's id there as"
        f" two lines, `version: {_VERSION}` and `topic_id: ID` (`barnabas topic describe` tells it), or remove the folder to"
        " have it copied from another replica; then restart the broker"
    )


def has_records(files: Files, directory: str) -> bool:
    return any(files.size_bytes(f"{directory}/{name}") for name in files.list_dir(directory) if name.endswith(".log"))


class PartitionFolder:
    """Tracks which changes of the names in a folder are not on the disk yet. Methods may run in another thread than the
    appends."""

    def __init__(self, files: Files, directory: str, *, is_durable: bool) -> None:
        self._files = files
        self.path = directory
        self._is_changed = True
        self.is_durable = is_durable  # the folder itself and its metadata; never becomes false
        self.is_gone = False  # it was renamed, and its content is not needed any more

    def changed(self) -> None:
        """Files were created in it, or removed from it."""
        self._is_changed = True

    def make_durable(self) -> None:
        """The folder, its metadata and its entry in the folder above survive a power loss from now on."""
        if self.is_durable or self.is_gone:
            return
        self.flush_content()
        self._files.sync_dir(self.path.rpartition("/")[0])
        self.is_durable = True

    def flush_content(self) -> None:
        """The first part of `make_durable`: without the entry in the folder above, one flush of which is enough for many."""
        path = _path(self.path)
        if self._files.exists(path):
            file = self._files.open_append(path, create=False)
            file.flush()
            file.close()
        self._sync()

    def sync(self) -> None:
        """Make the names of the files durable."""
        self.make_durable()
        if self._is_changed and not self.is_gone:
            self._sync()

    def _sync(self) -> None:
        self._is_changed = False  # first: the next call handles changes that happen meanwhile
        try:
            self._files.sync_dir(self.path)
        except StorageError:
            self._is_changed = True
            raise


def _path(directory: str) -> str:
    return f"{directory}/{PARTITION_METADATA}"

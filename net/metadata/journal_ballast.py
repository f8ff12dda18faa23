"""Disk space that is reserved for the quorum's journal: a file of a fixed size, which is deleted when the disk is full.

If the journal cannot be written, its broker stops. Records of users fill disks, while the quorum needs little space. When the
disk is full, the ballast file is deleted and the write is retried, so that an operator has time to read the warning and to free
space. The ballast is created again when there is plenty of space.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from barnabas.kraft.raft.disk.storage import JournalFile
from barnabas.log.disk.files import Files
from barnabas.log.vocabulary.errors import DiskFullError, StorageError

logger = logging.getLogger("barnabas.quorum")

BALLAST_BYTES = 8 << 20  # about 50,000 offset commits: hours of a small cluster, minutes of a busy one
PLENTY = 4  # the ballast is created only if the free space is this many times its size
APPENDS_BETWEEN_LOOKS = 1_000  # after it was deleted: how often the free space for a new one is checked
BALLAST_FILE = "ballast"
T = TypeVar("T")


class BallastedStorage:
    """A `JournalStorage` over the real files. Belongs to the quorum; `is_given_up` may be read from anywhere."""

    def __init__(self, files: Files, directory: str, *, size_bytes: int = BALLAST_BYTES) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{BALLAST_FILE}"
        self._size_bytes = size_bytes
        self._appends = 0
        self.is_given_up = False

    def make(self) -> None:
        """Create the ballast if there is plenty of space; without it, a full disk stops the broker at once."""
        try:
            if not self._size_bytes or self._files.exists(self._path):
                return
            if self._files.disk_usage(self._directory).free_bytes < PLENTY * self._size_bytes:
                return
            self._files.reserve(self._path, self._size_bytes)
            self.is_given_up = False
        except StorageError as error:
            logger.warning("cannot reserve disk space for the quorum's journal: %s", error)

    def with_room(self, work: Callable[[], T]) -> T:
        """Do the work; if the disk is full, delete the ballast and do it once more. Raises StorageError."""
        try:
            return work()
        except DiskFullError as error:
            if not self._files.exists(self._path):
                raise
            self._files.remove(self._path)
            self._files.sync_dir(self._directory)
            self.is_given_up, self._appends = True, 0
            logger.critical("the disk of the quorum's journal is full: its last %d reserved bytes are in use; "
                            "free space now, or this broker will stop: %s", self._size_bytes, error)  # fmt: skip
            return work()

    def appended(self) -> None:
        if self.is_given_up:
            self._appends += 1
            if self._appends % APPENDS_BETWEEN_LOOKS == 0:
                self.make()

    # --- JournalStorage -----------------------------------------------------------------------------------------------

    def open_append(self, path: str) -> JournalFile:
        return _BallastedFile(self, self.with_room(lambda: self._files.open_append(path)))

    def read_bytes(self, path: str) -> bytes:
        return self._files.read_bytes(path)

    def write_atomically(self, path: str, data: bytes) -> None:
        self.with_room(lambda: self._files.write_atomically(path, data))

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def make_dirs(self, path: str) -> None:
        self._files.make_dirs(path)
        if path == self._directory:
            self.make()

    def remove(self, path: str) -> None:
        self._files.remove(path)

    def rename(self, source: str, target: str) -> None:
        self._files.rename(source, target)

    def sync_dir(self, path: str) -> None:
        self._files.sync_dir(path)


class _BallastedFile:
    """A refused append does not change the file, so it may be retried."""

    def __init__(self, storage: BallastedStorage, file: JournalFile) -> None:
        self._storage = storage
        self._file = file

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def append(self, data: bytes) -> None:
        self._storage.with_room(lambda: self._file.append(data))
        self._storage.appended()

    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

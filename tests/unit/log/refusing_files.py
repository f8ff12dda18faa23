"""`Files` that refuse their n-th operation, whichever it is: every method of the port and of the files that it opens counts."""

from collections.abc import Callable
from typing import TypeVar

from barnabas.log.disk.files import AppendFile, DiskUsage, FileLock
from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.errors import DiskFailedError, DiskFullError, StorageError
from barnabas.net.testing.simulation.disk import SimulatedDisk

T = TypeVar("T")
KINDS: tuple[type[StorageError], ...] = (StorageError, DiskFullError, DiskFailedError)


class RefusingFile:
    """After a write that failed for another reason than a full disk it takes no more; after a flush that failed nothing."""

    def __init__(self, files: "RefusingFiles", file: AppendFile) -> None:
        self._files = files
        self._file = file
        self._write_failed = False
        self._flush_failed = False

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    @property
    def failed(self) -> bool:
        return self._write_failed or self._flush_failed

    def append(self, data: Buffer) -> None:
        self._check(self.failed)
        try:
            self._files.count("append", self.path)
        except StorageError as error:
            self._write_failed = not isinstance(error, DiskFullError)
            raise
        self._file.append(data)

    def read_at(self, position: int, length: int) -> bytes:
        self._check(self._flush_failed)
        self._files.count("read_at", self.path)
        return self._file.read_at(position, length)

    def truncate(self, size_bytes: int) -> None:
        self._check(self.failed)
        self._files.count("truncate", self.path)
        self._file.truncate(size_bytes)

    def flush(self) -> None:
        self._check(self.failed)
        try:
            self._files.count("flush", self.path)
        except StorageError:
            self._flush_failed = True
            raise
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def fileno(self) -> int | None:
        return None

    def _check(self, is_refused: bool) -> None:
        if is_refused:
            raise DiskFailedError(f"{self.path} has failed before")


class RefusingFiles:
    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.log: list[tuple[str, str]] = []  # operations since `arm`
        self._refused_number = 0
        self._kind: type[StorageError] = StorageError

    def arm(self, number: int, kind: type[StorageError]) -> None:
        """Refuse the operation of this number from now on, counted from 1; 0: none."""
        self.log.clear()
        self._refused_number, self._kind = number, kind

    @property
    def has_refused(self) -> bool:
        return 0 < self._refused_number <= len(self.log)

    def count(self, action: str, path: str) -> None:
        self.log.append((action, path))
        if len(self.log) == self._refused_number:
            raise self._kind(f"cannot {action} {path}: refused by the test")

    def open_append(self, path: str, *, create: bool = True) -> AppendFile:
        self.count("open_append", path)
        return RefusingFile(self, self.disk.open_append(path, create=create))

    def read_bytes(self, path: str) -> bytes:
        return self._counted("read_bytes", path, self.disk.read_bytes)

    def write_atomically(self, path: str, data: Buffer) -> None:
        self.count("write_atomically", path)
        self.disk.write_atomically(path, data)

    def map_readonly(self, path: str) -> Buffer:
        return self._counted("map_readonly", path, self.disk.map_readonly)

    def list_dir(self, path: str) -> list[str]:
        return self._counted("list_dir", path, self.disk.list_dir)

    def exists(self, path: str) -> bool:
        return self._counted("exists", path, self.disk.exists)

    def size_bytes(self, path: str) -> int:
        return self._counted("size_bytes", path, self.disk.size_bytes)

    def modified_ms(self, path: str) -> int:
        return self._counted("modified_ms", path, self.disk.modified_ms)

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        self.count("make_dirs", path)
        self.disk.make_dirs(path, durable=durable)

    def remove(self, path: str) -> None:
        self._counted("remove", path, self.disk.remove)

    def remove_tree(self, path: str) -> None:
        self._counted("remove_tree", path, self.disk.remove_tree)

    def rename(self, source: str, target: str) -> None:
        self.count("rename", source)
        self.disk.rename(source, target)

    def sync_dir(self, path: str) -> None:
        self._counted("sync_dir", path, self.disk.sync_dir)

    def lock(self, path: str) -> FileLock:
        return self._counted("lock", path, self.disk.lock)

    def disk_usage(self, path: str) -> DiskUsage:
        return self._counted("disk_usage", path, self.disk.disk_usage)

    def drop_cached(self, path: str) -> None:
        self._counted("drop_cached", path, self.disk.drop_cached)

    def reserve(self, path: str, size_bytes: int) -> None:
        self.count("reserve", path)
        self.disk.reserve(path, size_bytes)

    def boot_id(self) -> str:
        self.count("boot_id", "")
        return self.disk.boot_id()

    def _counted(self, action: str, path: str, work: Callable[[str], T]) -> T:
        self.count(action, path)
        return work(path)

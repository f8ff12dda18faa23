"""The smallest real file system that fits the quorum's storage port, for tests with real processes."""

import os

from barnabas.log.vocabulary.errors import StorageError


class PlainFile:
    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self.size_bytes = os.fstat(self._descriptor).st_size

    def append(self, data: bytes) -> None:
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise StorageError(str(error)) from error
        if written != len(data):
            raise StorageError("short write")
        self.size_bytes += written

    def read_at(self, position: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, position)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)
        self.size_bytes = size_bytes

    def flush(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class PlainFiles:
    def open_append(self, path: str) -> PlainFile:
        return PlainFile(path)

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_atomically(self, path: str, data: bytes) -> None:
        with open(path + ".tmp", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".tmp", path)
        self.sync_dir(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        if os.path.exists(path):
            os.remove(path)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def sync_dir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

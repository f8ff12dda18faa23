"""Data folders that are slow or full: `RealFiles` that first look at what holds now.

The quorum's journal is slowed like all else, but a full disk spares it: a broker reserves space for it.
"""

import time
from contextlib import suppress
from typing import Final

from barnabas.log.disk.files import AppendFile, FileLock, RealAppendFile, RealFiles
from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.errors import DiskFullError, StorageError

QUORUM_FOLDER: Final = "/__cluster_metadata/"


class DiskRules:
    """What holds for the disk of one broker now. Any thread reads it."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.is_full = False
        self.is_dead = False  # the process has been killed: it writes no more
        self.locks: list[FileLock] = []

    def before_write(self, action: str, path: str) -> None:
        if self.is_dead:
            raise StorageError(f"cannot {action} {path}: this broker was killed by its test")
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.is_full and QUORUM_FOLDER not in path:
            raise DiskFullError(f"cannot {action} {path}: No space left on device (a fault of barnabas.testing)")

    def before_flush(self, path: str) -> None:
        if self.is_dead:
            raise StorageError(f"cannot flush {path}: this broker was killed by its test")
        if self.delay_s:
            time.sleep(self.delay_s)

    def die(self) -> None:
        """Nothing is written from now on, and the folders are unlocked, as the kernel does."""
        self.is_dead = True
        for lock in self.locks:
            with suppress(OSError):
                lock.release()


class FaultyAppendFile(RealAppendFile):
    __slots__ = ("_rules",)

    def __init__(self, path: str, rules: DiskRules, *, create: bool) -> None:
        self._rules = rules
        super().__init__(path, create=create)

    def append(self, data: Buffer) -> None:
        self._rules.before_write("append to", self.path)
        super().append(data)

    def truncate(self, size_bytes: int) -> None:
        self._rules.before_flush(self.path)  # which needs no space
        super().truncate(size_bytes)

    def flush(self) -> None:
        self._rules.before_flush(self.path)
        super().flush()


class FaultyFiles(RealFiles):
    """Reading and removing is not hit: it needs no space."""

    def __init__(self, rules: DiskRules) -> None:
        self._rules = rules

    def open_append(self, path: str, *, create: bool = True) -> AppendFile:
        if create:
            self._rules.before_flush(path)
        return FaultyAppendFile(path, self._rules, create=create)

    def write_atomically(self, path: str, data: Buffer) -> None:
        self._rules.before_write("write", path)
        super().write_atomically(path, data)

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        self._rules.before_write("create the folder", path)
        super().make_dirs(path, durable=durable)

    def remove(self, path: str) -> None:
        self._rules.before_flush(path)
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._rules.before_flush(path)
        super().remove_tree(path)

    def rename(self, source: str, target: str) -> None:
        self._rules.before_flush(source)
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        self._rules.before_flush(path)
        super().sync_dir(path)

    def lock(self, path: str) -> FileLock:
        lock = super().lock(path)
        self._rules.locks.append(lock)
        return lock

    def reserve(self, path: str, size_bytes: int) -> None:
        self._rules.before_write("reserve space with", path)
        super().reserve(path, size_bytes)

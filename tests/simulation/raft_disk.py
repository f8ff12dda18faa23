"""A fake disk for the quorum: a power failure may lose or tear what was not flushed."""

import random
from collections.abc import Callable

from barnabas.log.vocabulary.errors import StorageError


class FakeFile:
    """Bytes with a durable prefix. `flush` runs in the executor."""

    def __init__(self, disk: "FakeDisk") -> None:
        self.disk = disk
        self.data = bytearray()
        self.durable_bytes = 0

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def append(self, data: bytes) -> None:
        self.disk.check()
        self.disk.took_time("append")
        self.data += data

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self.data[position : position + length])

    def truncate(self, size_bytes: int) -> None:
        del self.data[size_bytes:]
        self.durable_bytes = min(self.durable_bytes, size_bytes)

    def flush(self) -> None:
        self.disk.check()
        self.durable_bytes = len(self.data)

    def close(self) -> None:
        pass


class FakeDisk:
    """One node's disk. Names become durable with `sync_dir`; `write_atomically` is durable when it returns."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.files: dict[str, FakeFile] = {}
        self._durable_names: dict[str, FakeFile] = {}
        self.fails = False
        self.incarnation = 0
        self.took_time: Callable[[str], None] = lambda action: None  # the caller waits for this action

    def check(self) -> None:
        if self.fails:
            raise StorageError("the fake disk refuses")

    def open_append(self, path: str) -> FakeFile:
        self.check()
        return self.files.setdefault(path, FakeFile(self))

    def read_bytes(self, path: str) -> bytes:
        return bytes(self.files[path].data)

    def write_atomically(self, path: str, data: bytes) -> None:
        self.check()
        self.took_time("write_atomically")
        file = FakeFile(self)
        file.data += data
        file.durable_bytes = len(data)
        self.files[path] = self._durable_names[path] = file

    def exists(self, path: str) -> bool:
        return path in self.files

    def make_dirs(self, path: str) -> None:
        pass

    def remove(self, path: str) -> None:
        self.files.pop(path, None)

    def rename(self, source: str, target: str) -> None:
        self.check()
        self.took_time("rename")
        self.files[target] = self.files.pop(source)

    def sync_dir(self, path: str) -> None:
        self.check()
        self.took_time("sync_dir")
        self._durable_names = dict(self.files)

    def power_failure(self) -> None:
        """Keep durable names (or, by chance, newer ones), their durable bytes, and by chance a part of the rest."""
        if self._rng.random() < 0.5:
            self.files = dict(self._durable_names)
        for path, file in sorted(self.files.items()):
            kept = FakeFile(self)
            rest = file.data[file.durable_bytes :]
            kept.data = file.data[: file.durable_bytes] + rest[: self._rng.randint(0, len(rest))]
            if len(kept.data) > file.durable_bytes and self._rng.random() < 0.3:
                kept.data[self._rng.randrange(file.durable_bytes, len(kept.data))] ^= 0xFF
            kept.durable_bytes = len(kept.data)
            self.files[path] = kept
        self._durable_names = dict(self.files)

    def wipe(self) -> None:
        self.files = {}
        self._durable_names = {}

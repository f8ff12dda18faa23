"""What the quorum needs of a disk, as a port: `log.disk.files.Files` fits it, and so does the fake disk of the simulation.

Nothing here touches a file. Paths are absolute. The implementation raises StorageError and nothing else.
"""

from typing import Protocol

from barnabas.log.vocabulary.errors import StorageError


class DamagedQuorumError(StorageError):
    """The quorum's folder cannot be trusted. The cure is to empty it: a blank voter learns from the others."""

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(
            f"{path}: {fault}. This voter may not take part with it: restore the disk, or move the whole folder away"
            " and start again, then it learns everything from the others (they need a majority without it). If most voters"
            " are lost, or all of them refuse to start: `barnabas cluster recover` on the newest folder that is left"
        )


class JournalFile(Protocol):
    """A file that grows at its end."""

    @property
    def size_bytes(self) -> int: ...

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end, or raise."""

    def read_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""

    def truncate(self, size_bytes: int) -> None: ...

    def flush(self) -> None:
        """Return when all that was appended is on the disk. Called in the executor."""

    def close(self) -> None: ...


class JournalStorage(Protocol):
    """The file system, as far as the quorum needs one."""

    def open_append(self, path: str) -> JournalFile: ...

    def read_bytes(self, path: str) -> bytes: ...

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace the whole file: after a crash it holds the old bytes or the new ones, and on return the new ones."""

    def exists(self, path: str) -> bool: ...

    def make_dirs(self, path: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

"""The file system: the only module of Barnabas that accesses it (the quorum's journal uses it, too).

`Files` is the port; `RealFiles` uses the operating system, `net/testing/simulation/disk.py` loses unflushed data. Every OSError
becomes a StorageError in one place, `_refused`, with the path and the remedy.

Appends are `os.write` on an O_APPEND descriptor: mapped appends cost two to three times as much.
"""

import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ..format.record_batch import Buffer
from ..vocabulary.errors import DiskFailedError, DiskFullError, MissingFileError, StorageError, TooManyFilesError
from . import systems
from .spare_descriptors import SpareDescriptors

_TEMPORARY_SUFFIX = ".tmp"
_OWNER_ONLY = 0o700
_NO_LINK = os.O_CLOEXEC | os.O_NOFOLLOW  # what a link points to is not ours to write
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
# One for the process, because the limit is per process; therefore it is not a part of each RealFiles.
_spare = SpareDescriptors()
_CURES = {
    errno.ENOSPC: "the disk is full: free space; then the broker accepts writes again",
    errno.EDQUOT: "the disk quota is used up: raise it or free space; then the broker accepts writes again",
    errno.EIO: "the disk is failing: replace it; unflushed data is lost",
    errno.EROFS: "the file system is read-only: see the kernel log, repair and remount it",
    errno.EACCES: "the broker's user may not do this: correct the owner and mode of the folder",
    errno.EPERM: "the broker's user may not do this: correct the owner and mode of the folder",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n), 100000 is usual",
    errno.ENFILE: "too many open files on this machine: raise fs.file-max",
    errno.ELOOP: "it is a symbolic link: only the broker may change its data folders",
    errno.ENOENT: "the file is missing: only the broker may change its data folders",
}


class AppendFile(Protocol):
    """A file that grows at its end. It is closed when the last reference to it is gone, so that a reader may outlive a removal.

    After a write that fails because the disk is full, the file is unchanged and usable. After any other failed write (or one that
    could not be undone) it accepts no more writes; after a failed flush it serves no more reads either: the kernel has dropped
    the dirty pages, and a second flush would wrongly succeed ("fsyncgate").
    """

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def failed(self) -> bool: ...

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end. Raises StorageError, and then nothing of `data` is in the file."""

    def read_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""

    def truncate(self, size_bytes: int) -> None: ...

    def flush(self) -> None:
        """Return when all appended data is on the disk. May run in another thread than the appends."""

    def close(self) -> None: ...

    def fileno(self) -> int | None:
        """The descriptor for sendfile; None if there is none (simulation)."""


class FileLock(Protocol):
    def release(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    total_bytes: int
    free_bytes: int


class Files(Protocol):
    """What Barnabas needs from a file system. Paths are absolute. Methods raise only StorageError."""

    def open_append(self, path: str, *, create: bool = True) -> AppendFile: ...

    def read_bytes(self, path: str) -> bytes: ...

    def write_atomically(self, path: str, data: Buffer) -> None:
        """Replace the whole file: after a crash it holds the old bytes or the new ones, and on return the new ones."""

    def map_readonly(self, path: str) -> Buffer:
        """Return the file's bytes without reading them; the file must not shrink while they are used."""

    def list_dir(self, path: str) -> list[str]:
        """Names (not paths), sorted."""

    def exists(self, path: str) -> bool: ...

    def size_bytes(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        """Make the folder and its parents; only the broker's user may enter them. An existing folder is not an error. Without
        `durable`, the last of them may be lost in a power loss, until `sync_dir` of its parent."""

    def remove(self, path: str) -> None:
        """Remove a file; a missing file is not an error."""

    def remove_tree(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Replace `target`. Durable after `sync_dir`."""

    def sync_dir(self, path: str) -> None:
        """Make creations, removals and renames in this folder durable."""

    def lock(self, path: str) -> FileLock:
        """Take the exclusive lock on this file. Raises StorageError if another process holds it."""

    def disk_usage(self, path: str) -> DiskUsage: ...

    def drop_cached(self, path: str) -> None:
        """Drop the clean pages of a file from memory, so that the next read comes from the disk."""

    def reserve(self, path: str, size_bytes: int) -> None:
        """Make a file that occupies this much space, durably. Raises DiskFullError; then there is no file."""

    def boot_id(self) -> str:
        """Changes with every start of the machine; a restart of the process does not change it."""


@contextmanager
def _refused(action: str, path: str) -> Iterator[None]:
    """Map OSError to StorageError. The only place with advice to operators about disks."""
    try:
        yield
    except OSError as error:
        raise _storage_error(action, path, error) from error


def _storage_error(action: str, path: str, error: OSError) -> StorageError:
    cure = _CURES.get(error.errno or 0, "see the kernel log of the machine")
    kinds = (
        (_NO_SPACE, DiskFullError),
        (systems.FAILED_DISK, DiskFailedError),
        (_NO_DESCRIPTOR, TooManyFilesError),
        ((errno.ENOENT,), MissingFileError),
        ((error.errno,), StorageError),
    )
    kind = next(kind for numbers, kind in kinds if error.errno in numbers)
    return kind(f"cannot {action} {path}: {error.strerror or error}; {cure}")


def write_beside(
    temporary: str,
    path: str,
    data: Buffer,
    *,
    flags: int = os.O_TRUNC,
    mode: int = 0o666,
    put_in_place: Callable[[str, str], None] = os.replace,
) -> None:
    """Write a whole new file in the same folder, and put it at `path`, durably: after a crash the old one is there or the new
    one. The mode is given to open(): a umask belongs to the whole process. Raises OSError, and may leave `temporary`."""
    opened = _spare.opened(lambda: os.open(temporary, os.O_WRONLY | os.O_CREAT | _NO_LINK | flags, mode))
    with os.fdopen(opened, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(temporary, path)
    sync_folder(os.path.dirname(path) or os.curdir)


def sync_folder(path: str) -> None:
    """Raises OSError."""
    descriptor = _spare.opened(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RealAppendFile:
    """An O_APPEND descriptor. `size_bytes` is kept here, so that the hot path does not ask the kernel for it."""

    __slots__ = ("_descriptor", "_flush_failed", "_write_failed", "path", "size_bytes")

    def __init__(self, path: str, *, create: bool) -> None:
        self._descriptor = -1
        self._write_failed = False
        self._flush_failed = False
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | _NO_LINK | (os.O_CREAT if create else 0)
        with _refused("open", path):
            self._descriptor = _spare.opened(lambda: os.open(path, flags, 0o644))
            self.size_bytes = os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        self.close()

    @property
    def failed(self) -> bool:
        return self._write_failed or self._flush_failed

    def append(self, data: Buffer) -> None:
        if self._write_failed or self._flush_failed:
            raise self._failed_before()
        size = len(data)
        try:
            written = os.write(self._descriptor, data)
            if written < size:
                self._write_rest(memoryview(data), written)
        except OSError as error:
            self._undo_append(error)
            raise _storage_error("append to", self.path, error) from error
        self.size_bytes += size

    def read_at(self, position: int, length: int) -> bytes:
        if self._flush_failed:
            raise self._failed_before()
        with _refused("read", self.path):
            data = os.pread(self._descriptor, length, position)
            while len(data) < length:
                # Linux returns at most 2 GiB - 4 KiB at once.
                more = os.pread(self._descriptor, length - len(data), position + len(data))
                if not more:
                    break
                data += more
        return data

    def truncate(self, size_bytes: int) -> None:
        if self.failed:
            raise self._failed_before()
        with _refused("truncate", self.path):
            os.ftruncate(self._descriptor, size_bytes)
        self.size_bytes = size_bytes

    def flush(self) -> None:
        if self.failed:
            raise self._failed_before()
        try:
            systems.flush_data(self._descriptor)
        except OSError as error:
            self._flush_failed = True
            raise DiskFailedError(_storage_error("flush", self.path, error).message) from error

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def fileno(self) -> int | None:
        return self._descriptor

    def _write_rest(self, view: memoryview, written: int) -> None:
        """A write is short when a signal interrupts it or the space ends; the next write shows which."""
        while written < len(view):
            written += os.write(self._descriptor, view[written:])

    def _undo_append(self, error: OSError) -> None:
        self._write_failed = error.errno not in _NO_SPACE
        try:
            os.ftruncate(self._descriptor, self.size_bytes)
        except OSError:
            # The cut batch stays after `size_bytes`: no reader reads it, and recovery removes it at the next start.
            self._write_failed = True

    def _failed_before(self) -> StorageError:
        what = "a flush" if self._flush_failed else "a write"
        return DiskFailedError(
            f"{self.path} accepts no more writes since {what} failed; repair the disk, then bring its folder back or restart"
            " the broker"
        )


class RealFileLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """The kernel does the same when the process ends, however it ends."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealFiles:
    """`Files` of the operating system."""

    def open_append(self, path: str, *, create: bool = True) -> AppendFile:
        return RealAppendFile(path, create=create)

    def read_bytes(self, path: str) -> bytes:
        with _refused("read", path), _spare.opened(lambda: open(path, "rb")) as file:
            return file.read()

    def write_atomically(self, path: str, data: Buffer) -> None:
        with _refused("write", path):
            write_beside(path + _TEMPORARY_SUFFIX, path, data)

    def map_readonly(self, path: str) -> Buffer:
        with _refused("map", path), _spare.opened(lambda: open(path, "rb")) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""  # An empty file cannot be mapped.
            return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))

    def list_dir(self, path: str) -> list[str]:
        with _refused("list", path):
            return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # EIO does not mean that the file does not exist
            raise _storage_error("look for", path, error) from error
        return True

    def size_bytes(self, path: str) -> int:
        with _refused("look at", path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _refused("look at", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.make_dirs(parent)
        with _refused("create the folder", path):
            os.makedirs(path, mode=_OWNER_ONLY, exist_ok=True)
        if durable:
            self.sync_dir(parent)

    def remove(self, path: str) -> None:
        with _refused("remove", path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    def remove_tree(self, path: str) -> None:
        with _refused("remove the folder", path):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                pass

    def rename(self, source: str, target: str) -> None:
        with _refused(f"rename to {target}:", source):
            os.replace(source, target)

    def sync_dir(self, path: str) -> None:
        with _refused("flush the folder", path):
            sync_folder(path)

    def lock(self, path: str) -> FileLock:
        with _refused("open the lock", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StorageError(
                f"the folder {os.path.dirname(path)} is locked: another broker is running on it; stop that broker, or give"
                " this one its own folder in log.dirs"
            ) from error
        return RealFileLock(descriptor)

    def disk_usage(self, path: str) -> DiskUsage:
        with _refused("look at", path):
            usage = shutil.disk_usage(path)
        return DiskUsage(total_bytes=usage.total, free_bytes=usage.free)

    def drop_cached(self, path: str) -> None:
        """After a failed flush, Linux considers the lost pages clean and still serves them: this drops them."""
        with _refused("read", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                systems.drop_cached(descriptor)
            finally:
                os.close(descriptor)

    def reserve(self, path: str, size_bytes: int) -> None:
        try:
            with _refused("reserve space with", path):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
                try:
                    systems.reserve_space(descriptor, size_bytes)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            self.sync_dir(os.path.dirname(path))
        except StorageError:
            self.remove(path)
            raise

    def boot_id(self) -> str:
        with _refused("read", str(systems.LINUX_BOOT_ID)):
            return systems.boot_id()

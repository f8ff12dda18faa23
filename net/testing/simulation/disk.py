"""A disk in memory that forgets what was not flushed: `Files` for unit tests and for the simulation of whole clusters.

`kill()` is the death of a process: every write stays. `power_loss(rng)` is the death of a machine: of each file
independently only a part of the unflushed bytes stays, the last of them perhaps torn, and of each folder only a prefix
of the creations, renames and removals since its last `sync_dir`. Faults can be ordered: `fail_next`, `capacity_bytes`.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from random import Random

from barnabas.log.disk.files import AppendFile, DiskUsage, FileLock
from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.errors import DiskFailedError, DiskFullError, MissingFileError, StorageError

from .process import ProcessDied

Write = Callable[[float], None]  # puts that share of an append into its file, as a write that is cut off does
TORN_PROBABILITY = 0.25  # that an unflushed tail ends in bytes that were never written
DEFAULT_CAPACITY_BYTES = 1 << 40
UNLIMITED_BYTES = 1 << 30  # no simulation writes so much: a disk that holds more need not be summed up at every write


@dataclass(slots=True, eq=False)
class _Inode:
    """The bytes of one file: as the process sees them, and as the platter has them."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    unflushed_from: int = 0  # bytes of `live` before this are equal to those of `durable`
    modified_ms: int = 0

    def written(self, start: int) -> None:
        self.unflushed_from = min(self.unflushed_from, start)

    def flush(self) -> None:
        self.durable = bytes(self.live)
        self.unflushed_from = len(self.live)

    def lose_unflushed(self, rng: Random) -> None:
        base = self.unflushed_from
        survivor = self.live
        if len(self.durable) > base and rng.random() < 0.5:
            survivor = bytearray(self.durable)  # a truncation, and what was written over it, did not get to the disk
            base = len(survivor)
        kept = survivor[: rng.randint(min(base, len(survivor)), len(survivor))]
        lost = len(survivor) - len(kept)
        if lost and rng.random() < TORN_PROBABILITY:
            # The length reached the disk and the data did not: zeros, or what was there before.
            garbage = rng.randint(1, lost)
            kept += bytes(garbage) if rng.random() < 0.5 else rng.randbytes(garbage)
        self.live = kept
        self.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    action: str
    pattern: str
    message: str
    error: type[StorageError]


@dataclass(slots=True, eq=False)
class _Folder:
    """Entries as the process sees them; `pending` are the changes that the disk may forget, in order."""

    live: dict[str, _Inode] = field(default_factory=dict)
    durable: dict[str, _Inode] = field(default_factory=dict)
    pending: list[Callable[[dict[str, _Inode]], None]] = field(default_factory=list)

    def change(self, operation: Callable[[dict[str, _Inode]], None]) -> None:
        operation(self.live)
        self.pending.append(operation)

    def sync(self) -> None:
        self.durable = dict(self.live)
        self.pending.clear()

    def lose_unsynced(self, rng: Random) -> None:
        for operation in self.pending[: rng.randint(0, len(self.pending))]:
            operation(self.durable)
        self.live = dict(self.durable)
        self.pending.clear()


class SimulatedFile:
    """An `AppendFile`. After a crash of its disk it is dead: a process that should not be alive any more notices."""

    def __init__(self, disk: "SimulatedDisk", path: str, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._incarnation = disk.incarnation
        self._write_failed = False
        self._flush_failed = False
        self.path = path
        self.size_bytes = len(inode.live)

    @property
    def failed(self) -> bool:
        return self._write_failed or self._flush_failed

    def append(self, data: Buffer) -> None:
        self._check(writing=True)
        self._disk.check_space(len(data), self.path)  # A full disk refuses cleanly, as the real one does.
        try:
            self._disk.check_fault("append", self.path, lambda share: self._put(data[: int(len(data) * share)]))
        except StorageError as error:
            self._write_failed = not isinstance(error, DiskFullError)
            raise
        self._put(data)

    def _put(self, data: Buffer) -> None:
        self._inode.written(len(self._inode.live))
        self._inode.live += data
        self._inode.modified_ms = self._disk.now_ms
        self.size_bytes += len(data)

    def read_at(self, position: int, length: int) -> bytes:
        self._check(writing=False)
        self._disk.check_fault("read", self.path)
        data = bytes(self._inode.live[position : position + length])
        self._disk.bytes_read += len(data)
        return data

    def truncate(self, size_bytes: int) -> None:
        self._check(writing=True)
        self._disk.check_fault("truncate", self.path)
        del self._inode.live[size_bytes:]
        self._inode.written(size_bytes)
        self.size_bytes = size_bytes

    def flush(self) -> None:
        self._check(writing=True)
        try:
            self._disk.check_fault("flush", self.path)
        except StorageError:
            self._flush_failed = True
            raise
        self._inode.flush()
        self._disk.flush_count += 1

    def close(self) -> None:
        """Nothing to give back."""

    def fileno(self) -> int | None:
        return None

    def _check(self, *, writing: bool) -> None:
        assert self._incarnation == self._disk.incarnation, f"{self.path} is used after the crash of its process"
        if self._flush_failed or (writing and self._write_failed):
            raise DiskFailedError(
                f"{self.path} takes no more writes since one failed; mend the disk and restart the broker"
            )


class _SimulatedLock:
    def __init__(self, disk: "SimulatedDisk", path: str) -> None:
        self._disk = disk
        self._path = path
        self._incarnation = disk.incarnation

    def release(self) -> None:
        if self._incarnation == self._disk.incarnation:
            self._disk.locks.discard(self._path)


class SimulatedDisk:
    """`Files` of one machine. The owner of the clock sets `now_ms`; it is used only for the dates of files."""

    def __init__(self, *, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self._folders: dict[str, _Folder] = {"/": _Folder()}
        self._unsynced_folders: dict[str, None] = {}  # whose parent does not name them durably
        self._faults: list[_Fault] = []
        self._boots = 0
        self.failed: dict[str, str] = {}  # folders whose disk is broken, and what it says
        self.bytes_read = 0  # of log files, through `read_at`
        # Called before each operation with its action and path: one may end the process (and, of an append, write a
        # part of it first), the other notes how long it takes.
        self.before_operation: Callable[[str, str, Write | None], None] | None = None
        self.took_time: Callable[[str, str], None] | None = None
        self.capacity_bytes = capacity_bytes
        self.flush_count = 0
        self.incarnation = 0
        self.locks: set[str] = set()
        self.now_ms = 0

    # --- faults ---

    def kill(self) -> None:
        """The process dies: its locks go, everything that it wrote stays."""
        self.incarnation += 1
        self.locks.clear()

    def kill_within(self, rng: Random, operations: int) -> None:
        """The process dies at one of its next operations; an append may have written a part by then."""
        left = rng.randint(1, operations)

        def before(action: str, path: str, write: Write | None) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self.before_operation = None
                if write is not None:
                    write(rng.random())
                raise ProcessDied

        self.before_operation = before

    def power_loss(self, rng: Random) -> None:
        """The machine goes down and starts again."""
        self.kill()
        self._boots += 1
        for path in [path for path in self._unsynced_folders if rng.random() < 0.5]:
            self._forget_tree(path)  # a disk that refuses operations loses what it had not stored all the same
        self._unsynced_folders.clear()
        inodes: dict[_Inode, None] = {}
        for path in sorted(self._folders):
            folder = self._folders[path]
            folder.lose_unsynced(rng)
            inodes.update(dict.fromkeys(folder.live[name] for name in sorted(folder.live)))
        for inode in inodes:
            inode.lose_unflushed(rng)

    def wipe(self) -> None:
        """The machine has another disk, which is empty. Only while no process runs on it."""
        assert not self.locks
        self._folders = {"/": _Folder()}
        self._unsynced_folders.clear()
        self.failed.clear()

    def fail_next(
        self,
        action: str,
        pattern: str = "*",
        *,
        message: str = "Input/output error",
        error: type[StorageError] = DiskFailedError,
    ) -> None:
        """Let the next `append`, `flush`, `read`, `truncate`, `write`, `open`, `list`, `sync_dir`, `rename` or `remove` of a
        matching path fail once."""
        self._faults.append(_Fault(action=action, pattern=pattern, message=message, error=error))

    def write_back(self) -> None:
        """The kernel writes everything to the disk, as it does within half a minute."""
        for folder in self._folders.values():
            folder.sync()
            for inode in folder.live.values():
                inode.flush()

    def fail_folder(self, path: str, message: str = "Input/output error") -> None:
        """From now on whatever touches the folder fails, until `mend_folder`."""
        self.failed[path] = message

    def mend_folder(self, path: str, rng: Random | None = None) -> None:
        """The disk works again. With a generator, what was not flushed is lost (the kernel has thrown it away)."""
        self.failed.pop(path, None)  # the machine may have got another disk since
        if rng is not None:
            for name in sorted(self._folders):
                if name == path or name.startswith(f"{path}/"):
                    for inode in self._folders[name].live.values():
                        inode.lose_unflushed(rng)

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Bit rot: what is on the disk is not what was written."""
        inode = self._inode(path)
        inode.live[position] ^= 1 << bit
        inode.flush()

    def mend(self) -> None:
        """No fault that was ordered comes any more."""
        self._faults.clear()

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """For a checker that reads: it meets no fault, and none comes sooner because of it."""
        former = self.before_operation, self.took_time, self.failed, self._faults, self.capacity_bytes
        self.before_operation, self.took_time, self.failed, self._faults = None, None, {}, []
        self.capacity_bytes = DEFAULT_CAPACITY_BYTES
        try:
            yield
        finally:
            self.before_operation, self.took_time, self.failed, self._faults, self.capacity_bytes = former

    def check_fault(self, action: str, path: str, write: Write | None = None) -> None:
        if action != "read":  # the checkers read, too
            if self.took_time is not None:
                self.took_time(action, path)
            if self.before_operation is not None:
                self.before_operation(action, path, write)
        for fault in self._faults:
            if fault.action == action and fnmatch(path, fault.pattern):
                self._faults.remove(fault)
                raise fault.error(f"cannot {action} {path}: {fault.message}")
        for prefix, message in self.failed.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                raise DiskFailedError(f"cannot {action} {path}: {message}")

    def check_space(self, size_bytes: int, path: str) -> None:
        if self.capacity_bytes < UNLIMITED_BYTES and self.used_bytes + size_bytes > self.capacity_bytes:
            raise DiskFullError(f"cannot write {path}: No space left on device; free space")

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.live) for folder in self._folders.values() for inode in folder.live.values())

    # --- Files ---

    def open_append(self, path: str, *, create: bool = True) -> AppendFile:
        self.check_fault("open", path)
        folder, name = self._place(path)
        if name not in folder.live:
            if not create:
                raise MissingFileError(f"cannot open {path}: No such file or directory")
            self.check_space(1, path)
            self._create(folder, name, _Inode(modified_ms=self.now_ms))
        return SimulatedFile(self, path, folder.live[name])

    def read_bytes(self, path: str) -> bytes:
        self.check_fault("read", path)
        return bytes(self._inode(path).live)

    def write_atomically(self, path: str, data: Buffer) -> None:
        self.check_fault("write", path)
        self.check_space(len(data), path)
        folder, name = self._place(path)
        inode = _Inode(live=bytearray(data), modified_ms=self.now_ms)
        inode.flush()
        self._create(folder, name, inode)
        folder.sync()

    def map_readonly(self, path: str) -> Buffer:
        return self.read_bytes(path)

    def drop_cached(self, path: str) -> None:
        """What the simulation reads is what the disk has."""

    def reserve(self, path: str, size_bytes: int) -> None:
        self.write_atomically(path, bytes(size_bytes))

    def list_dir(self, path: str) -> list[str]:
        self.check_fault("list", path)
        folder = self._folders.get(path)
        if folder is None:
            raise StorageError(f"cannot list {path}: No such file or directory")
        prefix = path.rstrip("/") + "/"
        below = {other[len(prefix) :].split("/")[0] for other in self._folders if other.startswith(prefix)}
        return sorted({*folder.live, *below} - {""})

    def exists(self, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        return path in self._folders or (parent in self._folders and name in self._folders[parent].live)

    def size_bytes(self, path: str) -> int:
        return len(self._inode(path).live)

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        if not durable and path not in self._folders:
            self._unsynced_folders[path] = None
        while path and path not in self._folders:
            self._folders[path] = _Folder()
            path = path.rpartition("/")[0]

    def remove(self, path: str) -> None:
        self.check_fault("remove", path)
        folder, name = self._place(path)
        if name in folder.live:

            def remove(entries: dict[str, _Inode]) -> None:
                entries.pop(name, None)

            folder.change(remove)

    def remove_tree(self, path: str) -> None:
        self.check_fault("remove", path)
        self._forget_tree(path)

    def _forget_tree(self, path: str) -> None:
        for other in [other for other in self._folders if other == path or other.startswith(path + "/")]:
            del self._folders[other]
            self._unsynced_folders.pop(other, None)

    def rename(self, source: str, target: str) -> None:
        self.check_fault("rename", source)
        if source in self._folders:
            self._unsynced_folders.pop(source, None)
            for path in [path for path in self._folders if path == source or path.startswith(source + "/")]:
                self._folders[target + path[len(source) :]] = self._folders.pop(path)
            return
        folder, name = self._place(source)
        new_folder, new_name = self._place(target)
        assert folder is new_folder, "a rename between folders is not atomic"
        inode = self._inode(source)

        def move(entries: dict[str, _Inode]) -> None:
            entries.pop(name, None)
            entries[new_name] = inode

        folder.change(move)

    def sync_dir(self, path: str) -> None:
        self.check_fault("sync_dir", path)
        if path not in self._folders:
            raise StorageError(f"cannot flush the folder {path}: No such file or directory")
        for below in [*self._unsynced_folders]:  # a finalizer, which runs between any two steps, may change it
            if below.rpartition("/")[0] == path:
                self._unsynced_folders.pop(below, None)
        self._folders[path].sync()

    def lock(self, path: str) -> FileLock:
        self.check_fault("lock", path)
        if path in self.locks:
            raise StorageError(f"the folder {path.rpartition('/')[0]} is locked: another broker is running on it")
        self.locks.add(path)
        return _SimulatedLock(self, path)

    def disk_usage(self, path: str) -> DiskUsage:
        return DiskUsage(total_bytes=self.capacity_bytes, free_bytes=max(self.capacity_bytes - self.used_bytes, 0))

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    # --- names ---

    @staticmethod
    def _create(folder: _Folder, name: str, inode: _Inode) -> None:
        folder.change(lambda entries: entries.__setitem__(name, inode))

    def _place(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rpartition("/")
        folder = self._folders.get(parent or "/")
        if folder is None:
            raise StorageError(f"cannot open {path}: No such file or directory")
        return folder, name

    def _inode(self, path: str) -> _Inode:
        folder, name = self._place(path)
        if name not in folder.live:
            raise StorageError(f"cannot open {path}: No such file or directory")
        return folder.live[name]

"""What Linux, macOS and the BSDs do differently with disks. `files` calls it; each function looks for what the system has.

macOS has neither fdatasync nor posix_fallocate nor posix_fadvise, and its fsync leaves data in the cache of the drive.
"""

import errno
import fcntl
import os
import subprocess
from pathlib import Path
from typing import Final

LINUX_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ASK_BOOT_ID: Final = ("sysctl", "-n", "kern.bootsessionuuid")  # macOS
_ASK_TIMEOUT_S: Final = 10
_CHUNK_BYTES: Final = 1 << 20

_NAMES: Final = ("EIO", "EROFS", "ENODEV", "ENXIO", "ESTALE", "EUCLEAN", "EREMOTEIO")  # the last two: Linux
FAILED_DISK: Final = tuple(getattr(errno, name) for name in _NAMES if hasattr(errno, name))


def flush_data(descriptor: int) -> None:
    """Returns when the data of the file, and what is needed to read it, are on the disk."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    elif hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # with the drive's cache
    else:
        os.fsync(descriptor)


def reserve_space(descriptor: int, size_bytes: int) -> None:
    """Returns when the first `size_bytes` of the file have blocks on the disk; a file that has data there keeps it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    written = os.fstat(descriptor).st_size
    while written < size_bytes:
        written += os.pwrite(descriptor, bytes(min(_CHUNK_BYTES, size_bytes - written)), written)


def drop_cached(descriptor: int) -> None:
    """The next reads come from the disk. Without posix_fadvise they may come from the cache."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def boot_id() -> str:
    """Another text after each boot of the machine. Raises OSError."""
    if LINUX_BOOT_ID.exists():
        return LINUX_BOOT_ID.read_text(encoding="ascii").strip()
    try:
        asked = subprocess.run(_ASK_BOOT_ID, capture_output=True, text=True, check=True, timeout=_ASK_TIMEOUT_S)
    except subprocess.SubprocessError as error:
        raise OSError(errno.ENOSYS, f"the system does not tell when it was booted: {error}") from error
    return asked.stdout.strip()

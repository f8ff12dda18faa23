"""A mount table of a campaign's own: only its processes see what it mounts, and the kernel removes it with the last of them.

In the machine's table, file systems and network namespaces outlive a campaign that is killed. Then pytest cannot delete the
folder, and every later run on the machine ends with an error. Others are disturbed as well: a program that copies the table
while a disk is mounted keeps that disk, and its power cannot come back.
"""

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Final

NAMESPACES: Final = Path("/run/netns")  # where `ip netns` keeps the names
_CLONE_NEWNS: Final = 0x00020000
_own: set[str] = set()  # tables that this process has made


def use_own_table() -> None:
    """From now on this thread, the threads and the processes that it starts share a mount table of their own.

    Raises OSError, e.g. without root. What the machine has mounted until now stays visible.
    """
    if _table() in _own:
        return
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mount table of its own can be made")
    run("mount", "--make-rprivate", "/")
    NAMESPACES.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "none", str(NAMESPACES))
    _own.add(_table())


def run(*command: str) -> None:
    """Raises OSError with what the command says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _table() -> str:
    return os.readlink("/proc/thread-self/ns/mnt")

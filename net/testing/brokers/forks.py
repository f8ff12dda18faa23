"""What a forked child of a process with in-process brokers does not keep: their files and sockets.

A fork copies descriptors. A child that lives on would hold the locks of a killed broker's folders and its connections: the broker
could not start again, and its clients would wait for answers. The child puts /dev/null under those numbers. It does not close
them: objects of Python in the child still believe that they own the numbers.
"""

import os
import socket
import stat
import weakref
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

_DESCRIPTORS: Final = Path("/proc/self/fd")


class Holder(Protocol):
    def held(self) -> tuple[Path, Collection[int]]:
        """The folder of its files, and the ports at which its sockets listen."""


_HOLDERS: Final[weakref.WeakSet[Holder]] = weakref.WeakSet()


def keep_from_children(holder: Holder) -> None:
    """As long as the holder lives. Without effect where the system has no /proc."""
    _HOLDERS.add(holder)


def _port_of(descriptor: int) -> int:
    """The local port of a TCP socket; -1: it is something else."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return -1
    with socket.socket(fileno=os.dup(descriptor)) as found:
        name = found.getsockname()
    return name[1] if isinstance(name, tuple) and found.family in (socket.AF_INET, socket.AF_INET6) else -1


def _release() -> None:
    held = [holder.held() for holder in _HOLDERS]
    if not held or not _DESCRIPTORS.is_dir():
        return
    folders = [f"{folder.resolve()}{os.sep}" for folder, _ in held]
    ports = {port for _, found in held for port in found}
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # the descriptor of the listing itself has ended
            descriptor = int(name)
            path = os.readlink(_DESCRIPTORS / name)
            if path.startswith(tuple(folders)) or _port_of(descriptor) in ports:
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_release)

"""A broker that writes down which thread touches the file system: `python -m faults.watched CONFIG`.

Every method of the files layer, every audit event of the interpreter (`open`, `os.rename`, ...) and every flush past the files
layer on a thread that must not wait for a disk (the broker's loop, the quorum's) is written to WATCH_FILE once, as
`THREAD OPERATION MODULE.FUNCTION`. Nothing is written before the broker serves.

A broker with PLANT in its environment breaks the rule: a watch that does not see that sees nothing.
"""

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any, Final
from unittest.mock import patch

from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.log.disk import files
from barnabas.log.replication.leading import Leading
from barnabas.net.broker.broker import Broker
from barnabas.net.cli.main import main as barnabas

WATCH_FILE: Final = "WATCHED_FILE"
PLANT: Final = "WATCHED_PLANT"
PROGRAM: Final = (sys.executable, "-P", "-m", "faults.watched")
METHODS: Final = ("append", "read_at", "truncate", "flush")
EVENTS: Final = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")
DIRECT_FLUSHES: Final = ("fsync", "fdatasync", "sync")  # of the module os, which tells no audit hook of them
_THREADS: Final = ("MainThread", "quorum")


class Watch:
    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._known: set[str] = set()
        self.is_serving = False

    def note(self, operation: str) -> None:
        thread = threading.current_thread().name
        if not self.is_serving or thread.rstrip("-0123456789") not in _THREADS:
            return
        line = f"{thread} {operation} {_asked_by()}"
        if line not in self._known:
            self._known.add(line)
            os.write(self._handle, f"{line}\n".encode())

    def watched(self, owner: type, name: str) -> None:
        genuine: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.note(name)
            return genuine(*arguments, **named)

        setattr(owner, name, call)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and self.is_serving and _is_of_barnabas(sys._getframe(1)):
            self.note(event)

    def watched_call(self, owner: Any, name: str) -> None:
        """A function of a module, where the caller is of the product and not of its files layer."""
        genuine: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if self.is_serving and _is_of_barnabas(sys._getframe(1)):
                self.note(f"{owner.__name__}.{name}")
            return genuine(*arguments, **named)

        setattr(owner, name, call)


def _is_of_barnabas(frame: FrameType | None) -> bool:
    """Is the file system touched past the files layer?"""
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return name.startswith("barnabas.") and name != files.__name__


def _asked_by() -> str:
    """The function outside of the files layer and of this module that asked."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in (__name__, files.__name__):
        frame = frame.f_back
    assert frame is not None
    return f"{str(frame.f_globals.get('__name__')).rpartition('.')[2]}.{frame.f_code.co_name}"


# --- planted violations ------------------------------------------------------------------------------------------------


def flushes_its_log(self: Any, *arguments: Any, **named: Any) -> Any:
    """An append on the loop that waits for the disk."""
    appended = genuine(self, *arguments, **named)  # type: ignore[name-defined]  # noqa: F821 - given by `_planted`
    self._storage.log.flush()
    return appended


def flushes_past_the_files_layer(self: Any, *arguments: Any, **named: Any) -> Any:
    handle = os.open(self._storage.log.directory, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    return genuine(self, *arguments, **named)  # type: ignore[name-defined]  # noqa: F821


def reads_a_file(self: Any, *arguments: Any, **named: Any) -> Any:
    with open(__file__, "rb") as file:
        file.read(1)
    return genuine(self, *arguments, **named)  # type: ignore[name-defined]  # noqa: F821


# By name: where it is planted, and what is done there.
PLANTS: Final[dict[str, tuple[type, str, Callable[..., Any]]]] = {
    "a flush of a log on the loop": (Leading, "append", flushes_its_log),
    "a flush past the files layer": (Leading, "append", flushes_past_the_files_layer),
    "a read on the loop": (Leading, "append", reads_a_file),
    "a read in the thread of the quorum": (RaftQuorum, "append", reads_a_file),
}


def plant(name: str) -> None:
    """Under a name of the product: what others do with files is not written down."""
    owner, method, bug = PLANTS[name]
    known = {"__name__": "barnabas.planted", "__file__": __file__, "genuine": getattr(owner, method), "os": os}
    patch.object(owner, method, FunctionType(bug.__code__, {**globals(), **known}, bug.__name__)).start()


def main() -> int:
    watch = Watch(os.environ[WATCH_FILE])
    for name in METHODS:
        watch.watched(files.RealAppendFile, name)
    for name in vars(files.RealFiles):
        if not name.startswith("_"):
            watch.watched(files.RealFiles, name)
    for name in DIRECT_FLUSHES:
        watch.watched_call(os, name)
    if PLANT in os.environ:
        plant(os.environ[PLANT])
    genuine = Broker._registered

    def registered(self: Broker, broker_epoch: int) -> None:
        genuine(self, broker_epoch)
        watch.is_serving = True

    Broker._registered = registered  # type: ignore[method-assign]
    sys.addaudithook(watch.audit)
    sys.argv = ["barnabas", "broker", "start", "--config", sys.argv[1]]
    return barnabas()


if __name__ == "__main__":
    sys.exit(main())

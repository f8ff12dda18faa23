"""A broker that writes down which thread touches the file system: `python -m faults.watched CONFIG`.

Every method of the files layer and every audit event of the interpreter (`open`, `os.rename`, ...) on a thread that must not
wait for a disk (the broker's loop, the quorum's) is written to WATCH_FILE once, as `THREAD OPERATION MODULE.FUNCTION`.
Nothing is written before the broker serves.
"""

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from barnabas.log.disk import files
from barnabas.net.broker.broker import Broker
from barnabas.net.cli.main import main as barnabas

WATCH_FILE: Final = "BARNABAS_WATCH_FILE"
PROGRAM: Final = (sys.executable, "-m", "faults.watched")
METHODS: Final = ("append", "read_at", "truncate", "flush")
EVENTS: Final = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")
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
    return f"{str(frame.f_globals.get('__name__')).removeprefix('barnabas.')}.{frame.f_code.co_name}"


def main() -> int:
    watch = Watch(os.environ[WATCH_FILE])
    for name in METHODS:
        watch.watched(files.RealAppendFile, name)
    for name in vars(files.RealFiles):
        if not name.startswith("_"):
            watch.watched(files.RealFiles, name)
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

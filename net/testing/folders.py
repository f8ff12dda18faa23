"""Where the data of a cluster under test lies: in memory where the machine offers that, and never longer than its process."""

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

_IN_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "barnabas-testing-"
_YOUNG_S: Final = 60.0
_END_S: Final = 2.0  # of a removal at the end of a process
_OWNER: Final = "owner"  # locked by the process that uses the folder


class TemporaryFolder:
    """Removed by `close`, or at the end of the process; what a killed process left behind is removed by the next one that makes a
    folder."""

    def __init__(self) -> None:
        parent = _IN_MEMORY if _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        _remove_orphans(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._owner = (self.path / _OWNER).open("wb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        self._process_id = os.getpid()
        atexit.register(self._process_ends)

    def close(self) -> None:
        atexit.unregister(self._process_ends)
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()

    def _process_ends(self) -> None:
        """Brokers of a cluster that nobody has stopped may still write: they hold up the removal for a moment."""
        until_s = time.monotonic() + _END_S
        while os.getpid() == self._process_id and self.path.exists() and time.monotonic() < until_s:
            shutil.rmtree(self.path, ignore_errors=True)


def _remove_orphans(parent: Path) -> None:
    """A young folder may have an owner that has not locked it yet."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), (folder / _OWNER).open("rb") as owner:
            if time.time() - folder.stat().st_mtime > _YOUNG_S and _is_free(owner):
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(owner: IO[bytes]) -> bool:
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

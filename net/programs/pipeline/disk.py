"""A full disk: how errors of the system, of the JVM and of SQLite say it, and the line for the user: fault, places, cure."""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_WORDS: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "database or disk is full")
_ON_A_SERVER: Final = "DiskFull"  # of psycopg: the disk of the database, whose folders this machine does not have
_KEPT: Final = "Nothing is lost: the next start goes on from the checkpoint"
CURE: Final = (
    "free some space, or move the folder to another disk (state and checkpoint in the pipeline's file, spark.local.dir under"
    f" [spark]). {_KEPT}"
)


def says_full(text: str) -> bool:
    return any(words in text for words in _WORDS)


def full_disk(cause: str, folders: Iterable[Path]) -> str:
    """`cause`: the error that says it. Spark rarely tells which disk it is: all folders are named, the fullest first."""
    if _ON_A_SERVER in cause:
        return f"{cause}: free space on the disk of the database's server. {_KEPT}"
    free = sorted((_free_bytes(folder), str(folder)) for folder in dict.fromkeys(folders))
    places = ", ".join(f"{folder} has {_shown(size)} free" for size, folder in free)
    return f"a disk is full ({cause}): {places}; {CURE}"


def _free_bytes(folder: Path) -> int:
    """Of the nearest folder that exists."""
    for place in (folder, *folder.parents):
        with suppress(OSError):
            found = os.statvfs(place)
            return found.f_bavail * found.f_frsize
    return 0


def _shown(size: int) -> str:
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"

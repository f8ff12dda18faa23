"""Whole files that are written in one step (`write_secret` for their owner alone, `write_public` for all readers), folders that
everyone may write, and what others may have put there."""

import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from ..vocabulary.errors import StorageError
from .files import write_beside


def write_secret(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file that only its owner can read, in one step: a broker may read it at any moment. Raises OSError."""
    _write(path, data, mode=0o600, replace=replace)


def write_public(path: Path, data: bytes) -> None:
    """Write a file that anyone may read, in one step. Raises OSError."""
    _write(path, data, mode=0o644)


def open_to_all(folders: Iterable[str]) -> list[str]:
    """The folders in which every user of this machine may replace files, such as by links to others."""
    found = []
    for folder in folders:
        try:
            mode = os.stat(folder).st_mode
        except OSError:
            continue  # it is missing, or whoever uses it says what is wrong
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            found.append(folder)
    return found


def refuse_links(folders: Iterable[str]) -> None:
    """Raises StorageError if there is a symbolic link below a folder: a broker would write what it points to, with its rights.
    The folder itself may be one. Hard links are allowed, as backups make them; the kernel lets nobody make one of a file that
    they may not write (fs.protected_hardlinks)."""
    for folder in folders:
        for where, folders_in_it, files_in_it in os.walk(folder):  # follows no link; what cannot be listed fails later
            for name in (*folders_in_it, *files_in_it):
                path = os.path.join(where, name)
                if os.path.islink(path):
                    raise StorageError(
                        f"{path} is a symbolic link: remove it, or put the files that it points to in its place; a whole disk is"
                        " added as a folder of log.dirs"
                    )


def _write(path: Path, data: bytes, *, mode: int, replace: bool = True) -> None:
    """The new file is one that nobody else has opened or linked: its name is random, and it must not exist."""
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        write_beside(
            str(beside),
            str(path),
            data,
            flags=os.O_EXCL | os.O_NOFOLLOW,
            mode=mode,
            put_in_place=os.replace if replace else os.link,  # a link fails where there is a file
        )
    except FileExistsError:
        raise FileExistsError(f"{path} exists already; remove it yourself if it is no longer needed") from None
    finally:
        beside.unlink(missing_ok=True)

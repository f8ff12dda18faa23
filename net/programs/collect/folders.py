"""A look at the folders: the files that match the patterns, and their neighbours. Blocking: call it in a thread."""

import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from .following import Seen
from .positions import MAX_HEAD_BYTES, FileId

_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".lz4")


class Look(NamedTuple):
    seen: list[Seen]
    unreadable: dict[str, str]  # path -> reason, of files that match
    unmatched: list[str]  # patterns


def look(patterns: Sequence[str], known: Mapping[FileId, str]) -> Look:
    """All regular files that match, and of their neighbours those that are known: they were renamed.

    `patterns`: absolute paths with `*`, `?`, `[...]` and `**`. `known`: the paths where files were last.
    """
    matching = {pattern: _matching(pattern) for pattern in patterns}
    wanted = {path for paths in matching.values() for path in paths}
    found: list[Seen] = []
    unreadable: dict[str, str] = {}
    for path in sorted(wanted):
        reason = _refusal(path)
        seen = None
        try:
            seen = _seen(path, is_wanted=True, unreadable=unreadable) if reason is None else None
        except FileNotFoundError:
            continue  # removed since
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is not None:
            unreadable[path] = reason
        found += [seen] if seen is not None else []
    missing = known.keys() - {seen.file_id for seen in found}
    if missing:
        folders = {os.path.dirname(path) for path in (*wanted, *known.values())}
        renamed = list(_renamed(missing, sorted({path for folder in folders for path in _files(folder)} - wanted)))
        missing -= {seen.file_id for seen in renamed}
        found += [*renamed, *_hidden(missing, known)]
    return Look(found, unreadable, [pattern for pattern, paths in matching.items() if not paths])


def _matching(pattern: str) -> list[str]:
    """A path that is there is meant as it is, also if it has brackets: a shell may have expanded a pattern."""
    return [pattern] if os.path.lexists(pattern) else glob.glob(pattern, recursive=True)


def _refusal(path: str) -> str | None:
    if path.endswith(_COMPRESSED):
        return "compressed files are not read: collect files before they are compressed (delaycompress)"
    return None if _is_utf_8(path) else "the name is not UTF-8, in which positions are written: rename the file"


def _is_utf_8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _renamed(missing: set[FileId], neighbours: Sequence[str]) -> Iterator[Seen]:
    for path in neighbours:
        try:
            found = os.stat(path)
            is_known = FileId(found.st_dev, found.st_ino) in missing and _is_utf_8(path)
            seen = _seen(path, is_wanted=False, unreadable={}) if is_known else None
        except OSError:
            continue  # removed since, or none of ours
        if seen is not None:
            yield seen


def _hidden(missing: set[FileId], known: Mapping[FileId, str]) -> Iterator[Seen]:
    """Files of which cannot be told whether they are there, such as those of a folder without permission. They keep their
    positions: without those they would be collected again."""
    for file_id in missing:
        try:
            os.stat(known[file_id])
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            yield Seen(known[file_id], file_id, 0, None, False)


def _files(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []  # removed since


def _seen(path: str, *, is_wanted: bool, unreadable: dict[str, str]) -> Seen | None:
    """None: not a regular file; what may be a pipe is not opened. Raises OSError if it is not there."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        return None
    try:
        with open(path, "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            head = os.pread(file.fileno(), MAX_HEAD_BYTES, 0)
    except FileNotFoundError:
        raise
    except OSError as error:
        unreadable[path] = error.strerror or str(error)
        head = None
    return Seen(path, FileId(found.st_dev, found.st_ino), found.st_size, head, is_wanted, found.st_mtime_ns)

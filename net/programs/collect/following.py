"""Which files exist, what became of the known ones, and what is read next. Pure: a scan of the folders is its input.

A file that is renamed keeps its position, also outside of the patterns, as long as it stays in its folder. The files that follow
each other under one path are a stream: the next is read when the one before has been read to its end, so lines stay in order. A
file that is found under the name of a rotated one (`web.log.1`, `web.log-20260131`) belongs to the stream of `web.log`.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.log.vocabulary.errors import BarnabasError

from .positions import MAX_HEAD_BYTES, FileId, Head, Position

logger = logging.getLogger("barnabas.collect")

_ROTATED: Final = re.compile(r"(?<=[^/])(\.\d{1,5}|[-.]\d{4}-?\d\d-?\d\d([-_T.]\d{1,6})?)$")
MAX_FILES: Final = 1_000  # each has an open descriptor, so that a file that is removed can be read to its end


class TooManyFilesToFollowError(BarnabasError):
    """More files match the patterns than can be followed: MAX_FILES, or what the process may open."""


class Seen(NamedTuple):
    """A regular file, at one look."""

    path: str
    file_id: FileId
    size_bytes: int
    head: bytes | None  # the first bytes, up to MAX_HEAD_BYTES; None: it cannot be read now
    is_wanted: bool  # its path matches a pattern; others are shown because their inode is known
    modified_ns: int = 0


@dataclass(slots=True, eq=False)
class Followed:
    file_id: FileId
    stream: str
    path: str
    head: Head
    number: int  # in the order in which they were found
    offset: int = 0  # all before it is in the topic
    size_bytes: int = 0
    is_present: bool = True
    is_wanted: bool = True  # its path matches a pattern
    tail: Head | None = None  # the last bytes before `offset`; None: not known
    is_other: bool = False  # its inode belongs to another file now, which is not collected

    @property
    def has_the_name(self) -> bool:
        """It is the file that is written now: it was not renamed or removed."""
        return self.is_present and self.path == self.stream

    @property
    def unread_bytes(self) -> int:
        return max(0, self.size_bytes - self.offset)

    def restart(self, head: Head) -> None:
        """The name or inode has other content now."""
        self.offset, self.head, self.tail = 0, head, None

    def position_at(self, offset: int, tail: Head | None = None) -> Position:
        return Position(
            stream=self.stream,
            path=self.path,
            device=self.file_id.device,
            inode=self.file_id.inode,
            offset=offset,
            head=self.head,
            tail=tail,
        )


def stream_of(path: str) -> str:
    """The name that a file had before it was rotated."""
    return _ROTATED.sub("", path)


def _oldest_first(item: tuple[FileId, Seen]) -> tuple[bool, int]:
    seen = item[1]
    return stream_of(seen.path) == seen.path, seen.modified_ns


class Following:
    def __init__(
        self, positions: Iterable[Position] = (), *, from_end: bool = False, max_files: int = MAX_FILES
    ) -> None:
        """`from_end`: of the files at the first look, only what comes later is collected; not if there are positions."""
        self._max_files = max_files
        self.files: dict[FileId, Followed] = {}
        self._numbers = 0
        self.restarted: list[Followed] = []  # by the last look: their splitters have bytes of something else
        # Renamed files are older than those that have their names now.
        for position in sorted(positions, key=lambda item: item.path == item.stream):
            added = self._add(position.file_id, position.stream, position.path, position.head, position.offset)
            added.tail = position.tail
        self._skips = from_end and not self.files

    def look(self, seen: Iterable[Seen]) -> None:
        """Take note of what is there now. Raises TooManyFilesToFollowError."""
        if len(self.files) > self._max_files:  # a former process could open more
            raise self._too_many()
        self.restarted = []
        shown = {}
        for item in seen:
            shown[item.file_id] = item  # the last of several names (hard links)
        for file_id, item in sorted(shown.items(), key=_oldest_first):
            known = self.files.get(file_id)
            if known is not None:
                self._seen_again(known, item, item.head)
            elif item.is_wanted and item.head is not None:
                self._found(item, item.head)
        for file_id, known in self.files.items():
            if file_id not in shown and known.is_present:
                known.is_present = False
                logger.info("event=removed file=%s unread_bytes=%d", known.path, known.unread_bytes)
        self._skips = False

    def _found(self, item: Seen, head: bytes) -> None:
        if len(self.files) >= self._max_files:
            raise self._too_many()
        offset = item.size_bytes if self._skips else 0
        added = self._add(item.file_id, stream_of(item.path), item.path, Head.of(head), offset)
        added.size_bytes = item.size_bytes
        logger.info("event=found file=%s size_bytes=%d offset=%d", item.path, item.size_bytes, added.offset)

    def _too_many(self) -> TooManyFilesToFollowError:
        cure = "run several collectors (--name) with narrower patterns"
        if self._max_files < MAX_FILES:
            cure = f"this process may not open more at a time: raise the limit (ulimit -Hn), or {cure}"
        return TooManyFilesToFollowError(f"more than {self._max_files} files match; {cure}")

    def _seen_again(self, known: Followed, item: Seen, head: bytes | None) -> None:
        known.is_present = True
        if head is None:
            return
        known.is_wanted = item.is_wanted
        is_replaced = not known.head.begins(head)
        if not item.is_wanted and (is_replaced or item.size_bytes < known.offset):
            known.is_other = True
            return
        if is_replaced:
            # The inode of a removed file, or one that was truncated and has grown since.
            logger.warning("event=replaced file=%s was=%s lost_bytes=%d", item.path, known.path, known.unread_bytes)
            known.stream = stream_of(item.path)
            self._restart(known, head)
        elif item.size_bytes < known.offset:
            logger.warning("event=truncated file=%s from=%d to=%d", item.path, known.offset, item.size_bytes)
            self._restart(known, head)
        elif item.path != known.path:
            logger.info("event=renamed file=%s to=%s", known.path, item.path)
        if known.head.size_bytes < MAX_HEAD_BYTES:
            known.head = Head.of(head)
        known.path, known.size_bytes = item.path, item.size_bytes

    def _restart(self, known: Followed, head: bytes) -> None:
        known.restart(Head.of(head))
        self.restarted.append(known)

    def _add(self, file_id: FileId, stream: str, path: str, head: Head, offset: int) -> Followed:
        self._numbers += 1
        added = Followed(file_id, stream, path, head, self._numbers, offset)
        self.files[file_id] = added
        return added

    def in_order(self) -> list[Followed]:
        """For each stream, the oldest file that has not been read to its end, or the newest."""
        chosen: dict[str, Followed] = {}
        for item in sorted(self.files.values(), key=lambda item: (item.has_the_name, item.number)):
            before = chosen.get(item.stream)
            if before is None or not before.unread_bytes:
                chosen[item.stream] = item
        return list(chosen.values())

    def has_successor(self, file: Followed) -> bool:
        """Whether a later file has, or has had, the name of this one."""
        place = (file.has_the_name, file.number)
        return any(
            item.stream == file.stream and (item.has_the_name, item.number) > place for item in self.files.values()
        )

    def forget(self, file_id: FileId) -> None:
        """It is gone, or will be found as a new one."""
        self.files.pop(file_id, None)

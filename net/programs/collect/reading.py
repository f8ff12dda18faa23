"""Reads the files that are followed. Blocking: call it in a thread, one call at a time."""

import logging
import os
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from .following import Followed
from .lines import NOTHING, RecordSplitter, Taken
from .positions import MAX_HEAD_BYTES, FileId, Head

logger = logging.getLogger("barnabas.collect")

CHUNK_BYTES: Final = 1 << 20  # of one file at a time, so that a large file does not hold up the others
ROUND_BYTES: Final = 8 << 20  # of all files: what one transaction takes
QUIET_S: Final = 2.0  # After this time without growth, a record of several lines is complete.


class Piece(NamedTuple):
    """What was read of a file. `offset`: where the records end; `tail`: the last bytes before it."""

    file: Followed
    records: list[bytes]
    offset: int
    tail: Head


class ReadRound(NamedTuple):
    pieces: list[Piece]
    is_busy: bool  # whether there may be more to read at once


class FileReading:
    """The descriptors of the files stay open: a file that is removed while it is followed is read to its end."""

    def __init__(self, splitter: Callable[[], RecordSplitter]) -> None:
        self._make_splitter = splitter
        self._descriptors: dict[FileId, int] = {}
        self._splitters: dict[FileId, RecordSplitter] = {}
        self._tails: dict[FileId, bytes] = {}  # the last bytes that were read
        self._grown_s: dict[FileId, float] = {}  # when data was read last
        self._turns: dict[FileId, int] = {}  # the round in which it was read last
        self._turn = 0
        self.unreadable: dict[str, str] = {}  # path -> reason, of the last round

    def forget_what_was_read(self) -> None:
        """Reading goes on at the offsets of the files."""
        self._splitters.clear()
        self._tails.clear()

    def restart(self, file: Followed) -> None:
        """The name or inode has other content now."""
        self._splitters.pop(file.file_id, None)
        self._tails.pop(file.file_id, None)

    def drop(self, file: Followed) -> None:
        self.restart(file)
        self._grown_s.pop(file.file_id, None)
        self._turns.pop(file.file_id, None)
        descriptor = self._descriptors.pop(file.file_id, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def is_open(self, file: Followed) -> bool:
        return file.file_id in self._descriptors

    def quiet_s(self, file: Followed, now_s: float) -> float:
        """How long nothing was read of the file."""
        return now_s - self._grown_s.setdefault(file.file_id, now_s)

    def open(self, files: Iterable[Followed]) -> None:
        """From now on they can be read, whatever becomes of their names: also of a removed file, its size is known."""
        self.unreadable.clear()
        for file in files:
            if self._open(file) and not file.is_present:
                file.size_bytes = os.fstat(self._descriptors[file.file_id]).st_size

    def _open(self, file: Followed) -> bool:
        """False: it cannot be read. A file that was removed is not opened: its name and inode may be those of another."""
        if file.file_id in self._descriptors:
            return True
        if not file.is_present:
            return False
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self.unreadable[file.path] = error.strerror or str(error)
            return False
        found = os.fstat(descriptor)
        if FileId(found.st_dev, found.st_ino) != file.file_id:
            os.close(descriptor)
            return False
        self._descriptors[file.file_id] = descriptor
        return True

    def read(self, files: Iterable[Followed], *, now_s: float, is_over: Callable[[Followed], bool]) -> ReadRound:
        """New records of the files, first of those that have waited longest. `is_over`: the file will not grow any more, so its
        last line needs no end."""
        pieces: list[Piece] = []
        left_bytes = ROUND_BYTES
        self._turn += 1
        for file in sorted(files, key=lambda file: self._turns.get(file.file_id, 0)):
            if left_bytes <= 0:
                break
            self._turns[file.file_id] = self._turn
            if not self._open(file):
                continue
            try:
                taken, read_bytes = self._read(file, now_s=now_s, is_over=is_over)
                left_bytes -= read_bytes
                if taken.size_bytes:
                    offset = file.offset + taken.size_bytes
                    pieces.append(Piece(file, taken.records, offset, Head.of(self._before(file, offset))))
            except OSError as error:  # a disk or a server of files that fails; it is opened again
                self.unreadable[file.path] = error.strerror or str(error)
                self.drop(file)
        return ReadRound(pieces, left_bytes < ROUND_BYTES or bool(pieces))

    def _read(self, file: Followed, *, now_s: float, is_over: Callable[[Followed], bool]) -> tuple[Taken, int]:
        splitter = self._splitters.get(file.file_id)
        if splitter is None:
            splitter = self._splitters[file.file_id] = self._make_splitter()
        tail = self._tail(file)
        if tail is None:
            return self._rewritten(file)
        size_bytes = CHUNK_BYTES + len(tail)
        read_offset = file.offset + splitter.kept_bytes - len(tail)
        data = os.pread(self._descriptors[file.file_id], size_bytes, read_offset)
        if not data.startswith(tail):
            return self._rewritten(file)
        if len(data) > len(tail):
            self._grown_s[file.file_id] = now_s
            self._tails[file.file_id] = data[-MAX_HEAD_BYTES:]
            return splitter.feed(data[len(tail) :]), len(data) - len(tail)
        if not splitter.kept_bytes:
            return NOTHING, 0
        if is_over(file):
            return splitter.finish(), 0
        return (splitter.finish_lines() if self.quiet_s(file, now_s) >= QUIET_S else NOTHING), 0

    def _tail(self, file: Followed) -> bytes | None:
        """What must stand before the next bytes if it is the file that was read; None: it is not."""
        tail = self._tails.get(file.file_id)
        if tail is None:
            tail = self._before(file, file.offset)
            if file.tail is not None and Head.of(tail) != file.tail:
                return None
            self._tails[file.file_id] = tail
        return tail

    def _before(self, file: Followed, offset: int) -> bytes:
        start = max(0, offset - MAX_HEAD_BYTES)
        return os.pread(self._descriptors[file.file_id], offset - start, start)

    def _rewritten(self, file: Followed) -> tuple[Taken, int]:
        """It was truncated and has grown since, or has the inode of another one, and begins as before."""
        logger.warning("event=replaced file=%s was_read_to=%d", file.path, file.offset)
        self.restart(file)
        if file.is_wanted:
            file.restart(Head.of(os.pread(self._descriptors[file.file_id], MAX_HEAD_BYTES, 0)))
        else:
            file.is_other = True
        return NOTHING, 1

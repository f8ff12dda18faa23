"""Bytes of a file to records: a line each, or several lines that belong together. Pure.

Each record comes with the number of bytes that it takes in the file, so a position in the file is always a boundary between
records.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

MAX_RECORD_BYTES: Final = (
    512 << 10
)  # half of the largest batch of a topic with defaults; what is longer becomes several records
MAX_LINES_OF_A_RECORD: Final = 10_000  # a pattern that never matches must not gather a whole file

_LINE_END: Final = b"\n"


class Taken(NamedTuple):
    """Records, and how many bytes of the file they and their line ends take."""

    records: list[bytes]
    size_bytes: int


NOTHING: Final = Taken([], 0)


class RecordSplitter:
    """Whole records of what was read. What may still grow stays until its end is read, or `finish` says that it does not grow."""

    def __init__(
        self, is_first: Callable[[bytes], bool] | None = None, *, max_record_bytes: int = MAX_RECORD_BYTES
    ) -> None:
        """`is_first`: whether a record begins with this line; lines for which it is false belong to the record before them. None:
        each line is a record."""
        self._is_first = is_first
        self._max_record_bytes = max_record_bytes
        self._partial = b""  # a line without its end
        self._gathered: list[bytes] = []  # lines of a record that may get more
        self._gathered_bytes = 0  # in the file
        self.cut_records = 0  # that were longer than the limit

    @property
    def kept_bytes(self) -> int:
        """Read, and not yet part of a record."""
        return len(self._partial) + self._gathered_bytes

    def feed(self, data: bytes) -> Taken:
        """The records that end in `data`. Line ends (`\\n` and `\\r\\n`) are left out."""
        known = self._partial + data if self._partial else data
        end = known.rfind(_LINE_END) + 1
        self._partial = known[end:]
        lines = known[: end - 1].split(_LINE_END) if end else []
        if self._is_first is None and len(known) <= self._max_record_bytes:
            return Taken(_without_returns(known, lines), end)
        records, size_bytes = [], 0
        for record, taken_bytes in self._of_lines(lines):
            records.append(record)
            size_bytes += taken_bytes
        return Taken(records, size_bytes)

    def finish(self) -> Taken:
        """What is left of a file that will not grow any more: also a line without an end."""
        found = self.finish_lines()
        records, size_bytes = found.records, found.size_bytes
        if self._partial:
            records.append(self._partial.removesuffix(b"\r"))
            size_bytes += len(self._partial)
            self._partial = b""
        return Taken(records, size_bytes)

    def finish_lines(self) -> Taken:
        """The record whose lines have been read; for a while, nothing has followed them."""
        if not self._gathered:
            return Taken([], 0)
        record, size_bytes = _LINE_END.join(self._gathered), self._gathered_bytes
        self._gathered, self._gathered_bytes = [], 0
        return Taken([record], size_bytes)

    def _of_lines(self, lines: list[bytes]) -> Iterator[tuple[bytes, int]]:
        """Records with their size in the file."""
        for line in lines:
            yield from self._of_line(line, end_bytes=1)
        while len(self._partial) > self._max_record_bytes:
            head, self._partial = self._partial[: self._max_record_bytes], self._partial[self._max_record_bytes :]
            yield from self._of_line(head, end_bytes=0)
            yield from self._finished()

    def _of_line(self, line: bytes, *, end_bytes: int) -> Iterator[tuple[bytes, int]]:
        limit = self._max_record_bytes
        is_first = self._is_first is None or self._is_first(line)
        is_full = self._gathered_bytes + len(line) > limit or len(self._gathered) >= MAX_LINES_OF_A_RECORD
        if is_first or is_full:
            self.cut_records += is_full and not is_first
            yield from self._finished()
        start = 0
        while len(line) - start > limit:
            self.cut_records += 1
            yield line[start : start + limit], limit
            start += limit
        self._gathered.append(line[start:].removesuffix(b"\r") if end_bytes else line[start:])
        self._gathered_bytes += len(line) - start + end_bytes
        if self._is_first is None:
            yield from self._finished()

    def _finished(self) -> Iterator[tuple[bytes, int]]:
        found = self.finish_lines()
        if found.records:
            yield found.records[0], found.size_bytes


def _without_returns(known: bytes, lines: list[bytes]) -> list[bytes]:
    return [line.removesuffix(b"\r") for line in lines] if b"\r" in known else lines

"""A segment of a spool: a file of changes that is written once.

Checksums (`_HEAD`), a header with its position (`SegmentHeader`, JSON), then the records: pairs of key and value in msgpack.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import IO, Final

import msgpack
import msgspec
from crc32c import crc32c

from .changes.envelope import Outgoing
from .changes.faults import ConnectorError

MAX_HEADER_BYTES: Final = 1 << 28  # a position has the ranges of every table
CHECK_BYTES: Final = 1 << 20  # read at once for a checksum
_MAGIC: Final = b"BSP2"
_HEAD: Final = Struct("!4sIII")  # _MAGIC, size of the header in bytes, CRC32C of the header, CRC32C of the records
_DIGITS: Final = 20  # of a number in the name of a file
RESET: Final = "barnabas connect reset"  # which the errors of a source name
BEGIN_AGAIN: Final = (
    "begin again with a new folder (spoolLocation) and a new checkpoint, and drop the slot (SELECT pg_drop_replication_slot);"
    " all tables are then read again"
)


class SpoolError(ConnectorError):
    """The folder is not what it must be."""


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    records: int
    position: str  # behind the last record


def is_segment(file: Path) -> bool:
    return file.name.isdigit() and len(file.name) == _DIGITS


def segment_file(folder: Path, number: int) -> Path:
    return folder / f"{number:0{_DIGITS}d}"


def header_of(folder: Path, number: int) -> SegmentHeader:
    """Raises SpoolError."""
    with _opened(folder, number) as file:
        return _header(folder, number, file)[0]


def read_segment(folder: Path, number: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, in the order of the changes. Nothing is given out of a damaged file. Raises SpoolError."""
    with _opened(folder, number) as file:
        header, wanted = _header(folder, number, file)
        begin, found = file.tell(), 0
        while chunk := file.read(CHECK_BYTES):
            found = crc32c(chunk, found)
        if found != wanted:
            raise _damaged(folder, number, "the checksum of its records is wrong")
        file.seek(begin)
        unpacker, count = msgpack.Unpacker(file, max_buffer_size=0), 0  # 0: as much as msgpack can
        for key, value in unpacker:
            count += 1
            yield key, value
        if count != header.records:
            raise _damaged(folder, number, f"it has {count} of its {header.records} records")


@contextmanager
def _opened(folder: Path, number: int) -> Iterator[IO[bytes]]:
    try:
        file = segment_file(folder, number).open("rb")
    except FileNotFoundError:
        raise lost(folder, number) from None
    with file:
        yield file


def _header(folder: Path, number: int, file: IO[bytes]) -> tuple[SegmentHeader, int]:
    """The header, and the checksum of the records, which come next in the file."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise _damaged(folder, number, f"it ends after {len(head)} bytes")
    magic, size_bytes, header_crc, records_crc = _HEAD.unpack(head)
    if magic != _MAGIC or size_bytes > MAX_HEADER_BYTES:
        raise _damaged(folder, number, "it does not begin as a segment")
    data = file.read(size_bytes)
    if crc32c(data) != header_crc:
        raise _damaged(folder, number, "the checksum of its header is wrong")
    return msgspec.json.decode(data, type=SegmentHeader), records_crc


def encoded(header: SegmentHeader, records: Sequence[Outgoing]) -> bytes:
    packer = msgpack.Packer()
    parts, checksum = [b"", msgspec.json.encode(header)], 0
    for record in records:
        parts.append(packer.pack((record.key, record.value)))
        checksum = crc32c(parts[-1], checksum)
    parts[0] = _HEAD.pack(_MAGIC, len(parts[1]), crc32c(parts[1]), checksum)
    return b"".join(parts)


def _damaged(folder: Path, number: int, what: str) -> SpoolError:
    return SpoolError(f"{segment_file(folder, number)} is damaged ({what}): {BEGIN_AGAIN}")


def lost(folder: Path, number: int) -> SpoolError:
    return SpoolError(
        f"{folder} has no segment {number}, which the checkpoint needs: was the folder emptied, is it of another query, or is"
        f" it not on a disk that all machines share? Restore it, or {BEGIN_AGAIN}"
    )

"""The records of the quorum's journal, and the rule that tells a torn tail from damage. Pure: bytes in, entries out.

Record: magic 4 | crc32 4 | payload length 4 | kind 1 | index 8 | term 8 | durable size 8 | payload (little endian).

Log structured: a truncation is a record of its own, so a suffix is never rewritten in place. Every record says how
much of the file was known to be on disk when it was written. That separates two faults that look alike: after a power
failure any page of what was *not* yet flushed may be missing, also before pages that are there (a torn tail, to be
cut); but when a valid record says that the bytes before it were durable and they are bad, then the disk has lost what
we have acknowledged, and going on would be a lie.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

Entry = tuple[bytes, int, int]  # command, index, term: the shape that pysyncobj expects of a journal
REGULAR, NO_OP = (
    b"\x00",
    b"\x01",
)  # (and `voters.MEMBERSHIP`) the first byte of an entry's command, as pysyncobj writes it

MAGIC = b"\xb1QJ1"
_HEADER = struct.Struct("<4sIIBQQQ")
_CRC_FROM = 8  # the crc covers all that follows it
HEADER_BYTES = _HEADER.size


class RecordKind(IntEnum):
    ENTRY = 0
    TRUNCATE = 1  # everything from `index` on is void
    MARK = 2  # says only that what lies before it is durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    kind: RecordKind
    index: int
    term: int
    durable_size_bytes: int
    payload: bytes
    end: int  # position behind the record


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a journal file says. `valid_size_bytes` < the file's size when its tail is torn."""

    entries: list[Entry]
    valid_size_bytes: int


class DamagedJournal(Exception):
    """Durable bytes of the journal are bad."""


def encode_record(kind: RecordKind, index: int, term: int, durable_size_bytes: int, payload: bytes = b"") -> bytes:
    record = bytearray(_HEADER.pack(MAGIC, 0, len(payload), kind, index, term, durable_size_bytes))
    record += payload
    struct.pack_into("<I", record, 4, zlib.crc32(memoryview(record)[_CRC_FROM:]))
    return bytes(record)


def decode_record(data: bytes, position: int) -> Record | None:
    """Return the record that begins at `position`, or None where there is no whole and valid one."""
    if position + HEADER_BYTES > len(data):
        return None
    magic, crc, length, kind, index, term, durable_size_bytes = _HEADER.unpack_from(data, position)
    payload_at = position + HEADER_BYTES
    end = payload_at + length
    if magic != MAGIC or end > len(data) or kind > RecordKind.MARK:
        return None
    if zlib.crc32(memoryview(data)[position + _CRC_FROM : end]) != crc:
        return None
    return Record(
        kind=RecordKind(kind),
        index=index,
        term=term,
        durable_size_bytes=durable_size_bytes,
        payload=data[payload_at:end],
        end=end,
    )


def replay(data: bytes) -> Replay:
    """Read a whole journal. Raises DamagedJournal when bytes that were durable are bad."""
    entries: list[Entry] = []
    position = 0
    while (record := decode_record(data, position)) is not None:
        _apply(record, entries, position)
        position = record.end
    _check_torn_tail(data, position)
    return Replay(entries=entries, valid_size_bytes=position)


def _apply(record: Record, entries: list[Entry], position: int) -> None:
    if record.kind is RecordKind.ENTRY:
        if entries and record.index != entries[-1][1] + 1:
            raise DamagedJournal(f"entry {record.index} follows {entries[-1][1]} at byte {position}")
        entries.append((record.payload, record.index, record.term))
    elif record.kind is RecordKind.TRUNCATE and entries:
        if record.index <= entries[0][1]:
            raise DamagedJournal(f"truncation to {record.index} before the first entry at byte {position}")
        del entries[record.index - entries[0][1] :]


def _check_torn_tail(data: bytes, bad_at: int) -> None:
    """Raise if any valid record behind `bad_at` says that `bad_at` had been durable."""
    candidate = data.find(MAGIC, bad_at + 1)
    while candidate != -1:
        record = decode_record(data, candidate)
        if record is not None and record.durable_size_bytes > bad_at:
            raise DamagedJournal(f"bad record at byte {bad_at} although the journal was durable there")
        candidate = data.find(MAGIC, candidate + 1)

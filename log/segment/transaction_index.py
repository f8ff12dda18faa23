"""The aborted transactions of a segment, in Kafka's format: what read_committed consumers must leave out (KIP-98).

An entry is written when the abort marker is appended, so most segments have none, and then no file. A flush of the log covers the
entries of the flushed markers. Entries beyond the recovery point are not trusted after a crash: `recover` removes them, and
`LogProducers` writes them again from the log.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from ..disk.files import AppendFile, Files
from ..vocabulary.errors import MissingFileError, StorageError

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_last_offset = attrgetter("last_offset")
_last_stable_offset = attrgetter("last_stable_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int
    last_offset: int  # inclusive: that of the abort marker
    last_stable_offset: int  # when the marker was appended


class TransactionIndex:
    """Entries by rising last offset."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._entries: list[AbortedTransaction] | None = None
        self._known_count = 0  # entries that the file must have at least; grows while they are in memory
        self._is_rebuilt = False  # in memory; the file is as it was found
        self.path = path

    @property
    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            self._entries = self._read() if self._files.exists(self.path) else []
            if len(self._entries) < self._known_count:
                count, self._entries = len(self._entries), None
                raise MissingFileError(
                    f"{self.path} has {count} of its {self._known_count} entries, without which readers would get aborted "
                    "records: restore the file, or remove the partition's folder to have it copied from another replica"
                )
            self._known_count = len(self._entries)
        return self._entries

    def start_empty(self) -> None:
        """The segment is new and has no file: a flush, in the thread of the log, need not look for one."""
        self._entries, self._known_count = [], 0

    def begin_rebuild(self) -> None:
        """Begin with no entry, and leave the damaged file as it is. If the machine lost power after a durable cut and before the
        entries are written again, the next start would take the short file for whole."""
        self._entries, self._known_count, self._is_rebuilt = [], 0, True

    def end_rebuild(self) -> None:
        """Replace the file, durably: its entries lie before the recovery point, so no later flush would take them along."""
        self._is_rebuilt = False
        self._files.write_atomically(self.path, b"".join(map(_packed, self.entries)))

    def append(self, transaction: AbortedTransaction) -> None:
        if self._is_rebuilt:
            self.entries.append(transaction)
            self._known_count = len(self.entries)
            return
        file = self._whole_file()
        file.append(_packed(transaction))
        file.close()
        self.entries.append(transaction)
        self._known_count = len(self.entries)

    @property
    def is_empty(self) -> bool:
        """Without reading the file of an index that was released."""
        return self._entries is not None and not self._entries

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that a reader of [first_offset, end_offset) must know, without a look at all entries: offsets of markers rise.
        So do the last stable offsets, before which no later entry begins."""
        entries = self.entries
        first = bisect_left(entries, first_offset, key=_last_offset)
        end = bisect_left(entries, end_offset, lo=first, key=_last_stable_offset) + 1
        return [entry for entry in entries[first:end] if entry.first_offset < end_offset]

    def is_complete_up_to(self, end_offset: int) -> bool:
        """Did each transaction that later segments show as aborted begin at or after this offset?"""
        return bool(self.entries) and self.entries[-1].last_stable_offset >= end_offset

    def truncate_to(self, end_offset: int) -> None:
        """Forget transactions whose marker lies at `end_offset` or beyond, durably: an entry that came back would hide committed
        records that are appended at its offsets later."""
        kept = [entry for entry in self.entries if entry.last_offset < end_offset]
        if len(kept) != len(self.entries):
            self._cut(kept)

    def recover(self, base_offset: int, end_offset: int) -> bool:
        """After a start: keep the sound entries whose marker lies before `end_offset`. False if one may be missing among them,
        because the file has other bytes than entries; then it is left as it is."""
        self._entries, self._known_count = [], 0
        if not self._files.exists(self.path):
            return True
        data = self._files.read_bytes(self.path)
        sound = list(_sound_entries(data, base_offset))
        kept = [entry for entry in sound if entry.last_offset < end_offset]
        # A torn entry may be one of the trusted ones, whose marker lies before `end_offset`: its bytes do not say where it lies.
        if base_offset < end_offset and len(kept) == len(sound) and len(data) != len(sound) * _ENTRY.size:
            return False
        if len(data) != len(kept) * _ENTRY.size:
            self._cut(kept)
        self._entries, self._known_count = kept, len(kept)
        return True

    def file_to_flush(self, from_offset: int) -> AppendFile | None:
        """None if no marker at or after `from_offset` has an entry: the others are durable."""
        entries = self.entries
        return self._whole_file() if entries and entries[-1].last_offset >= from_offset else None

    def _whole_file(self) -> AppendFile:
        """The file with all entries: what somebody has removed is written again from memory, and not begun in the middle."""
        entries = self.entries
        file = self._files.open_append(self.path)
        if file.size_bytes < len(entries) * _ENTRY.size:
            file.truncate(0)
            file.append(b"".join(map(_packed, entries)))
        return file

    def release(self) -> None:
        """Free the memory; the entries are read again by themselves."""
        if self._entries:
            self._entries = None

    def clear(self) -> None:
        self._files.remove(self.path)
        self._entries, self._known_count = [], 0

    def _cut(self, kept: list[AbortedTransaction]) -> None:
        file = self._files.open_append(self.path)
        file.truncate(len(kept) * _ENTRY.size)
        file.flush()
        file.close()
        self._entries, self._known_count = kept, len(kept)

    def _read(self) -> list[AbortedTransaction]:
        data = self._files.read_bytes(self.path)
        entries = list(_sound_entries(data))
        if len(entries) * _ENTRY.size != len(data):
            raise StorageError(
                f"{self.path} is damaged after {len(entries)} entries: restart the broker, which rebuilds it"
            )
        return entries


def _packed(transaction: AbortedTransaction) -> bytes:
    return _ENTRY.pack(_VERSION, transaction.producer_id, transaction.first_offset, transaction.last_offset,
                       transaction.last_stable_offset)  # fmt: skip


def _sound_entries(data: bytes, base_offset: int = 0) -> Iterator[AbortedTransaction]:
    """Up to the first one that cannot be an entry, such as the zeros of a file that a power loss has torn."""
    after = base_offset
    for version, producer_id, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(
        data[: len(data) - len(data) % _ENTRY.size]
    ):
        if version != _VERSION or not 0 <= first_offset < last_offset or last_offset < after:
            return
        after = last_offset + 1
        yield AbortedTransaction(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=last_offset,
            last_stable_offset=last_stable_offset,
        )

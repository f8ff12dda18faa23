"""The aborted transactions of a segment, in Kafka's format: what read_committed consumers must leave out (KIP-98).

An entry is written when the abort marker is appended, so most segments have none, and then no file.
"""

import struct
from dataclasses import dataclass

from ..disk.files import Files
from ..vocabulary.errors import StorageError

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


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
        self.path = path

    @property
    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            self._entries = self._read() if self._files.exists(self.path) else []
        return self._entries

    def append(self, transaction: AbortedTransaction) -> None:
        file = self._files.open_append(self.path)
        file.append(
            _ENTRY.pack(_VERSION, transaction.producer_id, transaction.first_offset, transaction.last_offset,
                        transaction.last_stable_offset)
        )  # fmt: skip
        file.close()
        if self._entries is not None:
            self._entries.append(transaction)

    def aborted_between(self, first_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Those that a reader of [first_offset, end_offset) must know."""
        return tuple(
            entry for entry in self.entries if entry.last_offset >= first_offset and entry.first_offset < end_offset
        )

    def truncate_to(self, end_offset: int) -> None:
        """Forget transactions whose marker lies at `end_offset` or beyond."""
        kept = [entry for entry in self.entries if entry.last_offset < end_offset]
        if len(kept) != len(self.entries):
            file = self._files.open_append(self.path)
            file.truncate(len(kept) * _ENTRY.size)
            file.close()
            self._entries = kept

    def clear(self) -> None:
        self._files.remove(self.path)
        self._entries = []

    def _read(self) -> list[AbortedTransaction]:
        data = self._files.read_bytes(self.path)
        whole = len(data) - len(data) % _ENTRY.size
        entries = []
        for version, producer_id, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(data[:whole]):
            if version != _VERSION or first_offset > last_offset:
                raise StorageError(f"{self.path} is damaged; remove it to rebuild it")
            entry = AbortedTransaction(
                producer_id=producer_id,
                first_offset=first_offset,
                last_offset=last_offset,
                last_stable_offset=last_stable_offset,
            )
            entries.append(entry)
        return entries

"""Term, vote, commit index and the blank flag of a voter: what must be on disk before a vote leaves this process.

Two slots, each a file of its own with a CRC, written alternately and each atomically: a crash leaves the old slot or the
new one, never a torn one. So a slot that cannot be read was damaged at rest. It may have been the newer one, whose vote has
left this process; the other slot is then a past in which the vote was not given. The voter refuses to start, because it
might vote twice in a term. A missing slot is the same, once both have been written.
"""

import struct
import zlib
from dataclasses import dataclass, replace

import msgpack

from ...quorum.config import MAX_TERM
from .storage import DamagedQuorumError, JournalStorage

_HEADER = struct.Struct("<4sII")
_MAGIC = b"\xb1QM1"
_SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftMeta:
    """`commit_index` is a hint that was true once. `blank`: this voter may have forgotten what it knew."""

    sequence: int = 0
    raft_term: int = 0
    voted_for: int | None = None
    commit_index: int = 1
    blank: bool = True


class MetaStore:
    """Loads and durably stores `RaftMeta` under `path`.0 and `path`.1."""

    def __init__(self, storage: JournalStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self.found = False  # whether this voter has ever stored anything
        self.current = self._load()

    def store(self, *, raft_term: int, voted_for: int | None, commit_index: int, blank: bool) -> None:
        """Durable on return. Raises StorageError."""
        meta = replace(
            self.current,
            sequence=self.current.sequence + 1,
            raft_term=raft_term,
            voted_for=voted_for,
            commit_index=commit_index,
            blank=blank,
        )
        self.write_slot(self._storage, self._path, meta)
        self.current = meta
        self.found = True

    @staticmethod
    def write_slot(storage: JournalStorage, path: str, meta: RaftMeta) -> None:
        storage.write_atomically(_slot_path(path, meta.sequence % _SLOTS), _encode(meta))

    def _load(self) -> RaftMeta:
        present = _present(self._storage, self._path)
        if not present:
            return RaftMeta()
        self.found = True
        valid = []
        for path in present:
            meta = _decode(self._storage.read_bytes(path))
            if meta is None:
                raise DamagedQuorumError(path, "this slot of term and vote is damaged (a vote may be forgotten)")
            valid.append(meta)
        newest = max(valid, key=lambda meta: meta.sequence)
        if len(valid) < min(newest.sequence, _SLOTS):
            raise DamagedQuorumError(self._path, "one slot of term and vote is missing (a vote may be forgotten)")
        if newest.raft_term >= MAX_TERM:
            raise DamagedQuorumError(self._path, f"term {newest.raft_term} was forged, no election can have reached it")
        return newest


def valid_slots(storage: JournalStorage, path: str) -> list[RaftMeta]:
    """What can be read, for a recovery; a voter that takes part must not be content with one of two."""
    decoded = (_decode(storage.read_bytes(slot)) for slot in _present(storage, path))
    return [meta for meta in decoded if meta is not None]


def _present(storage: JournalStorage, path: str) -> list[str]:
    return [slot for slot in (_slot_path(path, number) for number in range(_SLOTS)) if storage.exists(slot)]


def _slot_path(path: str, slot: int) -> str:
    return f"{path}.{slot}"


def _encode(meta: RaftMeta) -> bytes:
    body: bytes = msgpack.packb([meta.sequence, meta.raft_term, meta.voted_for, meta.commit_index, meta.blank])
    return _HEADER.pack(_MAGIC, zlib.crc32(body), len(body)) + body


def _decode(data: bytes) -> RaftMeta | None:
    if len(data) < _HEADER.size:
        return None
    magic, crc, length = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != _MAGIC or length != len(body) or zlib.crc32(body) != crc:
        return None
    try:
        # A head and zeros have the length and the checksum of an empty body.
        sequence, raft_term, voted_for, commit_index, blank = msgpack.unpackb(body)
    except (ValueError, TypeError):
        return None
    return RaftMeta(sequence=sequence, raft_term=raft_term, voted_for=voted_for, commit_index=commit_index, blank=blank)

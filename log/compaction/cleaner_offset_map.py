"""The last offset of each key, for as many keys as a given amount of memory holds. Pure.

A key of up to 15 bytes is stored itself, so it cannot be confused with another one. A longer key is stored as a digest of 16
bytes (BLAKE2b): two keys with one digest would cost a record, and with 128 bits such a pair cannot be found, not even on purpose.
A table of bytes as in Kafka would be four times smaller and, in Python, ten times slower than a dict.
"""

from hashlib import blake2b

ENTRY_BYTES = 200  # of a dict: the digest (64), the offset (32), and the slot with the room for the dict's next growth
DIGEST_BYTES = 16


class OffsetMap:
    """Last offsets of the keys in [first offset, end_offset) of a log; later records are not known."""

    def __init__(self, *, max_size_bytes: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._capacity = max(max_size_bytes // ENTRY_BYTES, 1)
        self.end_offset = 0  # exclusive; set by the caller that fills the map

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Note a later offset of a key. False if it is a new key and the map is full."""
        identity = key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
        if len(self._offsets) >= self._capacity and identity not in self._offsets:
            return False
        self._offsets[identity] = offset
        return True

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Whether a later record has the same key."""
        identity = key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
        return self._offsets.get(identity, -1) > offset

"""Kafka's murmur2 hash: clients choose the partition of a key with it, brokers the slot of a group.

It is in the vocabulary of `log` because the SDK must agree on it, bit for bit, with every other client of Kafka
(`org.apache.kafka.common.utils.Utils.murmur2`). That groups are hashed with it too is our own choice: Kafka takes
`String.hashCode` for them (`kraft.group_state.group_slots.slot_of`).
"""

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SIGN_BIT = 0x80000000


def murmur2(data: bytes) -> int:
    """Return the hash as Java does: a signed 32-bit integer."""
    unsigned = _murmur2_unsigned(data)
    return unsigned - (_MASK + 1) if unsigned & _SIGN_BIT else unsigned


def murmur2_positive(data: bytes) -> int:
    """The hash without its sign bit (Kafka's `toPositive`), ready for a modulo."""
    return _murmur2_unsigned(data) & 0x7FFFFFFF


def _murmur2_unsigned(data: bytes) -> int:
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        word = (int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & _MASK
        hashed = ((hashed * _MULTIPLIER) & _MASK) ^ word
    if whole < length:
        hashed = ((hashed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * _MULTIPLIER) & _MASK
    return hashed ^ (hashed >> 15)

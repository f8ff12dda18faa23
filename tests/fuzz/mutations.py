"""Damage to bytes, from a seed: what a bad disk, a torn write, a bug or a stranger makes of what was valid."""

import struct
from random import Random
from typing import Final

MAX_CHANGES: Final = 6
MAX_GROWTH_BYTES: Final = 64
_EDGES: Final = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
_MSGPACK_MARKS: Final = b"\xc0\xc1\xc4\xc6\xc9\xd9\xdb\xdc\xdd\xde\xdf\xff\x80\x90"


def mutated(rng: Random, data: bytes) -> bytes:
    """Another sequence of bytes (almost always), at most a few changes away from `data`."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, MAX_CHANGES)):
        _change(rng, changed)
    return bytes(changed)


def _change(rng: Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    match rng.randrange(9):
        case 0 if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case 1 if at < len(data):
            data[at] = rng.randrange(256)
        case 2 if at < len(data):
            data[at] = rng.choice(_MSGPACK_MARKS)
        case 3:
            del data[at:]  # torn
        case 4:
            del data[at : at + rng.randint(1, MAX_GROWTH_BYTES)]
        case 5:
            data[at:at] = rng.randbytes(rng.randint(1, MAX_GROWTH_BYTES))
        case 6:
            start = rng.randrange(len(data) + 1)
            data[at:at] = data[start : start + rng.randint(1, MAX_GROWTH_BYTES)]  # duplicated, at another place
        case 7:
            _overwrite(rng, data, at)
        case _:
            end = min(at + rng.randint(1, MAX_GROWTH_BYTES), len(data))
            data[at:end] = bytes(end - at)  # a page that never reached the disk


def _overwrite(rng: Random, data: bytearray, at: int) -> None:
    """A number from the edges of its type, as a length or a count may be."""
    number, order = rng.choice(_EDGES), rng.choice("<>")
    width, kind = rng.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    packed = struct.pack(order + kind, number % 256**width)
    data[at : at + width] = packed[: max(len(data) - at, 0)]

"""The bytes of Kafka's protocol that need more than `struct`: unsigned varints, tagged fields. Pure.

What does not parse raises ValueError, IndexError or struct.error; the codec makes one error of these.
"""

from collections.abc import Callable, Mapping
from typing import Any

Decode = Callable[[memoryview, int], tuple[Any, int]]
MAX_VARINT_BYTES = 5  # of 32 bits
MAX_TAGS = 64  # of one struct; no version has ten


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Return the value and the position behind it."""
    value = shift = 0
    for _ in range(MAX_VARINT_BYTES):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a varint of more than five bytes")


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return ONE_BYTE[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def read_tags(buffer: memoryview, position: int, known: Mapping[int, Decode]) -> tuple[dict[int, Any], int]:
    """Read a struct's tagged fields; those of newer versions are passed over (KIP-482)."""
    count, position = read_uvarint(buffer, position)
    if count > MAX_TAGS:
        raise ValueError(f"{count} tagged fields")
    found: dict[int, Any] = {}
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        end = position + size
        if end > len(buffer):
            raise ValueError("a tagged field reaches behind the message")
        decode = known.get(tag)
        if decode is not None:
            found[tag], _ = decode(buffer[:end], position)
        position = end
    return found, position


def tags(items: list[tuple[int, bytes]]) -> bytes:
    """`items` in the order of their tags."""
    parts = [uvarint(len(items))]
    for tag, body in items:
        parts += (uvarint(tag), uvarint(len(body)), body)
    return b"".join(parts)

"""The wire format of Confluent's serializers: which schema a key or a value was written with. Pure.

One zero byte, the id of the schema (four bytes, big-endian), and the data. Protobuf has the position of its message in the file
between them: the indexes of the nested messages from the outside in, as zigzag varints after their count; 0 stands for [0].
"""

from struct import Struct
from typing import Final

_HEAD: Final = Struct(">bi")
MAGIC: Final = 0
HEAD_SIZE: Final = _HEAD.size
MAX_MESSAGE_DEPTH: Final = 64  # nested messages of a Protobuf file
MAX_VARINT_BYTES: Final = 5
FIRST_MESSAGE: Final = (0,)


def framed(schema_id: int, data: bytes) -> bytes:
    return _HEAD.pack(MAGIC, schema_id) + data


def schema_id_of(data: bytes) -> int:
    """Raises ValueError."""
    if len(data) < HEAD_SIZE:
        raise ValueError(f"{len(data)} bytes are too few for the id of a schema: it was not written with a registry")
    magic, schema_id = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"the first byte is {magic}, not 0: it was not written with a registry")
    return int(schema_id)


def message_path(indexes: tuple[int, ...]) -> bytes:
    """Where a Protobuf message is in its file."""
    if indexes == FIRST_MESSAGE:
        return b"\0"
    return _varint(len(indexes)) + b"".join(map(_varint, indexes))


def read_message_path(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """The indexes, and where the message begins. Raises ValueError."""
    count, at = _read_varint(data, at)
    if count == 0:
        return FIRST_MESSAGE, at
    if not 0 < count <= MAX_MESSAGE_DEPTH:
        raise ValueError(f"the position of the message has {count} steps; {MAX_MESSAGE_DEPTH} are allowed")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _varint(number: int) -> bytes:
    left = number << 1  # zigzag of a number that is not negative
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for step in range(MAX_VARINT_BYTES):
        if at >= len(data):
            raise ValueError("the position of the message is cut")
        found |= (data[at] & 0x7F) << (7 * step)
        at += 1
        if data[at - 1] < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise ValueError(f"a number in the position of the message has more than {MAX_VARINT_BYTES} bytes")

"""Zigzag varints as in records of batch v2, with tables that spare an encoder loops in Python."""

from ..vocabulary.errors import CorruptRecordError

_TABLE_LIMIT = 65_536  # smaller numbers are looked up; a table of all lengths that clients choose would be unlimited
_MAX_VARINT_BITS = 70  # ten bytes of seven bits hold an i64; an eleventh is invalid
_MAX_FIRST_TWO_BYTES = 8192
_MAX_VARINT = 2**64 - 1  # before zigzag


def encode_varint(number: int) -> bytes:
    """The zigzag varint of a signed number of up to 64 bits."""
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(0x80 | (rest & 0x7F))
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def decode_varint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """Return (number, position after it). Raises CorruptRecordError if it is truncated or has more than 64 bits."""
    shift = 0
    rest = 0
    try:
        while True:
            byte = buffer[position]
            position += 1
            rest |= (byte & 0x7F) << shift
            if byte < 0x80:
                if rest > _MAX_VARINT:
                    raise CorruptRecordError("a number in a record has more than 64 bits")
                return (rest >> 1) ^ -(rest & 1), position
            shift += 7
            if shift >= _MAX_VARINT_BITS:
                raise CorruptRecordError("a number in a record has more than ten bytes")
    except IndexError as error:
        raise CorruptRecordError("a record is truncated inside a number") from error


class VarintTable(dict[int, bytes]):
    """number → its varint; filled on demand, up to a limit."""

    def __missing__(self, number: int) -> bytes:
        encoded = encode_varint(number)
        if -_TABLE_LIMIT < number < _TABLE_LIMIT:
            self[number] = encoded
        return encoded

"""Bytes of a snapshot of the state machine. Pure.

magic 4 | version 2 | crc32 4 | frames. A frame is a length (4) and zlib data; the first holds the header (the last entry that the
snapshot covers, the position of the one before, and who voted then), the others one chunk of the state machine each.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgpack

from .journal_format import NO_OP, Entry
from .voters import VoterSet, decode_voters, encode_voters

_MAGIC = b"\xb1QS1"
_FORMAT_VERSION = 1
_HEADER = struct.Struct("<4sHI")
_FRAME = struct.Struct("<I")
_COMPRESSION_LEVEL = 1  # level 9 took 15 s for a state that level 1 packs in 1 s, and the file is half as big again
_MAX_NUMBER = 1 << 63
MAX_UNPACKED_FRAME_BYTES = 16 * 1024 * 1024  # of a chunk (256 KiB), or of the header with the last command


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`last` is the last entry covered. `prev` has its index and term only: its command is never sent again."""

    last: Entry
    prev: Entry
    data: bytes
    voters: VoterSet | None = None  # in force after `last`; None: those of server.properties

    @property
    def last_index(self) -> int:
        return self.last[1]

    def chunks(self) -> Iterator[bytes]:
        frames = _frames(self.data)
        next(frames)
        yield from frames


class DamagedSnapshot(Exception):
    """These bytes are not a whole snapshot."""


def pack_snapshot(last: Entry, prev: Entry, chunks: Iterable[bytes], voters: VoterSet | None = None) -> bytes:
    body = bytearray()
    in_force = [] if voters is None else [voters.index, encode_voters(voters.voters)]
    header: bytes = msgpack.packb([list(last), prev[1], prev[2], *in_force])
    _append_frame(body, header)
    for chunk in chunks:
        _append_frame(body, chunk)
    return _HEADER.pack(_MAGIC, _FORMAT_VERSION, zlib.crc32(body)) + body


def unpack_snapshot(data: bytes) -> Snapshot:
    """Check all of `data`. Raises DamagedSnapshot."""
    if len(data) < _HEADER.size:
        raise DamagedSnapshot("it is truncated")
    magic, version, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DamagedSnapshot("it does not begin with the mark of a snapshot")
    if version != _FORMAT_VERSION:
        raise DamagedSnapshot(f"format version {version} is not supported (supported: {_FORMAT_VERSION})")
    if zlib.crc32(memoryview(data)[_HEADER.size :]) != crc:
        raise DamagedSnapshot("its checksum is wrong")
    frames = _frames(data)
    last, prev, voters = _read_header(next(frames, b""))
    for _ in frames:  # a correct checksum does not guarantee that it can be read
        pass
    return Snapshot(last=last, prev=prev, data=data, voters=voters)


def _read_header(frame: bytes) -> tuple[Entry, Entry, VoterSet | None]:
    try:
        (command, index, term), prev_index, prev_term, *in_force = msgpack.unpackb(frame)
        voters = decode_voters(in_force[1], in_force[0]) if in_force else None
    except (ValueError, TypeError, IndexError) as error:
        raise DamagedSnapshot(f"its header cannot be read: {error}") from error
    numbers = (index, term, prev_index, prev_term)
    if not isinstance(command, bytes) or not all(
        type(number) is int and 0 <= number < _MAX_NUMBER for number in numbers
    ):
        raise DamagedSnapshot("its header has fields of the wrong type")
    return (command, index, term), (NO_OP, prev_index, prev_term), voters


def _append_frame(body: bytearray, chunk: bytes) -> None:
    packed = zlib.compress(chunk, _COMPRESSION_LEVEL)
    body += _FRAME.pack(len(packed))
    body += packed


def _frames(data: bytes) -> Iterator[bytes]:
    """Unpack frame by frame. Raises DamagedSnapshot; a frame that decompresses to more than the limit is refused."""
    position = _HEADER.size
    while position < len(data):
        if position + _FRAME.size > len(data):
            raise DamagedSnapshot("a frame is truncated")
        (length,) = _FRAME.unpack_from(data, position)
        position += _FRAME.size
        unpacker = zlib.decompressobj()
        try:
            frame = unpacker.decompress(memoryview(data)[position : position + length], MAX_UNPACKED_FRAME_BYTES)
        except zlib.error as error:
            raise DamagedSnapshot(f"a frame cannot be decompressed: {error}") from error
        if not unpacker.eof:
            raise DamagedSnapshot(
                f"a frame is truncated, or decompresses to more than {MAX_UNPACKED_FRAME_BYTES} bytes"
            )
        yield frame
        position += length

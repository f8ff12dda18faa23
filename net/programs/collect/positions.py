"""How far each file was collected, as records of a compacted topic. Pure.

A file is known by device and inode, because its name changes when it is rotated; and by its first bytes, because a new file may
get the inode of a removed one. The record of a file is written in the transaction of the lines before its position.
"""

import binascii
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from barnabas.log.vocabulary.errors import BarnabasError

from ..copying.kept_positions import owner_key

POSITIONS_TOPIC: Final = "barnabas-collect-positions"
MAX_HEAD_BYTES: Final = 256


class FileId(NamedTuple):
    device: int
    inode: int


class Head(msgspec.Struct, frozen=True):
    """The first bytes of a file, up to MAX_HEAD_BYTES of them."""

    size_bytes: int
    crc: int

    @classmethod
    def of(cls, data: bytes) -> "Head":
        return cls(len(data[:MAX_HEAD_BYTES]), binascii.crc32(data[:MAX_HEAD_BYTES]))

    def begins(self, data: bytes) -> bool:
        """Whether a file with these first bytes is the same, or has grown since."""
        return len(data) >= self.size_bytes and binascii.crc32(data[: self.size_bytes]) == self.crc


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """`offset`: in bytes; all before it is in the topic. `stream`: the path where the file was found first; the files that follow
    each other there are one stream. `head`, `tail`: the first bytes of the file, and the last before `offset`. Many files begin
    alike, with the names of their columns for example."""

    stream: str
    path: str
    device: int
    inode: int
    offset: int
    head: Head
    tail: Head | None = None

    @property
    def file_id(self) -> FileId:
        return FileId(self.device, self.inode)


class UnreadablePositionError(BarnabasError):
    """A record of the topic of positions is not one of this program."""


_decoder: Final = msgspec.json.Decoder(Position)


def key_of(collector: str, file_id: FileId) -> bytes:
    return f"{collector}/{file_id.device}:{file_id.inode}".encode()


def value_of(position: Position) -> bytes:
    return msgspec.json.encode(position)


def positions_of(collector: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> dict[FileId, Position]:
    """The newest position of each file of this collector; `records` are (key, value) in the order of the log.

    Raises UnreadablePositionError.
    """
    found: dict[FileId, Position] = {}
    for key, value in records:
        if key is None or not key.startswith(f"{collector}/".encode()) or key == owner_key(collector):
            continue
        try:
            device, _, inode = key.decode().rpartition("/")[2].partition(":")
            file_id = FileId(int(device), int(inode))
            if value is None:
                found.pop(file_id, None)
            else:
                found[file_id] = _decoder.decode(value)
        except (ValueError, msgspec.DecodeError) as error:
            raise UnreadablePositionError(
                f"{POSITIONS_TOPIC} has a record with key {key!r} that is no position of a file ({error}): another program has "
                "written it; delete the record's key, or the topic (then all files are collected again)"
            ) from error
    return found

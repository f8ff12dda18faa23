"""Snapshots of the state machine: packed without fork in the executor, and carried to voters that are too far behind.

File: magic 4 | version 2 | crc32 4 | frames. A frame is a length (4) and zlib data; the first holds the header (the
last entry that the snapshot covers, the position of the one before, and who voted then), the others one chunk of the state
machine each. The file replaces its predecessor in one durable rename, and only then the journal is trimmed. A damaged
snapshot is never skipped: going on with an empty state machine (as stock pysyncobj does) would look like a healthy
node that has forgotten everything.
"""

import asyncio
import logging
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

import msgpack

from ...quorum.journal_format import Entry
from ...quorum.voters import VoterSet, decode_voters, encode_voters
from .storage import DamagedQuorumError, JournalStorage

_log = logging.getLogger("barnabas.quorum")

_MAGIC = b"\xb1QS1"
_FORMAT_VERSION = 1
_HEADER = struct.Struct("<4sHI")
_FRAME = struct.Struct("<I")
_COMPRESSION_LEVEL = 1  # level 9 took 15 s for a state that level 1 packs in 1 s, and the file is half as big again
_NO_OP = b"\x01"
_MAX_NUMBER = 1 << 63

TRANSFER_CHUNK_BYTES = 256 * 1024  # well below a frame, so that heartbeats get between two chunks
TRANSFER_WINDOW_BYTES = 4 * 1024 * 1024  # unsent bytes to one peer before we wait: bounds memory, not throughput
MAX_SNAPSHOT_BYTES = 1 << 30  # a transfer is assembled in memory; a million offsets are 8 MB
MAX_UNPACKED_FRAME_BYTES = 16 * 1024 * 1024  # of a chunk (256 KiB), or of the header with the last command
RETRY_AFTER_FAILURE_S = 30.0  # a full disk is not helped by packing the state again on every tick


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
        raise DamagedSnapshot("it is cut short")
    magic, version, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DamagedSnapshot("it does not begin like a snapshot")
    if version != _FORMAT_VERSION:
        raise DamagedSnapshot(f"format version {version} is not known here (known: {_FORMAT_VERSION})")
    if zlib.crc32(memoryview(data)[_HEADER.size :]) != crc:
        raise DamagedSnapshot("its checksum is wrong")
    frames = _frames(data)
    last, prev, voters = _read_header(next(frames, b""))
    for _ in frames:  # a checksum says who wrote it, not that it can be read
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
    return (command, index, term), (_NO_OP, prev_index, prev_term), voters


def _append_frame(body: bytearray, chunk: bytes) -> None:
    packed = zlib.compress(chunk, _COMPRESSION_LEVEL)
    body += _FRAME.pack(len(packed))
    body += packed


def _frames(data: bytes) -> Iterator[bytes]:
    """Unpack frame by frame. Raises DamagedSnapshot; a frame that unpacks to more than any of ours has is refused."""
    position = _HEADER.size
    while position < len(data):
        if position + _FRAME.size > len(data):
            raise DamagedSnapshot("a frame is cut")
        (length,) = _FRAME.unpack_from(data, position)
        position += _FRAME.size
        unpacker = zlib.decompressobj()
        try:
            frame = unpacker.decompress(memoryview(data)[position : position + length], MAX_UNPACKED_FRAME_BYTES)
        except zlib.error as error:
            raise DamagedSnapshot(f"a frame cannot be unpacked: {error}") from error
        if not unpacker.eof:
            raise DamagedSnapshot(f"a frame is cut, or unpacks to more than {MAX_UNPACKED_FRAME_BYTES} bytes")
        yield frame
        position += length


class SnapshotStore:
    """The newest snapshot on disk, and at most one that is being packed."""

    def __init__(
        self,
        *,
        storage: JournalStorage,
        path: str,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._path = path
        self._loop = loop
        self._executor = executor
        self._clock = clock
        self._wake = wake
        self._packing = False
        self._finished_prev_index: int | None = None
        self._not_before = 0.0
        self._writing = threading.Lock()
        self._installed_index = 0  # a pack that is behind this must not replace what came from the leader

    def load(self) -> Snapshot | None:
        """Return the newest snapshot, checked. Raises DamagedQuorumError."""
        if not self._storage.exists(self._path):
            return None
        try:
            return unpack_snapshot(self._storage.read_bytes(self._path))
        except DamagedSnapshot as damage:
            raise DamagedQuorumError(self._path, f"the snapshot is damaged: {damage}") from damage

    def read(self) -> bytes | None:
        return self._storage.read_bytes(self._path) if self._storage.exists(self._path) else None

    def install(self, snapshot: Snapshot) -> None:
        """Keep a snapshot that came from the leader; durable on return."""
        with self._writing:
            self._installed_index = snapshot.last_index
            self._storage.write_atomically(self._path, snapshot.data)

    @property
    def may_begin(self) -> bool:
        return not self._packing and self._finished_prev_index is None and self._clock() >= self._not_before

    def begin(
        self, last: Entry, prev: Entry, pack: Callable[[], Iterable[bytes]], voters: VoterSet | None = None
    ) -> None:
        """Pack and store in the executor what `pack` yields: a view of the state after `last`."""
        self._packing = True
        work = self._loop.run_in_executor(self._executor, self._write, last, prev, pack, voters)
        work.add_done_callback(lambda done: self._written(done, prev[1]))

    def take_finished(self) -> int | None:
        """Once after each success: the index up to which (exclusive) the journal is no longer needed."""
        finished, self._finished_prev_index = self._finished_prev_index, None
        return finished

    def _write(self, last: Entry, prev: Entry, pack: Callable[[], Iterable[bytes]], voters: VoterSet | None) -> None:
        data = pack_snapshot(last, prev, pack(), voters)
        with self._writing:
            if last[1] > self._installed_index:
                self._storage.write_atomically(self._path, data)

    def _written(self, done: "asyncio.Future[None]", prev_index: int) -> None:
        self._packing = False
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._finished_prev_index = prev_index
        else:
            # The old snapshot and the whole journal are still there, so nothing is lost: try again later.
            self._not_before = self._clock() + RETRY_AFTER_FAILURE_S
            _log.error("snapshot failed path=%s retry_s=%d", self._path, RETRY_AFTER_FAILURE_S, exc_info=error)
        self._wake()


Chunk = tuple[tuple[int, int, bytes], bool, bool]  # (snapshot size, position, bytes), first, last: pysyncobj's triple


class Peer(Protocol):
    """pysyncobj's Node."""

    @property
    def id(self) -> int: ...


class SnapshotSender:
    """Takes the place of pysyncobj's serializer in its sending loop (hence the names), paced by what the peer takes."""

    def __init__(self, read: Callable[[], bytes | None], backlog_bytes: Callable[[int], int]) -> None:
        self._read = read
        self._backlog_bytes = backlog_bytes
        self._transfers: dict[int, tuple[bytes, int]] = {}

    def getTransmissionData(self, node: Peer) -> Chunk | None:
        """Return the next chunk for this peer, or None when it must first take what it was sent."""
        node_id = node.id
        if self._backlog_bytes(node_id) > TRANSFER_WINDOW_BYTES:
            return None
        if node_id not in self._transfers:
            data = self._read()
            if data is None:
                return None
            self._transfers[node_id] = (data, 0)
        data, position = self._transfers[node_id]
        end = min(position + TRANSFER_CHUNK_BYTES, len(data))
        is_last = end == len(data)
        if is_last:
            del self._transfers[node_id]
        else:
            self._transfers[node_id] = (data, end)
        return (len(data), position, data[position:end]), position == 0, is_last

    def cancelTransmisstion(self, node: Peer) -> None:
        self.cancel(node.id)

    def cancel(self, node_id: int) -> None:
        self._transfers.pop(node_id, None)

    def is_sending_to(self, node_id: int) -> bool:
        return node_id in self._transfers


class SnapshotReceiver:
    """Assembles a transfer. Chunks that do not continue it are dropped: the leader will begin again."""

    def __init__(self) -> None:
        self._data = bytearray()

    def receive(self, chunk: Chunk) -> Snapshot | None:
        """Return the snapshot when `chunk` completes it."""
        (size_bytes, position, data), is_first, is_last = chunk
        if is_first:
            self._data = bytearray()
        if position != len(self._data) or size_bytes > MAX_SNAPSHOT_BYTES:
            self._data = bytearray()
            return None
        self._data += data
        if not is_last:
            return None
        whole, self._data = bytes(self._data), bytearray()
        try:
            return unpack_snapshot(whole) if len(whole) == size_bytes else None
        except DamagedSnapshot as damage:
            _log.error("snapshot from the leader refused: %s", damage)
            return None

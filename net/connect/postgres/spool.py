"""`Spool`: a folder in which changes wait for a program that reads them in numbered batches, such as a stream of Spark.

    lock                   held by the process that captures
    state.json             the number of the last segment that was released, and a position behind it (`SpoolState`)
    00000000000000000017   a segment: a header with its position (`SegmentHeader`), then its records

A segment is written as a whole, is on the disk before it is announced, and never changes: whoever reads numbers 12 to 17 again
after a crash gets the same records. A segment is removed when the reader has released it, which it does when its own work with it
is committed. Only then may the server discard its log. So a folder that is lost loses changes that were not released; the server
still has them, but the reader's numbers mean nothing any more.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgpack
import msgspec

from barnabas.log.disk.files import FileLock, RealFiles
from barnabas.log.vocabulary.errors import StorageError

from .changes.envelope import Outgoing
from .changes.faults import ConnectorError
from .changes.lsn import NO_LSN
from .changes.position import Position, decode, encode

FORMAT_VERSION: Final = 1
LOCK_WAIT_S: Final = 60.0  # a predecessor that was killed with its driver sees that within seconds
LOCK_PAUSE_S: Final = 0.1
ROOM_WAIT_S: Final = 60.0  # between two looks, if nothing is released
IDLE_COMMIT_S: Final = 1.0  # a position alone is a small file
MAX_HEADER_BYTES: Final = 1 << 28  # a position has the ranges of every table
_STATE: Final = "state.json"
_DIGITS: Final = 20


class SpoolError(ConnectorError):
    """The folder is not what it must be."""


class SpoolState(msgspec.Struct, frozen=True, kw_only=True):
    version: int = FORMAT_VERSION
    id: str  # of the folder, random: a checkpoint of another folder is recognized
    released: int = 0  # segments up to this number were read for good, and are gone
    position: str = ""  # of `changes/position.py`; "": there was none yet


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    records: int
    position: str  # behind the last record
    version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What is waiting. `lsn`: of its position."""

    number: int
    records: int
    size_bytes: int
    lsn: int


class Spool:
    """A `ChangeWriter`. Everything is called on one event loop; files are written by threads."""

    idle_commit_s = IDLE_COMMIT_S

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        """`max_bytes` of segments that wait; `commit` waits for room, so a little more than that may be on the disk."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._files = RealFiles()
        self._lock: FileLock | None = None
        self._state = SpoolState(id="")
        self._waiting: deque[Segment] = deque()  # ascending, without gaps, the first one is behind state.released
        self._open: list[Outgoing] = []
        self._position: Position | None = None  # behind the last segment, or later if nothing waits
        self._writing: asyncio.Future[None] | None = None  # the last file
        self._changed = asyncio.Event()  # a segment came or left, or the position moved
        self.confirmable_lsn = NO_LSN
        self.reached_lsn = NO_LSN  # all before it was captured, and every table was read

    # --- the folder ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises SpoolError, StorageError."""
        await asyncio.to_thread(self._open_folder)

    def _open_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._locked()
        try:
            self._state = self._read_state()
            self._position = decode(self._state.position.encode()) if self._state.position else None
            self.confirmable_lsn = self._position.lsn if self._position is not None else NO_LSN
            for item in sorted(self._folder.iterdir()):
                if item.name.isdigit() and len(item.name) == _DIGITS:
                    self._take(item)
                elif item.suffix == ".tmp":
                    item.unlink()
        except BaseException:
            self._release_lock()
            raise

    def _take(self, file: Path) -> None:
        number = int(file.name)
        if number <= self._state.released:  # its removal was interrupted
            file.unlink()
            return
        expected = self._waiting[-1].number + 1 if self._waiting else self._state.released + 1
        if number != expected:
            raise lost(self._folder, expected)
        header = header_of(self._folder, number)
        self._position = decode(header.position.encode())
        size_bytes, lsn = file.stat().st_size, self._position.lsn
        self._waiting.append(Segment(number=number, records=header.records, size_bytes=size_bytes, lsn=lsn))

    def _locked(self) -> FileLock:
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                return self._files.lock(str(self._folder / "lock"))
            except StorageError as error:
                if not isinstance(error.__cause__, BlockingIOError):
                    raise
                if time.monotonic() > deadline_s:
                    raise SpoolError(
                        f"another query reads {self._folder}: stop it, or give each query a folder and a slot of its own"
                    ) from None
            time.sleep(LOCK_PAUSE_S)

    def _read_state(self) -> SpoolState:
        try:
            state = msgspec.json.decode((self._folder / _STATE).read_bytes(), type=SpoolState)
        except FileNotFoundError:
            state = SpoolState(id=uuid.uuid4().hex[:12])
            self._files.write_atomically(str(self._folder / _STATE), msgspec.json.encode(state))
            return state
        except msgspec.DecodeError as error:
            raise SpoolError(f"{self._folder / _STATE} cannot be read ({error}): {_BEGIN_AGAIN}") from error
        if state.version != FORMAT_VERSION:
            raise SpoolError(
                f"{self._folder} has version {state.version} of its format, and this version of Barnabas reads"
                f" {FORMAT_VERSION}: run the version that wrote it"
            )
        return state

    async def shut(self) -> None:
        """Nothing is written any more, and another process may open the folder. The connector has been cancelled before."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._release_lock()

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # --- the reader's side --------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._state.id

    @property
    def released(self) -> int:
        return self._state.released

    @property
    def newest(self) -> int:
        """The number of the last segment that is there."""
        return self._waiting[-1].number if self._waiting else self._state.released

    def check(self, spool_id: str, number: int) -> None:
        """Whether a reader that has read up to this segment can go on here. Raises SpoolError."""
        if spool_id != self.id:
            raise SpoolError(
                f"{self._folder} is not the folder that the checkpoint was written with: give spoolLocation that folder, or"
                f" {_BEGIN_AGAIN}"
            )
        if not self.released <= number <= self.newest:
            raise SpoolError(
                f"the checkpoint is at segment {number}, and {self._folder} has the segments from {self.released + 1} to"
                f" {self.newest}: was one of the two restored from a backup? {_BEGIN_AGAIN}"
            )

    def newest_within(self, start: int, max_records: int) -> int:
        """The last segment after `start` up to which there are at most so many records; at least one segment, if there is one."""
        last, records = start, 0
        for segment in self._waiting:
            if segment.number <= start:
                continue
            records += segment.records
            if last > start and records > max_records:
                break
            last = segment.number
        return last

    def segments(self, begin: int, end: int) -> list[Segment]:
        """Those after `begin` up to `end`. Raises SpoolError if one of them is not there."""
        known = {segment.number: segment for segment in self._waiting}
        for number in range(begin + 1, end + 1):
            if number not in known:
                raise lost(self._folder, number)
        return [known[number] for number in range(begin + 1, end + 1)]

    async def wait(self, timeout_s: float) -> None:
        """Until something has changed, or the time is over."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):  # wait_for begins later: another waiter may clear the event first
                await self._changed.wait()
        except TimeoutError:
            pass

    async def release(self, number: int) -> None:
        """The reader will never ask again for segments up to this one."""
        done = [segment for segment in self._waiting if segment.number <= number]
        if not done:
            return
        position = await asyncio.to_thread(lambda: header_of(self._folder, done[-1].number).position)
        await self._write_state(msgspec.structs.replace(self._state, released=done[-1].number, position=position))
        self.confirmable_lsn = done[-1].lsn
        for segment in done:
            assert self._waiting.popleft() is segment
            await asyncio.to_thread(segment_file(self._folder, segment.number).unlink, missing_ok=True)
        self._changed.set()

    # --- the writer's side --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def count(self) -> int:
        return len(self._open)

    async def start(self) -> None:
        self._open = []

    async def close(self) -> None:
        self._open = []

    async def create_topics(self, names: Iterable[str]) -> None:
        """A segment has records of all tables."""

    async def send(self, records: Iterable[Outgoing]) -> None:
        self._open.extend(records)

    async def committed_position(self) -> Position | None:
        return self._position

    async def commit(self, position: Position) -> None:
        """Waits while the reader is behind by `max_bytes`."""
        records, self._open = self._open, []
        if records:
            await self._write_segment(records, position)
        elif not self._waiting:
            await self._write_state(msgspec.structs.replace(self._state, position=encode(position).decode()))
            self._position, self.confirmable_lsn = position, position.lsn
        if all(table.is_again or table.coverage.is_complete for table in position.tables.values()):
            self.reached_lsn = position.lsn
        self._changed.set()

    async def _write_segment(self, records: list[Outgoing], position: Position) -> None:
        while sum(segment.size_bytes for segment in self._waiting) >= self._max_bytes:
            await self.wait(ROOM_WAIT_S)
        number = self.newest + 1
        header = SegmentHeader(records=len(records), position=encode(position).decode())
        data = await asyncio.to_thread(_encoded, header, records)
        await self._write(segment_file(self._folder, number), data)
        found = Segment(number=number, records=len(records), size_bytes=len(data), lsn=position.lsn)
        self._waiting.append(found)
        self._position = position

    async def _write_state(self, state: SpoolState) -> None:
        await self._write(self._folder / _STATE, msgspec.json.encode(state))
        self._state = state

    async def _write(self, file: Path, data: bytes) -> None:
        """A thread that writes cannot be cancelled: `shut` waits for it."""
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._files.write_atomically, str(file), data))
        await asyncio.shield(self._writing)


_BEGIN_AGAIN: Final = (
    "begin again with a new folder (spoolLocation) and a new checkpoint, and drop the slot (SELECT pg_drop_replication_slot);"
    " all tables are then read again"
)


def segment_file(folder: Path, number: int) -> Path:
    return folder / f"{number:0{_DIGITS}d}"


def header_of(folder: Path, number: int) -> SegmentHeader:
    """Raises SpoolError."""
    with _opened(folder, number) as unpacker:
        return _header(folder, number, unpacker)


def read_segment(folder: Path, number: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, in the order of the changes. Raises SpoolError."""
    with _opened(folder, number) as unpacker:
        header, count = _header(folder, number, unpacker), 0
        for key, value in unpacker:
            count += 1
            yield key, value
        if count != header.records:
            raise SpoolError(
                f"{segment_file(folder, number)} has {count} of its {header.records} records: {_BEGIN_AGAIN}"
            )


@contextmanager
def _opened(folder: Path, number: int) -> Iterator["msgpack.Unpacker"]:
    """The objects of a segment's file, one after the other."""
    try:
        file = segment_file(folder, number).open("rb")
    except FileNotFoundError:
        raise lost(folder, number) from None
    with file:
        yield msgpack.Unpacker(file, max_buffer_size=MAX_HEADER_BYTES)


def _header(folder: Path, number: int, unpacker: "msgpack.Unpacker") -> SegmentHeader:
    try:
        return msgspec.convert(unpacker.unpack(), SegmentHeader)
    except (msgpack.exceptions.UnpackException, msgspec.ValidationError, ValueError) as error:
        raise SpoolError(f"{segment_file(folder, number)} cannot be read ({error!r}): {_BEGIN_AGAIN}") from error


def _encoded(header: SegmentHeader, records: list[Outgoing]) -> bytes:
    packer = msgpack.Packer()
    parts = [packer.pack(msgspec.to_builtins(header))]
    parts += [packer.pack((record.key, record.value)) for record in records]
    return b"".join(parts)


def lost(folder: Path, number: int) -> SpoolError:
    return SpoolError(
        f"{folder} has no segment {number}, which the checkpoint needs: was the folder emptied, or is it of another query?"
        f" Restore it, or {_BEGIN_AGAIN}"
    )

"""`Spool`: a folder in which changes wait for a program that reads them in numbered batches, such as a stream of Spark.

    lock                   held by the process that captures
    state.json             the number of the last segment that was released, and a position behind it (`SpoolState`)
    00000000000000000017   a segment of changes, see `segment`

A segment is written as a whole, is on the disk before it is announced, and never changes: whoever reads numbers 12 to 17 again
after a crash gets the same records. A segment is removed when the reader has released it, which it does when its own work with it
is committed. Only then may the server discard its log. So a folder that is lost loses changes that were not released; the server
still has them, but the reader's numbers mean nothing any more.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from barnabas.log.disk.files import FileLock, RealFiles
from barnabas.log.vocabulary.errors import StorageError

from .changes.envelope import Outgoing
from .changes.lsn import NO_LSN
from .changes.position import Position, decode, encode
from .segment import BEGIN_AGAIN, SegmentHeader, SpoolError, encoded, header_of, is_segment, lost, segment_file

FORMAT_VERSION: Final = 2  # 1 had no checksums
LOCK_WAIT_S: Final = 60.0  # a predecessor that was killed with its driver sees that within seconds
LOCK_PAUSE_S: Final = 0.1
ROOM_WAIT_S: Final = 60.0  # between two looks, if nothing is released
IDLE_COMMIT_S: Final = 1.0  # a position alone is a small file
MAX_OPEN_BYTES: Final = (
    1 << 27
)  # of records that wait in memory for a commit; writing them needs about twice as much again
MAX_RECORD_BYTES: Final = 1 << 30  # half of what a column of Arrow can have in a batch: a change may have its row twice
_STATE: Final = "state.json"
_TEMPORARY: Final = ".tmp"  # of `write_atomically`


class SpoolState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = FORMAT_VERSION
    id: str  # of the folder, random: a checkpoint of another folder is recognized
    released: int = 0  # segments up to this number were read for good, and are gone
    position: str = ""  # of `changes/position.py`; "": there was none yet
    checksum: int = 0  # CRC32C of the other fields: a wrong number would remove segments, a wrong position skip changes

    def checked(self) -> "SpoolState":
        """With its checksum."""
        text = f"{self.version} {self.id} {self.released} {self.position}"
        return msgspec.structs.replace(self, checksum=crc32c(text.encode()))


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

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        max_open_bytes: int = MAX_OPEN_BYTES,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        """`max_bytes` of segments that wait; `commit` waits for room, so a little more than that may be on the disk.

        `max_open_bytes` of records in memory make the spool full, `max_record_bytes` is the limit of a single one.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_open_bytes = max_open_bytes
        self._max_record_bytes = max_record_bytes
        self._files = RealFiles()
        self._lock: FileLock | None = None
        self._state = SpoolState(id="")
        self._waiting: deque[Segment] = deque()  # ascending, without gaps, the first one is behind state.released
        self._open: list[Outgoing] = []
        self._open_bytes = 0  # of keys and values in _open
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
                if is_segment(item):
                    self._found(item)
                elif item.suffix == _TEMPORARY:
                    item.unlink()
        except BaseException:
            self._release_lock()
            raise

    def _found(self, file: Path) -> None:
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
            if segments := [item for item in self._folder.iterdir() if is_segment(item)]:
                raise SpoolError(
                    f"{self._folder} has {len(segments)} segments and no {_STATE}: restore that file, or {BEGIN_AGAIN}"
                ) from None
            state = SpoolState(id=uuid.uuid4().hex[:12])
            _written(self._files, self._folder / _STATE, msgspec.json.encode(state.checked()))
            return state
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SpoolError(f"{self._folder / _STATE} cannot be read ({error}): {BEGIN_AGAIN}") from error
        if state.version != FORMAT_VERSION:
            raise SpoolError(
                f"{self._folder} has version {state.version} of its format, and this version of Barnabas reads"
                f" {FORMAT_VERSION}: run the version that wrote it, or {BEGIN_AGAIN}"
            )
        if state != state.checked():
            raise SpoolError(f"{self._folder / _STATE} is damaged (its checksum is wrong): {BEGIN_AGAIN}")
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
                f" {BEGIN_AGAIN}"
            )
        if not self.released <= number <= self.newest:
            raise SpoolError(
                f"the checkpoint is at segment {number}, and {self._folder} has the segments from {self.released + 1} to"
                f" {self.newest}: was one of the two restored from a backup? {BEGIN_AGAIN}"
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

    @property
    def is_full(self) -> bool:
        return self._open_bytes >= self._max_open_bytes

    async def start(self) -> None:
        self._taken()

    async def close(self) -> None:
        self._taken()

    def _taken(self) -> list[Outgoing]:
        """The open records, which are not open any more."""
        records, self._open, self._open_bytes = self._open, [], 0
        return records

    async def create_topics(self, names: Iterable[str]) -> None:
        """A segment has records of all tables."""

    async def send(self, records: Iterable[Outgoing]) -> None:
        """Raises SpoolError for a record that is too large."""
        for record in records:
            size_bytes = len(record.key) + len(record.value or b"")
            if size_bytes > self._max_record_bytes:
                raise SpoolError(
                    f"a change of {record.topic} has {size_bytes:,} bytes, and a change in Spark may have"
                    f" {self._max_record_bytes:,}: leave its table out (option tables), or the column out of the publication"
                    " (ALTER PUBLICATION ... SET TABLE name (columns))"
                )
            self._open.append(record)
            self._open_bytes += size_bytes

    async def committed_position(self) -> Position | None:
        return self._position

    async def commit(self, position: Position) -> None:
        """Waits while the reader is behind by `max_bytes`."""
        if records := self._taken():
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
        data = await asyncio.to_thread(encoded, header, records)
        await self._write(segment_file(self._folder, number), data)
        found = Segment(number=number, records=len(records), size_bytes=len(data), lsn=position.lsn)
        self._waiting.append(found)
        self._position = position

    async def _write_state(self, state: SpoolState) -> None:
        state = state.checked()
        await self._write(self._folder / _STATE, msgspec.json.encode(state))
        self._state = state

    async def _write(self, file: Path, data: bytes) -> None:
        """A thread that writes cannot be cancelled: `shut` waits for it."""
        self._writing = asyncio.ensure_future(asyncio.to_thread(_written, self._files, file, data))
        await asyncio.shield(self._writing)


def _written(files: RealFiles, file: Path, data: bytes) -> None:
    """Raises StorageError. What a full disk took of the data is removed: a smaller file may still have room, and has to, since
    the state must be written before segments can be removed."""
    try:
        files.write_atomically(str(file), data)
    except StorageError:
        file.with_name(file.name + _TEMPORARY).unlink(missing_ok=True)
        raise

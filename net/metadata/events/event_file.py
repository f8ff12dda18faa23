"""The events of a broker in a file of its first data folder, so that they outlive a restart: one JSON array for each event.

Writing happens in a thread (`FolderWriters`): the loop never waits for the disk. Nothing is flushed: an event is not worth an
fsync. A killed process loses no event that it had handed to the operating system; a power loss may lose some seconds. If the
disk refuses, or is too slow, events stay in memory, and the next rewrite of the file has them.

The file is bounded: at MAX_FILE_BYTES it is replaced by what the rings hold, so the rings decide what is forgotten.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import DecodeError
from msgspec.json import Decoder, Encoder

from barnabas.log.disk.files import AppendFile, Files
from barnabas.log.vocabulary.errors import StorageError
from barnabas.net.base.folder_writers import FolderWriters
from barnabas.net.wire.protocol.event_messages import NOT_COMMITTED, ClusterEvent

logger = logging.getLogger("barnabas.events")

FILE_NAME: Final = "events.jsonl"
# All rings together have 8 MB of texts at most, and usually much less: a rewrite is rare, and the file loads in less than 1 s.
MAX_FILE_BYTES: Final = 16 << 20
MAX_NUMBER: Final = 1 << 53  # numbers of events are microseconds since 1970: the year 2255
MAX_AT_MS: Final = MAX_NUMBER // 1000  # the same time; a client can show it
MAX_UNWRITTEN: Final = (
    10_000  # events that wait for the thread; beyond, the file is rewritten as soon as the disk answers
)
REWRITE_AGAIN_S: Final = 10.0  # after the disk has refused: to look at all events costs the loop some milliseconds
CLOSE_TIMEOUT_S: Final = 2.0  # for the last events; a disk that hangs must not delay the end
_WORK: Final = "events"

_encode = Encoder().encode
_decode = Decoder(ClusterEvent).decode


class EventFile:
    """Belongs to the broker's loop; `_write` runs in the thread, in which nothing else of it runs at the same time."""

    def __init__(
        self,
        folder: str,
        files: Files,
        *,
        everything: Callable[[], list[ClusterEvent]],
        fatal: Callable[[str], None],
        max_bytes: int = MAX_FILE_BYTES,
        max_unwritten: int = MAX_UNWRITTEN,
    ) -> None:
        """`everything`: what the rings hold, on the loop."""
        self.path = f"{folder}/{FILE_NAME}"
        self._folder = folder
        self._files = files
        self._everything = everything
        self._max_bytes = max_bytes
        self._max_unwritten = max_unwritten
        self._writers = FolderWriters(refused=self._refused, fatal=fatal)
        self._unwritten: deque[ClusterEvent] = deque()  # at most `max_unwritten`
        self._must_rewrite = False  # the file is too large, or has not all events
        self._refused_until_s = 0.0  # loop time; until then it is not rewritten
        self._to_rewrite: list[ClusterEvent] | None = None  # for the thread: the new contents
        self._open: AppendFile | None = None  # of the thread
        self._is_refused = False  # the last attempt has failed, and was logged

    # --- on the loop --------------------------------------------------------------------------------------------------

    async def load(self) -> list[ClusterEvent]:
        """The events of earlier processes, the oldest first. A damaged file costs the damaged lines only."""
        found: list[ClusterEvent] = []
        damaged: list[int] = []

        def read() -> None:
            if not self._files.exists(self.path):
                return
            for number, line in enumerate(self._files.read_bytes(self.path).split(b"\n"), 1):
                try:
                    event = _decode(line) if line else None
                except (DecodeError, UnicodeDecodeError):
                    damaged.append(number)
                    continue
                if event is not None and not _is_possible(event):
                    damaged.append(number)
                elif event is not None:
                    found.append(event)

        await self._writers.ask(self._folder, _WORK, read, refused=self._not_read)
        if damaged:
            logger.warning(
                "event=damaged_lines file=%s count=%d first=%d: skipped", self.path, len(damaged), damaged[0]
            )
            self._must_rewrite = True
        return found

    def written(self, event: ClusterEvent) -> None:
        """It is on its way to the file."""
        if len(self._unwritten) >= self._max_unwritten:
            self._unwritten.clear()
            self._must_rewrite = True
        self._unwritten.append(event)
        if not self._writers.is_waiting(self._folder, _WORK):
            self._ask()

    def _ask(self) -> "asyncio.Future[None]":
        now_s = asyncio.get_running_loop().time()
        if self._must_rewrite and now_s >= self._refused_until_s:
            self._must_rewrite = False
            self._unwritten.clear()  # the rings hold them, too
            self._to_rewrite = self._everything()
        return self._writers.ask(self._folder, _WORK, self._write)

    def _refused(self, path: str, error: StorageError) -> None:
        self._must_rewrite = True
        self._refused_until_s = asyncio.get_running_loop().time() + REWRITE_AGAIN_S
        if not self._is_refused:
            self._is_refused = True
            logger.warning("event=not_written file=%s; events stay in memory: %s", self.path, error.message)

    def _not_read(self, path: str, error: StorageError) -> None:
        logger.warning(
            "event=not_read file=%s; events of earlier processes are not shown: %s", self.path, error.message
        )

    async def settled(self, timeout_s: float) -> None:
        """Return when all events are with the operating system, or the disk has refused them, or the time is over."""
        await asyncio.wait([self._ask()], timeout=timeout_s)

    async def close(self) -> None:
        """Write what is left, if the disk answers."""
        self._refused_until_s = 0.0
        await self.settled(CLOSE_TIMEOUT_S)
        await self._writers.close()
        self._open = None

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Raises StorageError."""
        everything, self._to_rewrite = self._to_rewrite, None
        if everything is not None:
            self._open = None
            self._files.write_atomically(self.path, b"".join(map(_line, everything)))
        lines = b"".join(self._taken())
        if lines:
            self._append(lines)
        self._is_refused = False

    def _append(self, lines: bytes) -> None:
        if self._open is None or self._open.failed:
            self._open = self._files.open_append(self.path)
            if self._open.size_bytes and self._open.read_at(self._open.size_bytes - 1, 1) != b"\n":
                self._open.append(b"\n")  # a power loss has torn the last line: the next event must not be lost with it
        self._open.append(lines)
        if self._open.size_bytes > self._max_bytes:
            self._must_rewrite = True

    def _taken(self) -> Iterator[bytes]:
        while True:
            try:
                yield _line(self._unwritten.popleft())
            except IndexError:  # the loop may clear it meanwhile
                return


def _is_possible(event: ClusterEvent) -> bool:
    """A damaged number could be too large for answers, and all events that follow would be numbered behind it."""
    numbers = (
        event.number,
        event.at_ms,
        event.index,
        event.recovery_epoch,
        *event.brokers,
        event.offset - NOT_COMMITTED,
    )
    return all(0 <= number < MAX_NUMBER for number in numbers) and event.at_ms < MAX_AT_MS


def _line(event: ClusterEvent) -> bytes:
    return _encode(event) + b"\n"

"""Flushes logs outside the loop and reports when a flush has ended: group commit.

Each data folder has at most one group in progress; all requests that arrive meanwhile, from any number of producers and
partitions, go into the next group. Therefore, the cost of a flush is shared, and groups grow with the load. A few threads flush
the files of a group in parallel, because the file system commits its journal for several files at once (8 files of an ext4: 1.3
ms sequentially, 0.9 ms with four threads; an `fdatasync` on a dedicated disk takes longer).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from barnabas.log.partition.pending_flush import PendingFlush
from barnabas.log.vocabulary.errors import StorageError, TooManyFilesError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..base.folder_writers import HANGS_AFTER_MS

logger = logging.getLogger("barnabas.log")

THREADS_PER_FOLDER: Final = 4  # more threads were not faster
MAX_THREADS: Final = 16  # of a broker with many folders
# Segments of a group that grow no more. Each opens up to four files, while an active one is open anyway; a topic with small
# segments rolls hundreds of them a second.
MAX_SEALED: Final = 16
RETRY_AFTER_S: Final = 0.2  # if no descriptor is left; clients that disconnect release some


class Flushes(Protocol):
    """Of one log: log.partition.log_flushes.LogFlushes."""

    def sealed(self) -> int: ...
    def begin(self, now_ms: int | None = None, *, max_sealed: int | None = None) -> PendingFlush | None: ...
    def finish(self, pending: PendingFlush) -> None: ...


class FlushableLog(Protocol):
    """The part of `log.partition.partition_log.PartitionLog` that the flusher uses."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def failed(self) -> bool: ...
    @property
    def flushes(self) -> Flushes: ...


FlushEnded = Callable[[FlushableLog, StorageError | None], None]


class Flusher:
    """`ended` is called in the loop when a flush of a log has ended, also if it was one of a part, or if there was nothing to
    flush: what counts is up to the log's recovery point."""

    def __init__(
        self,
        *,
        folder_of: Callable[[TopicPartition], str],
        ended: FlushEnded,
        wall_ms: Callable[[], int],
        fatal: Callable[[str], None],
        folders: int = 1,
    ) -> None:
        self._folder_of = folder_of
        self._ended = ended
        self._wall_ms = wall_ms
        self._fatal = fatal
        self._waiting: dict[str, dict[FlushableLog, None]] = {}  # by folder; at most all logs of the broker
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._since_s: dict[str, float] = {}  # when the group of a folder was begun
        self._threads = ThreadPoolExecutor(
            max_workers=min(THREADS_PER_FOLDER * max(folders, 1), MAX_THREADS), thread_name_prefix="flusher"
        )
        self.groups = 0  # flushed so far
        self.logs = 0  # flushed so far, over all groups

    def ask(self, log: FlushableLog) -> None:
        """Flush everything that is in the log at the end of this pass of the loop."""
        folder = self._folder_of(log.topic_partition)
        self._waiting.setdefault(folder, {})[log] = None
        if folder not in self._busy:
            task = asyncio.get_running_loop().create_task(self._work(folder), name=f"flusher-{folder}")
            self._busy[folder] = task
            task.add_done_callback(self._report)

    async def _work(self, folder: str) -> None:
        try:
            while logs := self._waiting.pop(folder, None):
                self._since_s[folder] = asyncio.get_running_loop().time()
                next_group: list[FlushableLog] = []
                again = await self._flush_group(list(logs), next_group)
                if again:
                    await asyncio.sleep(RETRY_AFTER_S)
                if next_group or again:
                    # Before those that have asked meanwhile: a log that rolls all the time asks always.
                    self._waiting[folder] = dict.fromkeys(next_group + again) | self._waiting.get(folder, {})
        finally:
            del self._busy[folder]
            self._since_s.pop(folder, None)

    def hanging(self) -> Iterator[str]:
        """The folders with a group of flushes that has taken longer than the limit."""
        oldest_s = asyncio.get_running_loop().time() - HANGS_AFTER_MS / 1000
        return (folder for folder, since_s in self._since_s.items() if since_s <= oldest_s)

    async def _flush_group(self, logs: list[FlushableLog], next_group: list[FlushableLog]) -> list[FlushableLog]:
        """Flush the logs, and return those that must be retried because there was no descriptor to open their files.
        Logs of which too many segments are to be flushed go on in the next group."""
        again: list[FlushableLog] = []
        begun: list[tuple[FlushableLog, PendingFlush]] = []
        sealed = MAX_SEALED
        for log in logs:
            if sealed <= 0 < log.flushes.sealed():
                next_group.append(log)
                continue
            try:
                pending = log.flushes.begin(self._wall_ms(), max_sealed=max(sealed, 1))
            except TooManyFilesError:
                again.append(log)
                continue
            except StorageError as error:
                self._tell(log, error)
                continue
            if pending is None:
                self._tell(log, None)
            else:
                sealed -= pending.sealed
                begun.append((log, pending))
        if begun:
            await self._perform([pending for _, pending in begun])
            self.groups += 1
            self.logs += len(begun)
        again += [log for log, pending in begun if not self._is_finished(log, pending, next_group)]
        if again:
            logger.warning("flush_postponed partitions=%d cause=no descriptor is left; raise ulimit -n", len(again))
        return again

    def _is_finished(self, log: FlushableLog, pending: PendingFlush, next_group: list[FlushableLog]) -> bool:
        """False if it must be retried later."""
        try:
            log.flushes.finish(pending)
        except TooManyFilesError:
            return False
        except StorageError as error:
            self._tell(log, error)
        else:
            self._tell(log, None)  # also of a part: a log that rolls faster than groups end is never flushed as a whole
            if not pending.is_whole:
                next_group.append(log)
        return True

    async def _perform(self, group: list[PendingFlush]) -> None:
        """Wait for the threads even if this is cancelled: the canceller closes the logs next, and no thread may use them then."""
        loop = asyncio.get_running_loop()
        shares = [group[number::THREADS_PER_FOLDER] for number in range(min(THREADS_PER_FOLDER, len(group)))]
        work = [loop.run_in_executor(self._threads, _perform_all, share) for share in shares]
        try:
            await asyncio.shield(asyncio.gather(*work))
        except asyncio.CancelledError:
            await asyncio.wait(work)
            raise

    def _report(self, task: asyncio.Task[None]) -> None:
        """The task ends normally or by cancellation; after an internal error, no produce would be acknowledged any more."""
        if not task.cancelled() and task.exception() is not None:
            logger.critical("flusher_died task=%s", task.get_name(), exc_info=task.exception())
            self._fatal(f"{task.get_name()} failed: {task.exception()!r}")

    def _tell(self, log: FlushableLog, error: StorageError | None) -> None:
        if error is not None:
            logger.error("flush_failed partition=%s cause=%s", log.topic_partition, error)
        self._ended(log, error)

    async def close(self) -> None:
        """Wait for running flushes, and drop waiting ones: closing the logs flushes them anyway."""
        self._waiting.clear()
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)


def _perform_all(share: Iterable[PendingFlush]) -> None:
    for pending in share:
        pending.perform()

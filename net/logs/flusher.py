"""Flushes logs off the loop, and tells who waits for it: group commit.

Per data folder one group is under way at a time; whatever asks meanwhile, from however many producers and partitions, goes
together in the next one. So the price of a flush is shared, and the more there is to do the larger are the groups. The
files of a group are flushed by a few threads side by side, because the file system commits its journal for several at once
(8 files of an ext4: 1.3 ms one after another, 0.9 ms by four threads; an `fdatasync` on a disk of one's own takes longer).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from barnabas.log.segment.pending_flush import PendingFlush
from barnabas.log.vocabulary.errors import StorageError, TooManyFilesError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..base.folder_writers import HANGS_AFTER_MS

logger = logging.getLogger("barnabas.log")

THREADS_PER_FOLDER: Final = 4  # beyond it nothing was won
MAX_THREADS: Final = 16  # of a broker with many folders
RETRY_AFTER_S: Final = 0.2  # without a descriptor; clients that go give some back


class FlushableLog(Protocol):
    """What is needed of log.partition_log.PartitionLog."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def failed(self) -> bool: ...
    def begin_flush(self, now_ms: int | None = None) -> PendingFlush | None: ...
    def finish_flush(self, pending: PendingFlush) -> None: ...


FlushEnded = Callable[[FlushableLog, StorageError | None], None]


class Flusher:
    """`ended` is called in the loop once a log's flush is over, also when there was nothing to do."""

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
        """Everything that is in the log by the end of this pass of the loop will be flushed."""
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
                again = await self._flush_group(list(logs))
                if again:
                    await asyncio.sleep(RETRY_AFTER_S)
                    self._waiting.setdefault(folder, {}).update(dict.fromkeys(again))
        finally:
            del self._busy[folder]
            self._since_s.pop(folder, None)

    def hanging(self) -> Iterator[str]:
        """The folders whose disk does not come back from a group of flushes."""
        oldest_s = asyncio.get_running_loop().time() - HANGS_AFTER_MS / 1000
        return (folder for folder, since_s in self._since_s.items() if since_s <= oldest_s)

    async def _flush_group(self, logs: list[FlushableLog]) -> list[FlushableLog]:
        """Returns those that must be tried again: there was no descriptor to open their files."""
        again: list[FlushableLog] = []
        begun: list[tuple[FlushableLog, PendingFlush]] = []
        for log in logs:
            try:
                pending = log.begin_flush(self._wall_ms())
            except TooManyFilesError:
                again.append(log)
                continue
            except StorageError as error:
                self._tell(log, error)
                continue
            if pending is None:
                self._tell(log, None)
            else:
                begun.append((log, pending))
        if begun:
            await self._perform([pending for _, pending in begun])
            self.groups += 1
            self.logs += len(begun)
        again += [log for log, pending in begun if not self._is_finished(log, pending)]
        if again:
            logger.warning("flush_postponed partitions=%d cause=no descriptor is left; raise ulimit -n", len(again))
        return again

    def _is_finished(self, log: FlushableLog, pending: PendingFlush) -> bool:
        try:
            log.finish_flush(pending)
        except TooManyFilesError:
            return False
        except StorageError as error:
            self._tell(log, error)
        else:
            self._tell(log, None)
        return True

    async def _perform(self, group: list[PendingFlush]) -> None:
        """Whoever cancels this closes the logs next, which no thread may be working on then."""
        loop = asyncio.get_running_loop()
        shares = [group[number::THREADS_PER_FOLDER] for number in range(min(THREADS_PER_FOLDER, len(group)))]
        work = [loop.run_in_executor(self._threads, _perform_all, share) for share in shares]
        try:
            await asyncio.shield(asyncio.gather(*work))
        except asyncio.CancelledError:
            await asyncio.wait(work)
            raise

    def _report(self, task: asyncio.Task[None]) -> None:
        """It ends by itself or by cancellation; after anything else nobody would be acknowledged any more."""
        if not task.cancelled() and task.exception() is not None:
            logger.critical("flusher_died task=%s", task.get_name(), exc_info=task.exception())
            self._fatal(f"{task.get_name()} failed: {task.exception()!r}")

    def _tell(self, log: FlushableLog, error: StorageError | None) -> None:
        if error is not None:
            logger.error("flush_failed partition=%s cause=%s", log.topic_partition, error)
        self._ended(log, error)

    async def close(self) -> None:
        """Wait for what is under way, and drop what waits: closing the logs flushes them anyway."""
        self._waiting.clear()
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)


def _perform_all(share: Iterable[PendingFlush]) -> None:
    for pending in share:
        pending.perform()

"""Loads and closes the logs of all data folders in parallel, in threads, without blocking the loop.

A start after a crash may read much data: its progress is logged, and a request to stop interrupts it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from barnabas.log.folders.folder_loading import LoadedFolder, LoadingStoppedError, LoadProgress
from barnabas.log.folders.log_folder import LogFolder
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.vocabulary.errors import StorageError

from ..base.clock import Clock
from ..base.threads import to_its_end

logger = logging.getLogger("barnabas.log")

MAX_THREADS = 8  # at a time: one process does not read from more disks faster
# Most of the time that a log needs to close is that of some ten flushes, which a file system does for several callers at once.
CLOSING_THREADS_PER_FOLDER = 4
PROGRESS_INTERVAL_MS = 2_000
T = TypeVar("T")
Part = TypeVar("Part")  # a folder, its path, or some of its logs


async def load_logs(logs: LogManager, clock: Clock) -> None:
    """Open the logs of every folder; a folder that fails goes offline. Raises StorageError if no folder is left.

    If it is cancelled, each thread stops after its current partition, and no thread is left running.
    """
    logs.begin_loading(clock.wall_ms())
    folders = list(logs.folders)
    progress = {folder.path: LoadProgress(path=folder.path) for folder in folders}

    def load(folder: LogFolder) -> LoadedFolder | StorageError:
        try:
            return logs.load_folder(folder, now_ms=clock.wall_ms(), progress=progress[folder.path])
        except StorageError as error:
            return error

    telling = asyncio.ensure_future(_tell(list(progress.values())))
    try:
        outcomes = await _in_threads(load, folders, stop=lambda: _stop(progress.values()))
    finally:
        telling.cancel()
    for folder, outcome in zip(folders, outcomes, strict=True):
        if isinstance(outcome, LoadingStoppedError):
            raise outcome
        if isinstance(outcome, StorageError):
            logs.fail_folder(folder.path, outcome.message, now_ms=clock.wall_ms())
            await _in_threads(logs.give_up, [folder.path], stop=lambda: None)
        else:
            logs.attach(outcome, now_ms=clock.wall_ms())
    if not logs.folders:
        raise StorageError("; ".join(folder.cause for folder in logs.offline_folders.values()))
    logs.end_loading()


async def close_logs(logs: LogManager) -> None:
    """Flush, checkpoint and close every folder, and mark it as clean if possible. May be called twice."""
    if logs.is_closed:
        return
    logs.begin_closing()
    folders = list(logs.folders)
    shares = [(folder, share) for folder in folders for share in _shares(logs.logs_of(folder))]
    outcomes = await _in_threads(logs.close_logs, [share for _, share in shares], stop=lambda: None)
    unclean = {folder.path for (folder, _), is_clean in zip(shares, outcomes, strict=True) if not is_clean}

    def end(folder: LogFolder) -> None:
        logs.end_folder(folder, is_clean=folder.path not in unclean)

    await _in_threads(end, folders, stop=lambda: None)
    await _in_threads(logs.give_up, list(logs.failing), stop=lambda: None)
    logs.end_closing()


def _shares(logs: list[PartitionLog]) -> Iterator[list[PartitionLog]]:
    for number in range(min(CLOSING_THREADS_PER_FOLDER, len(logs))):
        yield logs[number::CLOSING_THREADS_PER_FOLDER]


async def _in_threads(work: Callable[[Part], T], parts: Sequence[Part], *, stop: Callable[[], None]) -> list[T]:
    """Run the work for each part, and wait for all threads even if this is cancelled: no other code may use the folders
    before."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(MAX_THREADS)

    async def run(part: Part) -> T:
        async with room:
            return await loop.run_in_executor(None, work, part)

    return await to_its_end(asyncio.ensure_future(_gathered([run(part) for part in parts])), stop=stop)


async def _gathered(works: Sequence[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*works))


def _stop(progress: Iterable[LoadProgress]) -> None:
    for one in progress:
        one.wants_stop = True


async def _tell(progress: Sequence[LoadProgress]) -> None:
    """Log the progress every few seconds, for operators who wait for the start."""
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_MS / 1000)
        for one in progress:
            if not one.is_done:
                logger.info("loading folder=%s partitions=%d/%d scanned_bytes=%d", one.path, one.partitions_done,
                            one.partitions_total, one.scanned_bytes)  # fmt: skip

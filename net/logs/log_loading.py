"""Loading and closing the logs of all data folders at once, a thread for each, without holding up the loop.

A start after a crash may read much: it tells how far it is, and a broker that is told to stop meanwhile does so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from barnabas.log.folders.folder_loading import LoadedFolder, LoadingStoppedError, LoadProgress
from barnabas.log.folders.log_folder import LogFolder
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.vocabulary.errors import StorageError

from ..base.clock import Clock

logger = logging.getLogger("barnabas.log")

MAX_THREADS = 8  # that work on folders at a time: more disks than that are read no faster by one process
PROGRESS_INTERVAL_MS = 2_000
T = TypeVar("T")
Folder = TypeVar("Folder")  # or its path


async def load_logs(logs: LogManager, clock: Clock) -> None:
    """Open the logs of every folder; one that fails goes offline. Raises StorageError when none is left.

    When it is cancelled, the threads stop after the partition that they are at, and nothing is left running.
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
    """Close every folder: flushed, checkpointed and marked as clean where that is possible. May be called twice."""
    if logs.is_closed:
        return
    await _in_threads(logs.close_folder, list(logs.folders), stop=lambda: None)
    await _in_threads(logs.give_up, list(logs.failing), stop=lambda: None)
    logs.end_closing()


async def _in_threads(work: Callable[[Folder], T], folders: Sequence[Folder], *, stop: Callable[[], None]) -> list[T]:
    """Run it for each folder, and wait for all of them even when this is cancelled: nobody else may touch them before."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(MAX_THREADS)

    async def run(folder: Folder) -> T:
        async with room:
            return await loop.run_in_executor(None, work, folder)

    running = asyncio.ensure_future(_gathered([run(folder) for folder in folders]))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([running])
        raise


async def _gathered(works: Sequence[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*works))


def _stop(progress: Iterable[LoadProgress]) -> None:
    for one in progress:
        one.wants_stop = True


async def _tell(progress: Sequence[LoadProgress]) -> None:
    """A line every few seconds, for whoever waits for a start."""
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_MS / 1000)
        for one in progress:
            if not one.is_done:
                logger.info("loading folder=%s partitions=%d/%d scanned_bytes=%d", one.path, one.partitions_done,
                            one.partitions_total, one.scanned_bytes)  # fmt: skip

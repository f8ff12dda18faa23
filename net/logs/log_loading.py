"""Loads and closes the logs of all data folders in parallel, with a thread for each, without blocking the loop.

A start after a crash may read much data: its progress is logged, and a request to stop interrupts it.
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

MAX_THREADS = 8  # for folders at a time: one process does not read from more disks faster
PROGRESS_INTERVAL_MS = 2_000
T = TypeVar("T")
Folder = TypeVar("Folder")  # or its path


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
    await _in_threads(logs.close_folder, list(logs.folders), stop=lambda: None)
    await _in_threads(logs.give_up, list(logs.failing), stop=lambda: None)
    logs.end_closing()


async def _in_threads(work: Callable[[Folder], T], folders: Sequence[Folder], *, stop: Callable[[], None]) -> list[T]:
    """Run the work for each folder, and wait for all threads even if this is cancelled: no other code may use the folders
    before."""
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
    """Log the progress every few seconds, for operators who wait for the start."""
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_MS / 1000)
        for one in progress:
            if not one.is_done:
                logger.info("loading folder=%s partitions=%d/%d scanned_bytes=%d", one.path, one.partitions_done,
                            one.partitions_total, one.scanned_bytes)  # fmt: skip

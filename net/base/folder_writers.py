"""Disk-bound work on data folders: checkpoints, flushes of directories, truncations. It runs in threads, never on the broker's
loop.

Each folder has at most one thread. Work that arrives while the thread is busy waits; newer work of the same kind replaces waiting
work. Therefore, a disk that hangs occupies one thread and a few callables (one more for each log that is truncated), however
long it hangs, and the other folders are not affected.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from barnabas.log.vocabulary.errors import StorageError

from .threads import to_its_end

logger = logging.getLogger("barnabas.log")

MAX_THREADS: Final = 16  # if there are more folders, they take turns
# Limit of one piece of work, or of one group of flushes (`flusher`). Beyond it, the folder hands over its leaderships: producers
# may wait for an acknowledgement that other brokers could give sooner. Together with the check every 250 ms, a report and an
# election, this stays within the 10 s in which acks=all must continue. The longest work, a checkpoint, is seven flushes: a disk
# that takes a second for each is slow, but its folder keeps its leaderships.
HANGS_AFTER_MS: Final = 7_000

Work = Callable[[], None]
Refused = Callable[[str, StorageError], None]


class _Asked:
    __slots__ = ("done", "refused", "work")

    def __init__(self, work: Work, refused: Refused, done: "asyncio.Future[None]") -> None:
        self.work = work
        self.refused = refused
        self.done = done


class FolderWriters:
    """Belongs to the broker's loop. It calls `refused` there for every StorageError, with the folder."""

    def __init__(self, *, refused: Refused, fatal: Callable[[str], None]) -> None:
        self._refused = refused
        self._fatal = fatal
        self._waiting: dict[str, dict[str, _Asked]] = {}  # by folder and kind: at most one of a kind
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._since_s: dict[str, float] = {}  # when the thread of a folder began its current work
        self._is_closed = False
        self._threads = ThreadPoolExecutor(max_workers=MAX_THREADS, thread_name_prefix="folder-writer")

    def ask(self, path: str, kind: str, work: Work, *, refused: Refused | None = None) -> "asyncio.Future[None]":
        """Do the work in the folder's thread; the future ends when the work has ended, also after a failure."""
        loop = asyncio.get_running_loop()
        if self._is_closed:
            return ended_future()
        waiting = self._waiting.setdefault(path, {})
        known = waiting.pop(kind, None)
        done = loop.create_future() if known is None else known.done
        waiting[kind] = _Asked(work, refused or self._refused, done)
        if path not in self._busy:
            task = loop.create_task(self._work(path), name=f"folder-writer-{path}")
            self._busy[path] = task
            task.add_done_callback(self._report)
        return done

    def is_waiting(self, path: str, kind: str) -> bool:
        """Return whether work of this kind was requested and has not begun yet."""
        return kind in self._waiting.get(path, ())

    def hanging(self) -> Iterator[str]:
        """The folders whose thread has been busy for longer than the limit."""
        oldest_s = asyncio.get_running_loop().time() - HANGS_AFTER_MS / 1000
        return (path for path, since_s in self._since_s.items() if since_s <= oldest_s)

    async def _work(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            while waiting := self._waiting.get(path):
                asked = waiting.pop(next(iter(waiting)))
                self._since_s[path] = loop.time()
                try:
                    await to_its_end(loop.run_in_executor(self._threads, asked.work))
                except StorageError as error:
                    asked.refused(path, error)
                finally:
                    del self._since_s[path]
                    if not asked.done.done():
                        asked.done.set_result(None)
        finally:
            self._waiting.pop(path, None)
            del self._busy[path]

    def _report(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.critical("folder_writer_died task=%s", task.get_name(), exc_info=task.exception())
            self._fatal(f"{task.get_name()} failed: {task.exception()!r}")

    async def close(self) -> None:
        """Wait for running work, and drop waiting work: closing the logs writes all of it anyway. Later work is not accepted."""
        self._is_closed = True
        for waiting in self._waiting.values():
            for asked in waiting.values():
                asked.done.cancel()
            waiting.clear()
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)


def ended_future() -> "asyncio.Future[None]":
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    return ended

"""Work on data folders that waits for a disk: checkpoints, flushes of names, truncations. In threads, never on the broker's loop.

Each folder has one thread at a time, and what is asked meanwhile waits its turn; work of a kind that waits already is replaced
by the newer one. So a disk that hangs keeps one thread and a handful of callables (one more for each log that is truncated),
however long it hangs, and the other folders go on.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from barnabas.log.vocabulary.errors import StorageError

logger = logging.getLogger("barnabas.log")

MAX_THREADS: Final = 16  # more folders than that are served in turns
# Of one piece of work, or of one group of flushes (`flusher`). Then the folder hands over what it leads: somebody may wait for an
# acknowledgement, and others could give it sooner. With a look every 250 ms, a report and an election that is within the 10 s in
# which acks=all shall go on. The longest work, a checkpoint, is seven flushes: a disk of a second each is slow, and not given up.
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
    """Belongs to the broker's loop. `refused` is told there of every StorageError, with the folder."""

    def __init__(self, *, refused: Refused, fatal: Callable[[str], None]) -> None:
        self._refused = refused
        self._fatal = fatal
        self._waiting: dict[str, dict[str, _Asked]] = {}  # by folder and kind: at most one of a kind
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._since_s: dict[str, float] = {}  # when the thread of a folder began what it is doing
        self._is_closed = False
        self._threads = ThreadPoolExecutor(max_workers=MAX_THREADS, thread_name_prefix="folder-writer")

    def ask(self, path: str, kind: str, work: Work, *, refused: Refused | None = None) -> "asyncio.Future[None]":
        """Do it in the folder's thread; the future ends when it is over, well or not."""
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
        """Was it asked, and has it not begun yet?"""
        return kind in self._waiting.get(path, ())

    def hanging(self) -> Iterator[str]:
        """The folders whose thread does not come back."""
        oldest_s = asyncio.get_running_loop().time() - HANGS_AFTER_MS / 1000
        return (path for path, since_s in self._since_s.items() if since_s <= oldest_s)

    async def _work(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            while waiting := self._waiting.get(path):
                asked = waiting.pop(next(iter(waiting)))
                self._since_s[path] = loop.time()
                try:
                    await _to_its_end(loop.run_in_executor(self._threads, asked.work))
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
        """Wait for what is under way, and drop what waits: closing the logs writes all of it anyway. Nothing is taken later."""
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


async def _to_its_end(work: "asyncio.Future[None]") -> None:
    """Whoever cancels this closes the logs next, which no thread may be working on then."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise

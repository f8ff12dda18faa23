"""Runs compaction in the background: when the cleaner runs, in which thread, and how fast.

The work on files runs in the executor, one log at a time; the logs themselves change only in the loop, between two steps.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from barnabas.log.compaction.cleaner import LogCleaner
from barnabas.log.compaction.cleaning import Cleaning, CleaningAborted
from barnabas.log.disk.files import Files
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.vocabulary.errors import BarnabasError

from ..base.clock import Clock
from ..base.settings.config import BrokerConfig
from ..base.threads import to_its_end

logger = logging.getLogger("barnabas.cleaner")

STRETCH_S = (
    0.001  # of work without a pause: Python runs one thread at a time, and a produce request must not wait for long
)
LONGEST_PASS_S = 0.05  # behind a pass that takes longer, the cleaner goes on beside it


class LoopPass:
    """Lets a thread wait until an event loop has run what was due.

    A loop that shares the interpreter with a busy thread waits for it, up to a switch interval, after each call of the kernel: a
    pass of hundreds of calls takes hundreds of milliseconds. If the thread gives way, most of the pass runs without it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, longest_pass_s: float = LONGEST_PASS_S) -> None:
        """Called in the thread of the loop."""
        self._loop = loop
        self._longest_pass_s = longest_pass_s
        self._thread_id = threading.get_ident()
        self._done = threading.Event()

    def give_way(self) -> None:
        """Return when the loop has run what was due, or after the longest pass; at once in the thread of the loop itself."""
        if threading.get_ident() == self._thread_id:
            return
        self._done.clear()
        # Twice: a pass begins with this call and goes on with what sockets and timers have for the loop.
        self._loop.call_soon_threadsafe(self._loop.call_soon, self._done.set)
        self._done.wait(self._longest_pass_s)


class Throttle:
    """Called after each piece of work, in its thread: sleeps as the rate requires, and in any case regularly gives way."""

    def __init__(
        self,
        max_bytes_per_second: float,
        *,
        give_way: Callable[[], None],
        now_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._max_bytes_per_second = max_bytes_per_second
        self._give_way = give_way
        self._now_s = now_s
        self._sleep = sleep
        self._paused_at_s = now_s()
        self._free_at_s = 0.0  # the time until which the bytes read so far use up the rate

    def worked(self, size_bytes: int) -> None:
        now_s = self._now_s()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._max_bytes_per_second
        if now_s - self._paused_at_s < STRETCH_S:
            return
        if self._free_at_s > now_s:
            self._sleep(self._free_at_s - now_s)
        self._give_way()
        self._paused_at_s = self._now_s()


class CleanerService:
    """Runs the cleaner until it is cancelled."""

    def __init__(
        self,
        *,
        logs: LogManager,
        files: Files,
        config: BrokerConfig,
        clock: Clock,
        is_current: Callable[[], bool],
        stopping: threading.Event | None = None,
    ) -> None:
        """`stopping` ends the waits of the throttle for good. At a low rate one takes hours, and a stop waits for the thread."""
        self._clock = clock
        self._logs = logs
        self._backoff_ms = config.log_cleaner_backoff_ms
        self._is_enabled = config.log_cleaner_enable
        self._is_current = is_current  # whether the metadata shows this broker's own registration
        self._stopping = threading.Event() if stopping is None else stopping
        loop_pass = LoopPass(asyncio.get_running_loop())
        throttle = Throttle(
            config.log_cleaner_io_max_bytes_per_second, give_way=loop_pass.give_way, sleep=self._stopping.wait
        )
        self.cleaner = LogCleaner(
            logs, files, map_size_bytes=config.log_cleaner_dedupe_buffer_size, worked=throttle.worked
        )

    async def run(self) -> None:
        """Clean all logs that are due, then check again after `log.cleaner.backoff.ms`."""
        while self._is_enabled:
            await asyncio.sleep(self._backoff_ms / 1000)
            # Before the overrides of topics are known, the broker's defaults could compact a topic that must stay whole.
            while self._is_current() and await self._clean_next():
                pass

    async def _clean_next(self) -> bool:
        """Clean one log. Return whether a log was cleaned: then another one may be due."""
        cleaning = self.cleaner.next_cleaning(self._clock.wall_ms())
        if cleaning is None:
            return False
        try:
            await self._walk(cleaning)
            folder = self.cleaner.finished(cleaning, self._clock.wall_ms())
            if folder is not None:
                write = partial(self._logs.checkpoints.write_cleaned, folder)
                await self._to_its_end(asyncio.get_running_loop().run_in_executor(None, write), cleaning)
            return True
        except CleaningAborted:
            logger.info("event=aborted partition=%s cause=its log has changed", cleaning.log.topic_partition)
        except BarnabasError as error:
            self.cleaner.failed(cleaning, error, self._clock.wall_ms())
        except Exception as error:
            # A fault of the cleaner itself: what one log has must not end the broker, now and after each start.
            logger.exception("event=failed partition=%s", cleaning.log.topic_partition)
            unexpected = BarnabasError(f"the cleaner has failed: {error!r}; report this error")
            self.cleaner.failed(cleaning, unexpected, self._clock.wall_ms())
        return False

    async def _walk(self, cleaning: Cleaning) -> None:
        loop = asyncio.get_running_loop()
        try:
            for step in cleaning.steps():
                await self._to_its_end(loop.run_in_executor(None, step), cleaning)
        except BaseException:
            cleaning.abandon()
            raise

    async def _to_its_end(self, work: "asyncio.Future[None]", cleaning: Cleaning) -> None:
        def stop() -> None:
            cleaning.stop()
            self._stopping.set()

        await to_its_end(work, stop=stop)

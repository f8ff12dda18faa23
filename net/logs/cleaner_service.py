"""Compaction beside everything else: when the cleaner runs, in which thread, and how fast.

The work on files is done in the executor, one log at a time; the logs themselves change in the loop only, between two steps.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from barnabas.log.compaction.cleaner import LogCleaner
from barnabas.log.compaction.cleaning import Cleaning, CleaningAborted
from barnabas.log.disk.files import Files
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.vocabulary.errors import BarnabasError

from ..base.clock import Clock
from ..settings.config import BrokerConfig

logger = logging.getLogger("barnabas.cleaner")

STRETCH_S = (
    0.001  # of work without a pause: Python runs one thread at a time, and a produce request shall not wait for long
)
PAUSE_S = 0.00005  # enough for the loop to take its turn


class Throttle:
    """Called after each piece of work, in its thread: sleeps as long as the rate wants, and a moment now and then anyway."""

    def __init__(
        self,
        max_bytes_per_second: float,
        *,
        now_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._max_bytes_per_second = max_bytes_per_second
        self._now_s = now_s
        self._sleep = sleep
        self._paused_at_s = now_s()
        self._free_at_s = 0.0  # when what was read so far is paid for

    def worked(self, size_bytes: int) -> None:
        now_s = self._now_s()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._max_bytes_per_second
        if now_s - self._paused_at_s < STRETCH_S:
            return
        self._sleep(max(self._free_at_s - now_s, PAUSE_S))
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
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._backoff_ms = config.log_cleaner_backoff_ms
        self._is_enabled = config.log_cleaner_enable
        self._is_current = is_current  # does the metadata show this broker's own registration?
        throttle = Throttle(config.log_cleaner_io_max_bytes_per_second)
        self.cleaner = LogCleaner(
            logs, files, map_size_bytes=config.log_cleaner_dedupe_buffer_size, worked=throttle.worked
        )

    async def run(self) -> None:
        """Clean whatever is due, then look again after `log.cleaner.backoff.ms`."""
        while self._is_enabled:
            await asyncio.sleep(self._backoff_ms / 1000)
            # Before the topics' own settings are known, the broker's would compact what a topic wants to keep whole.
            while self._is_current() and await self._clean_next():
                pass

    async def _clean_next(self) -> bool:
        """Whether a log was cleaned; another one may be due then."""
        cleaning = self.cleaner.next_cleaning(self._clock.wall_ms())
        if cleaning is None:
            return False
        try:
            await self._walk(cleaning)
            folder = self.cleaner.finished(cleaning, self._clock.wall_ms())
            if folder is not None:
                write = partial(self._logs.write_cleaned, folder)
                await _to_its_end(asyncio.get_running_loop().run_in_executor(None, write), cleaning)
            return True
        except CleaningAborted:
            logger.info("event=aborted partition=%s cause=its log has changed", cleaning.log.topic_partition)
        except BarnabasError as error:
            self.cleaner.failed(cleaning, error, self._clock.wall_ms())
        return False

    async def _walk(self, cleaning: Cleaning) -> None:
        loop = asyncio.get_running_loop()
        try:
            for step in cleaning.steps():
                await _to_its_end(loop.run_in_executor(None, step), cleaning)
        except BaseException:
            cleaning.abandon()
            raise


async def _to_its_end(work: "asyncio.Future[None]", cleaning: Cleaning) -> None:
    """Whoever cancels the cleaner closes the logs next, which no thread may be working on then."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        cleaning.stop()
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # it was told to end, so nobody wants to know how
        raise

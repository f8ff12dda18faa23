"""Re-reads segments from the disks, slowly, to detect damage (bit rot) while other replicas are intact.

It reads only segments that do not grow any more: followers read and check the end of a log. A round covers all logs. The bytes
per second are limited, and so is the load of the loop, since a thread reads.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from barnabas.log.folders.log_manager import LogManager
from barnabas.log.segment.damage import SCAN_BYTES, DamagedRange, Scan, SegmentView, scan
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

logger = logging.getLogger("barnabas.log")

MIN_PAUSE_S: Final = 0.01  # between two steps of any size


class Scrubber:
    """`found` is called in the loop."""

    def __init__(
        self,
        logs: LogManager,
        *,
        bytes_per_second: int,
        interval_ms: int,
        found: Callable[[TopicPartition, DamagedRange], None],
    ) -> None:
        self._logs = logs
        self._bytes_per_second = bytes_per_second
        self._interval_s = interval_ms / 1000
        self._found = found
        self.rounds = 0

    async def run(self) -> None:
        """Scrub until cancelled; a limit of 0 bytes per second disables it."""
        while self._bytes_per_second > 0:
            for topic_partition in list(self._logs.logs):
                await self._scrub(topic_partition)
            self.rounds += 1
            await asyncio.sleep(self._interval_s)

    async def _scrub(self, topic_partition: TopicPartition) -> None:
        log = self._logs.get(topic_partition)
        if log is None or log.failed:
            return
        try:
            for base_offset in log.damage.sealed():
                view = log.damage.view(base_offset)
                if view is not None and view.size_bytes:
                    await self._scrub_segment(topic_partition, view)
        except BarnabasError as error:
            logger.error("event=scrub_failed partition=%s cause=%s", topic_partition, error)

    async def _scrub_segment(self, topic_partition: TopicPartition, view: SegmentView) -> None:
        loop = asyncio.get_running_loop()
        position, next_offset, is_done = 0, view.base_offset, False
        while not is_done:
            step = await loop.run_in_executor(None, _step, view, position, next_offset)
            position, next_offset, is_done = step.position, step.next_offset, step.is_done
            if step.damage is not None:
                self._found(topic_partition, step.damage)
            await asyncio.sleep(max(step.cost_bytes / self._bytes_per_second, MIN_PAUSE_S))


def _step(view: SegmentView, position: int, next_offset: int) -> Scan:
    return scan(view, position=position, next_offset=next_offset, most_bytes=SCAN_BYTES)

"""`Commits`: what a consumer commits, when it is told to and by itself."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from barnabas.log.topic_partition import TopicPartition

from .client import API_TIMEOUT_MS, Client
from .errors import BarnabasError, BufferExhaustedError
from .group_offsets import Offsets, commit_offsets
from .reading import Reading
from .records import OffsetAndMetadata
from .session import Session

logger = logging.getLogger("barnabas.consumer")

MAX_COMMITS_UNDER_WAY = 1_000  # Of `commit_nowait`: each waits for the quorum; who is faster than that must wait too.
ToCommit = Mapping[TopicPartition, int | OffsetAndMetadata]


class Commits:
    def __init__(self, client: Client, group_id: str, reading: Reading, session: Callable[[], Session | None]) -> None:
        self._client = client
        self._group_id = group_id
        self._reading = reading
        self._session = session
        self._under_way: set[asyncio.Task[None]] = set()  # The loop holds tasks by weak references only.
        self._regular: asyncio.Task[None] | None = None

    def wanted(self, offsets: ToCommit | None) -> Offsets:
        """As the application gives them; None: the positions, as all that was handed out is done."""
        if offsets is None:
            return self._reading.offsets(is_clean=True)
        return {
            TopicPartition(*partition): OffsetAndMetadata(item) if isinstance(item, int) else OffsetAndMetadata(*item)
            for partition, item in offsets.items()
        }

    async def commit(self, offsets: Offsets) -> None:
        if not offsets:
            return
        session = self._session()
        if session is not None:
            await session.commit(offsets)
        else:
            await commit_offsets(self._client, self._group_id, offsets)
        for partition, item in offsets.items():
            self._reading.committed(partition, item.offset)

    def commit_nowait(self, offsets: Offsets) -> asyncio.Task[None]:
        """Raises BufferExhaustedError when too many are under way."""
        if len(self._under_way) >= MAX_COMMITS_UNDER_WAY:
            raise BufferExhaustedError(f"{MAX_COMMITS_UNDER_WAY} commits are under way: await some of them first")
        task = asyncio.create_task(self.commit(offsets), name="barnabas-commit")
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Who does not look at the task finds its error in the log."""
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.warning("commit failed group=%s reason=%s", self._group_id, error)

    async def commit_done(
        self,
        partitions: list[TopicPartition] | None = None,
        *,
        is_clean: bool = False,
        timeout_ms: int = API_TIMEOUT_MS,
    ) -> None:
        """Auto-commit: of these partitions (None: all) what the application is done with. What goes wrong is logged."""
        done = self._reading.offsets(is_clean=is_clean)
        if partitions is not None:
            done = {partition: done[partition] for partition in partitions if partition in done}
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.commit(done)
        except (BarnabasError, TimeoutError) as error:
            logger.warning("auto-commit failed group=%s reason=%s", self._group_id, error or "no answer in time")

    def start(self, interval_ms: int) -> None:
        self._regular = asyncio.create_task(self._commit_regularly(interval_ms), name="barnabas-auto-commit")

    async def _commit_regularly(self, interval_ms: int) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.commit_done()

    async def stop(self, *, timeout_ms: int) -> None:
        """End the regular ones, and wait a while for those under way."""
        if self._regular is not None:
            self._regular.cancel()
            await asyncio.gather(self._regular, return_exceptions=True)
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=timeout_ms / 1000)
        for task in list(self._under_way):
            task.cancel()

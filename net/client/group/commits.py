"""`Commits`: manual and automatic commits of a consumer. All of them go through one `commit_pipeline`."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.client import API_TIMEOUT_MS, Client
from ..connection.errors import BarnabasError, BufferExhaustedError
from ..connection.habits import partition_of
from ..connection.records import OffsetAndMetadata
from ..positions.reading import Reading
from .commit_pipeline import CommitPipeline
from .group_offsets import Offsets
from .group_positions import GroupPositions
from .ownership import Ownership
from .session import Session

logger = logging.getLogger("barnabas.consumer")

MAX_COMMITS_UNDER_WAY = 1_000  # Of `commit_nowait`: each waits for the quorum; a faster application must wait too.
ToCommit = Mapping[TopicPartition, int | OffsetAndMetadata]


class Commits:
    def __init__(self, client: Client, group_id: str, reading: Reading, session: Callable[[], Session | None]) -> None:
        self._group_id = group_id
        self._reading = reading
        self._session = session
        self._pipeline = CommitPipeline(client, group_id, reading, self._membership)
        self._under_way: set[asyncio.Future[None]] = set()
        self._regular: asyncio.Task[None] | None = None

    def _membership(self) -> Ownership | None:
        session = self._session()
        return None if session is None else session.ownership

    def wanted(self, offsets: ToCommit | None) -> Offsets:
        """As the application gives them; None: the positions, as all that was handed out is done."""
        if offsets is None:
            return {
                partition: item
                for partition, item in self._reading.positions().items()
                if self._pipeline.has(partition) or item.offset != self._reading.states[partition].committed
            }
        return {
            partition_of(partition): self._bound(
                partition_of(partition),
                OffsetAndMetadata(item) if isinstance(item, int) else OffsetAndMetadata(*item),
            )
            for partition, item in offsets.items()
        }

    def _bound(self, partition: TopicPartition, item: OffsetAndMetadata) -> OffsetAndMetadata:
        """The application names offsets of the records that it has seen, which may be those of a topic that was deleted since."""
        state = self._reading.states.get(partition)
        if state is None or item.topic_id:
            return item
        return item._replace(topic_id=state.handed_out_topic_id or state.topic_id)

    def for_transaction(self, offsets: ToCommit | None, *, reads_committed: bool) -> GroupPositions:
        """Raises NotAssignedError if the application holds a lost partition."""
        wanted, membership = self.wanted(offsets), self._membership()
        states = self._reading.states
        versions = {partition: states[partition].version for partition in wanted if partition in states}

        def committed() -> None:
            for partition, version in versions.items():
                self._reading.committed(partition, wanted[partition].offset, version=version)

        return GroupPositions(
            group_id=self._group_id,
            offsets=wanted,
            membership=membership,
            tenures={} if membership is None else membership.tenures(wanted),
            reads_committed=reads_committed,
            on_committed=committed,
        )

    async def commit(self, offsets: Offsets) -> None:
        await self._pipeline.ask(offsets, timeout_ms=API_TIMEOUT_MS)

    def commit_nowait(self, offsets: Offsets) -> asyncio.Future[None]:
        """Raises BufferExhaustedError if too many are in flight."""
        if len(self._under_way) >= MAX_COMMITS_UNDER_WAY:
            raise BufferExhaustedError(f"{MAX_COMMITS_UNDER_WAY} commits are in flight: await some of them first")
        done = self._pipeline.ask(offsets, timeout_ms=API_TIMEOUT_MS)
        self._under_way.add(done)
        done.add_done_callback(self._ended)
        return done

    def _ended(self, done: asyncio.Future[None]) -> None:
        """Log the error if the caller does not use the future."""
        self._under_way.discard(done)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            logger.warning("commit failed group=%s reason=%s", self._group_id, error)

    def begin_done(
        self, partitions: list[TopicPartition] | None = None, *, timeout_ms: int = API_TIMEOUT_MS
    ) -> asyncio.Future[None]:
        """Auto-commit: of these partitions (None: all) what the application is done with. Never less than is committed, or being
        committed, already. The future ends without an error: what goes wrong is logged."""
        done = self._reading.done()
        if partitions is not None:
            done = {partition: done[partition] for partition in partitions if partition in done}
        ended = asyncio.get_running_loop().create_future()

        def end(asked: asyncio.Future[None]) -> None:
            error = None if asked.cancelled() else asked.exception()
            if error is not None:
                logger.warning("auto-commit failed group=%s reason=%s", self._group_id, error)
            if not ended.done():
                ended.set_result(None)

        try:
            self._pipeline.ask(done, timeout_ms=timeout_ms, may_join=True).add_done_callback(end)
        except BarnabasError as error:
            logger.warning("auto-commit failed group=%s reason=%s", self._group_id, error)
            ended.set_result(None)
        return ended

    def start(self, interval_ms: int) -> None:
        self._regular = asyncio.create_task(self._commit_regularly(interval_ms), name="barnabas-auto-commit")

    async def _commit_regularly(self, interval_ms: int) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.begin_done()

    async def finish(self, *, auto_commit: bool, timeout_ms: float) -> None:
        """End the regular ones, wait for those under way and, with `auto_commit`, for the last one: together at most so long."""
        if self._regular is not None:
            self._regular.cancel()
            await asyncio.gather(self._regular, return_exceptions=True)
        last = {self.begin_done(timeout_ms=round(timeout_ms))} if auto_commit else set()
        waited_for = self._under_way | last
        if waited_for:
            await asyncio.wait(waited_for, timeout=timeout_ms / 1000)

    async def close(self) -> None:
        """Nothing more is sent."""
        await self._pipeline.close()

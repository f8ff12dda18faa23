"""The metadata of a broker as a voter of the quorum or as an observer of the feed. The role can change at run time.

The role follows from the quorum's own configuration, never from server.properties alone. To change the role, the other source is
started while the first one still serves. When the new source has caught up, it takes over: subscribers see one step from image to
image, and the former source is closed. Therefore, a broker is never without metadata, and a learner that fails has no effect.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from barnabas.kraft.group_state.offsets_log import SlotLog
from barnabas.kraft.metadata.image import MetadataImage, differences
from barnabas.kraft.metadata.records import Record
from barnabas.kraft.metadata.requests import ControllerRequest
from barnabas.kraft.node.metadata_feed import MetadataFeed
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.vocabulary.errors import BrokerNotAvailableError
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.node_address import NodeAddress

from .metadata_observer import MetadataObserver
from .metadata_service import MetadataSource, Subscriber
from .quorum_directory import QuorumDirectory
from .quorum_source import VoterMetadata

logger = logging.getLogger("barnabas.metadata")

LOOK_INTERVAL_S = 0.5
CLUSTER_CHECK_INTERVAL_S = 5.0  # a connection to each configured voter, until one has named its cluster
LEADERLESS_LOOKS = 3  # longer than an election; then other voters are asked whether the voters have changed
LEARNER_LAPSES_AFTER_S = 60.0  # the quorum port of a learner that has not become a voter is closed after this


class _Side:
    """One source and its newest publication."""

    def __init__(self, source: MetadataSource) -> None:
        self.source = source
        self.latest: MetadataPublication | None = None


class QuorumRole:
    """A `MetadataSource` that is one of two others at a time. Invariant: `_active` publishes, `_standby` only catches up."""

    def __init__(
        self,
        *,
        node_id: int,
        starts_as_voter: bool,
        build_voter: Callable[[tuple[NodeAddress, ...]], VoterMetadata],
        build_observer: Callable[[], MetadataObserver],
        directory: QuorumDirectory,
        fatal: Callable[[str], None],
    ) -> None:
        """`build_voter` receives the voters to learn from; (): those of server.properties."""
        self._node_id = node_id
        self._build_voter = build_voter
        self._build_observer = build_observer
        self._directory = directory
        self._fatal = fatal
        self._active = _Side(build_voter(()) if starts_as_voter else build_observer())
        self._standby: _Side | None = None
        self._standby_since = 0.0
        self._leaderless_looks = 0
        self._publish: Subscriber | None = None
        self._image = MetadataImage()
        self._removed_at = -1  # the index of the voters that this broker was told not to belong to
        self._retiring: asyncio.Task[None] | None = (
            None  # closes the former source, whose quorum port is open until then
        )
        self._is_closed = False
        self._changing = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], None] = {}  # not a set, whose order depends on memory addresses

    # --- as a source --------------------------------------------------------------------------------------------------

    async def start(self, publish: Subscriber) -> None:
        self._publish = publish
        await self._start(self._active)
        self._run(self._look_periodically())
        self._run(self._check_cluster())

    async def submit(self, request: ControllerRequest) -> object:
        return await self._active.source.submit(request)

    async def slot_snapshot(self, slot: int) -> tuple[int, Iterable[Record]]:
        return await self._active.source.slot_snapshot(slot)

    async def slot_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        return await self._active.source.slot_log(slot, log_offset, limit)

    async def feed(
        self, after_offset: int, max_bytes: int, *, node_id: int = -1, applied: MetadataPosition | None = None
    ) -> MetadataFeed:
        return await self._active.source.feed(after_offset, max_bytes, node_id=node_id, applied=applied)

    def broker_address(self, node_id: int) -> tuple[str, int] | None:
        return self._active.source.broker_address(node_id)

    async def close(self) -> None:
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._standby is not None:
            await self._standby.source.close()
        await self._active.source.close()

    # --- the role -----------------------------------------------------------------------------------------------------

    @property
    def is_voter(self) -> bool:
        return isinstance(self._active.source, VoterMetadata)

    async def join(self) -> tuple[str, int]:
        """Open the quorum port, start as a learner, and return the address of the port. Idempotent."""
        async with self._changing:
            for side in (self._active, self._standby):
                if side is not None and isinstance(side.source, VoterMetadata):
                    return side.source.listens_at
            if not self._image.voters:
                raise BrokerNotAvailableError("this broker does not know the voters yet; try again")
            await self._start_learner()
            assert self._standby is not None and isinstance(self._standby.source, VoterMetadata)
            return self._standby.source.listens_at

    async def look(self) -> None:
        """Check whether the role is still right. Called periodically, and by a broker that has removed this voter."""
        async with self._changing:
            if self._is_closed:
                return
            if isinstance(self._active.source, VoterMetadata):
                await self._look_as_voter(self._active.source)
            elif self._standby is None:
                if self._is_missed_as_voter():
                    await self._start_learner()
            elif self._loop_time() - self._standby_since > LEARNER_LAPSES_AFTER_S:
                logger.warning("node=%d has not become a voter in time, closing its quorum port", self._node_id)
                await self._drop_standby()

    def _is_missed_as_voter(self) -> bool:
        """This node is a voter, but its disk was emptied. An image from before its removal does not say so."""
        is_named = self._node_id in {voter.node_id for voter in self._image.voters}
        return is_named and self._image.voters_index > self._removed_at

    async def _look_as_voter(self, voter: VoterMetadata) -> None:
        if self._standby is not None:
            return
        stored = voter.voters
        self._directory.learn(stored.voters)  # of the journal: server.properties may name none of them
        newest = max(await self._directory.voters(), key=lambda item: item.index, default=stored)
        if newest.index <= stored.index:
            newest = stored
        if self._node_id not in newest.ids and newest.index > 0 and not (newest is stored and voter.is_voter):
            logger.warning("node=%d is not a voter any more: it follows %s", self._node_id, sorted(newest.ids))
            self._directory.learn(newest.voters)
            self._removed_at = newest.index
            await self._start_beside(self._build_observer())
        elif newest is not stored:
            voter.meet(newest)

    async def _check_cluster(self) -> None:
        """Repeat the check until a configured voter has named its cluster. With the folder of another cluster, this broker would
        form a separate cluster (the voters in its journal override server.properties), or wait forever."""
        while True:
            fault = await self._directory.other_cluster(self._node_id)
            if fault is not None:
                break
            await asyncio.sleep(CLUSTER_CHECK_INTERVAL_S)
        if fault:
            self._fatal(fault)

    async def _look_periodically(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            latest = self._active.latest
            has_leader = latest is not None and latest.leader.leader_id is not None
            self._leaderless_looks = 0 if has_leader else self._leaderless_looks + 1
            stranger = isinstance(self._active.source, VoterMetadata) and not self._active.source.is_voter
            if not self.is_voter or stranger or self._leaderless_looks >= LEADERLESS_LOOKS:
                await self.look()

    # --- changing it --------------------------------------------------------------------------------------------------

    async def _start_learner(self) -> None:
        if self._retiring is not None:
            await asyncio.wait([self._retiring])
        logger.info("node=%d learns to become a voter", self._node_id)
        await self._start_beside(
            self._build_voter(tuple(voter for voter in self._image.voters if voter.node_id != self._node_id))
        )

    async def _start_beside(self, source: MetadataSource) -> None:
        side = _Side(source)
        self._standby, self._standby_since = side, self._loop_time()
        try:
            await self._start(side)
        except BaseException:
            self._standby = None
            await source.close()
            raise

    async def _start(self, side: _Side) -> None:
        await side.source.start(lambda publication: self._published(side, publication))

    async def _drop_standby(self) -> None:
        side, self._standby = self._standby, None
        if side is not None:
            await side.source.close()

    def _published(self, side: _Side, publication: MetadataPublication) -> None:
        side.latest = publication
        if side is self._active:
            self._forward(publication)
        self._change_if_ready()

    def _forward(self, publication: MetadataPublication) -> None:
        assert self._publish is not None
        if publication.image.voters_index != self._image.voters_index:
            self._directory.learn(publication.image.voters)
        self._image = publication.image
        self._publish(publication)

    def _change_if_ready(self) -> None:
        """The other source takes over as soon as subscribers would not see the metadata go back."""
        side = self._standby
        if side is None or side.latest is None or side.latest.image.offset < self._image.offset:
            return
        if isinstance(side.source, VoterMetadata) and not side.source.is_voter:
            return  # it is a learner, and not a voter yet
        former, self._active, self._standby = self._active, side, None
        logger.info("node=%d is %s now", self._node_id, "a voter" if self.is_voter else "an observer")
        image = side.latest.image
        self._forward(
            MetadataPublication(
                image=image,
                changes=differences(self._image, image),
                group_records=(),
                leader=side.latest.leader,
                is_active_controller=side.latest.is_active_controller,
                restored=True,
                quarantined=side.latest.quarantined,
            )
        )
        self._retiring = self._run(former.source.close())

    def _run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("changing the role in the quorum failed")
            self._fatal(f"changing the role in the quorum failed: {error!r}")

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()

"""Metadata for brokers that are not voters: committed commands, fetched from a voter by a long poll.

The same `MetadataNode` replays them as on a voter, so that all nodes at an offset have the same image. An observer never decides:
it answers requests for a controller with NOT_CONTROLLER.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from barnabas.kraft.group_state.offsets_log import SlotLog
from barnabas.kraft.metadata.records import Record
from barnabas.kraft.metadata.requests import ControllerRequest
from barnabas.kraft.node.metadata_feed import MetadataFeed
from barnabas.kraft.node.metadata_node import MetadataNode
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    BrokerNotAvailableError,
    InconsistentClusterIdError,
    NotControllerError,
)
from barnabas.log.vocabulary.metadata_position import MetadataPosition

from ..wire.protocol.requests import MetadataFeedRequest
from ..wire.protocol.responses import MetadataFeedResponse
from ..wire.rpc import RpcPool
from .metadata_service import Subscriber
from .quorum_directory import QuorumDirectory

logger = logging.getLogger("barnabas.metadata")

FEED_MAX_BYTES = 4 << 20
FEED_WAIT_MS = 500
FEED_TIMEOUT_MS = 5_000
RETRY_MS = 100


class MetadataObserver:
    """A `MetadataSource` that follows one voter, and switches to another one if that does not answer."""

    def __init__(
        self,
        *,
        node_id: int,
        build_node: Callable[[Subscriber], MetadataNode],
        directory: QuorumDirectory,
        pool: RpcPool,
        rng: random.Random,
        fatal: Callable[[str], None],
    ) -> None:
        self._node_id = node_id
        self._build_node = build_node
        self._directory = directory
        self._pool = pool
        self._rng = rng
        self._fatal = fatal
        self._followed: tuple[str, int] | None = None  # the voter that answered last
        self._task: asyncio.Task[None] | None = None

    async def start(self, publish: Subscriber) -> None:
        self._node = self._build_node(publish)
        self._task = asyncio.get_running_loop().create_task(self._guarded())

    async def _guarded(self) -> None:
        """Stop the broker after an internal error: if its metadata never changed again, it would only look alive."""
        try:
            await self._follow()
        except Exception as error:
            logger.exception("following the metadata failed")
            self._fatal(f"following the metadata failed: {error!r}")

    async def _follow(self) -> None:
        while True:
            addresses = await self._directory.addresses()
            self._rng.shuffle(addresses)
            knows_leader = False
            for host, port in addresses:
                try:
                    while True:
                        await self._fetch(host, port)
                        self._note_followed((host, port))
                except BarnabasError as error:
                    self._note_broken((host, port), error)
                    knows_leader |= isinstance(error, InconsistentClusterIdError)  # such an answer names it
            if not knows_leader:
                self._node.leader_lost()
            await asyncio.sleep(RETRY_MS / 1000)

    def _note_followed(self, address: tuple[str, int]) -> None:
        if self._followed != address:
            self._followed = address
            logger.info("metadata feed from=%s:%d", *address)

    def _note_broken(self, address: tuple[str, int], error: BarnabasError) -> None:
        """Logged once, not for each failed attempt that follows."""
        if self._followed == address:
            self._followed = None
            logger.warning("metadata feed from=%s:%d broke: %s", *address, error)

    async def _fetch(self, host: str, port: int) -> None:
        connection = await self._pool.get(host, port)
        request = MetadataFeedRequest(
            node_id=self._node_id,
            after_offset=self._node.image.offset,
            max_bytes=FEED_MAX_BYTES,
            max_wait_ms=FEED_WAIT_MS,
            applied=self._node.image.position,
        )
        answer = await connection.call(request, timeout_ms=FEED_TIMEOUT_MS)
        assert isinstance(answer, MetadataFeedResponse)
        self._apply(answer)
        if answer.contradiction:
            raise InconsistentClusterIdError(answer.contradiction)
        if answer.leader_id < 0 and not answer.entries:
            raise BrokerNotAvailableError("this voter does not know the leader of the quorum; ask another voter")

    def _apply(self, answer: MetadataFeedResponse) -> None:
        self._node.apply_feed(
            MetadataFeed(
                commands=answer.entries,
                snapshot_index=None if answer.snapshot_offset < 0 else answer.snapshot_offset,
                snapshot=answer.snapshot_chunks,
            ),
            None if answer.leader_id < 0 else Leadership(leader_id=answer.leader_id, term=answer.term, is_self=False),
        )

    async def submit(self, request: ControllerRequest) -> object:
        raise NotControllerError(f"broker {self._node_id} is an observer of the quorum; ask the controller")

    async def slot_snapshot(self, slot: int) -> tuple[int, Iterable[Record]]:
        return self._node.state.slot_snapshot(slot)

    async def slot_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        return self._node.state.slot_log(slot, log_offset, limit)

    async def feed(
        self, after_offset: int, max_bytes: int, *, node_id: int = -1, applied: MetadataPosition | None = None
    ) -> MetadataFeed:
        raise NotControllerError(f"broker {self._node_id} is an observer of the quorum; ask a voter")

    def broker_address(self, node_id: int) -> tuple[str, int] | None:
        return self._directory.known(node_id)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

"""The metadata of a voter: its quorum and the state machine above it.

In a broker, they run in a thread with its own loop, so that a busy broker delays no heartbeat and no vote; in simulation, they
share the broker's loop. All calls cross by `QuorumHost.post` and `post_back`, one hop for each batch.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar, cast

from barnabas.kraft.group_state.offsets_log import SlotLog
from barnabas.kraft.metadata.pending_appends import Answer
from barnabas.kraft.metadata.records import Record
from barnabas.kraft.metadata.requests import AlterVoters, ControllerRequest, DescribeVoters
from barnabas.kraft.node.metadata_feed import MetadataFeed
from barnabas.kraft.node.metadata_node import MetadataNode, MetadataPublication
from barnabas.kraft.quorum.voters import VoterSet
from barnabas.kraft.raft.mailbox import Mailbox
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.kraft.raft.thread import RaftThread
from barnabas.log.vocabulary.metadata_position import MetadataPosition

from .loop_watch import ASK_INTERVAL_MS, LoopWatch
from .metadata_service import Subscriber
from .quorum_voters import alter_voters, describe_voters

logger = logging.getLogger("barnabas.metadata")

BuildQuorum = Callable[[asyncio.AbstractEventLoop], RaftQuorum]
Work = Callable[[], object]
Result = TypeVar("Result")

MIN_TICK_INTERVAL_MS = 5  # even if maintenance is always due, the quorum's loop has time for other work
MAX_TICK_INTERVAL_MS = 250  # maximum delay of the maintenance after a controller becomes active


class QuorumHost(Protocol):
    """The place where the quorum runs."""

    async def start(self, build: BuildQuorum) -> None: ...
    def post(self, work: Work) -> None:
        """Run `work` in the quorum's loop, in order."""

    def post_back(self, work: Work) -> None:
        """Run `work` in the broker's loop, in order. Called in the quorum's loop."""

    async def stop(self) -> None: ...


class ThreadHost:
    """The quorum in its own thread."""

    def __init__(self) -> None:
        self._back = Mailbox(asyncio.get_running_loop())
        self._loop = asyncio.get_running_loop()
        self._thread: RaftThread | None = None

    async def start(self, build: BuildQuorum) -> None:
        self._thread = RaftThread(build)
        await self._loop.run_in_executor(None, self._thread.start)

    def post(self, work: Work) -> None:
        assert self._thread is not None
        self._thread.post(lambda _: work())

    def post_back(self, work: Work) -> None:
        try:
            self._back.put(work)
        except RuntimeError:
            logger.debug("the broker's loop is closed; dropping a late publication")

    async def stop(self) -> None:
        if self._thread is not None:
            await self._loop.run_in_executor(None, self._thread.stop)


class SameLoopHost:
    """The quorum in the broker's own loop (simulation)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._quorum: RaftQuorum | None = None

    async def start(self, build: BuildQuorum) -> None:
        self._quorum = build(self._loop)
        await self._quorum.start()

    def post(self, work: Work) -> None:
        self._loop.call_soon(work)

    def post_back(self, work: Work) -> None:
        self._loop.call_soon(work)

    async def stop(self) -> None:
        if self._quorum is not None:
            await self._quorum.close()

    def kill(self) -> None:
        if self._quorum is not None:
            self._quorum.kill()


class VoterMetadata:
    """A `MetadataSource` over the quorum of this process.

    `build_node` and `build_quorum` run in the quorum's loop; `broker_address_of` reads the address that a voter has sent.
    """

    def __init__(
        self,
        *,
        node_id: int,
        host: QuorumHost,
        build_node: Callable[[Subscriber], MetadataNode],
        build_quorum: Callable[[asyncio.AbstractEventLoop, MetadataNode], RaftQuorum],
        fatal: Callable[[str], None],
        loop_limit_ms: int,
    ) -> None:
        """`loop_limit_ms`: for how long the broker's loop may be blocked before this voter must not lead the quorum."""
        self._node_id = node_id
        self._watch = LoopWatch(loop_limit_ms)
        self._host = host
        self._build_node = build_node
        self._build_quorum = build_quorum
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._node: MetadataNode | None = None
        self._quorum: RaftQuorum | None = None
        self._quorum_loop: asyncio.AbstractEventLoop | None = None
        self._publish: Subscriber | None = None
        self._unpublished: deque[MetadataPublication] = deque()  # grows only while the quorum is ahead of this loop
        self._is_closed = False

    async def start(self, publish: Subscriber) -> None:
        self._publish = publish
        await self._host.start(self._build)
        self._host.post(self._tick)
        self._host.post(self._watch_loop)

    # --- in the quorum's loop -----------------------------------------------------------------------------------------

    def _build(self, loop: asyncio.AbstractEventLoop) -> RaftQuorum:
        self._quorum_loop = loop
        self._node = self._build_node(self._publish_back)
        self._quorum = self._build_quorum(loop, self._node)
        self._node.attach(self._quorum)
        return self._quorum

    def _publish_back(self, publication: MetadataPublication) -> None:
        if (
            self._quorum is not None and publication.image.cluster_id
        ):  # committed: from now on, other clusters are refused
            self._quorum.set_cluster_id(publication.image.cluster_id)
        self._host.post_back(lambda: self._published(publication))

    def _tick(self) -> None:
        assert self._node is not None and self._quorum_loop is not None
        if self._is_closed:
            return
        now_ms = self._controller_ms()
        try:
            self._node.tick(now_ms)
            if self._node.is_active_controller:
                self._tell_voters(self._node)
            deadline_ms = self._node.next_deadline_ms(now_ms)
        except Exception as error:
            logger.exception("the controller's maintenance failed")
            self._fatal(f"the controller's maintenance failed: {error!r}")
            return
        delay_ms = MAX_TICK_INTERVAL_MS if deadline_ms is None else min(deadline_ms - now_ms, MAX_TICK_INTERVAL_MS)
        self._quorum_loop.call_later(max(delay_ms, MIN_TICK_INTERVAL_MS) / 1000, self._tick)

    def _watch_loop(self) -> None:
        """Check that the broker's loop answers; if not, this voter hands over its leadership and does not campaign."""
        assert self._quorum is not None and self._quorum_loop is not None
        if self._is_closed:
            return
        if self._watch.tick(_now_ms(self._quorum_loop)):
            self._host.post_back(self._answer)
        if self._watch.is_silent and self._quorum.may_lead:
            logger.critical("the broker's event loop stands still node=%d silent_ms=%d: this voter does not lead the quorum"
                            " until it answers", self._node_id, self._watch.silent_ms)  # fmt: skip
            self._quorum.set_may_lead(False)
        self._quorum_loop.call_later(ASK_INTERVAL_MS / 1000, self._watch_loop)

    def _loop_answered(self) -> None:
        assert self._quorum is not None
        self._watch.answered()
        if not self._quorum.may_lead:
            logger.warning("the broker's event loop answers again node=%d: this voter may lead again", self._node_id)
            self._quorum.set_may_lead(True)

    def _controller_ms(self) -> int:
        """The controller's clock. It runs only while the broker's loop can receive heartbeats."""
        assert self._quorum_loop is not None
        return self._watch.heard_ms(_now_ms(self._quorum_loop))

    def _tell_voters(self, node: MetadataNode) -> None:
        assert self._quorum is not None
        now = self._quorum.voters
        if now.index > node.image.voters_index:
            node.note_voters(now.voters, now.index)

    # --- in the broker's loop -----------------------------------------------------------------------------------------

    def _published(self, publication: MetadataPublication) -> None:
        """Publications may come in a burst, and one that creates partitions takes tens of milliseconds of disk time. The loop
        runs between two publications, to serve heartbeats and clients."""
        self._unpublished.append(publication)
        if len(self._unpublished) == 1:
            self._loop.call_soon(self._publish_next)

    def _publish_next(self) -> None:
        if self._is_closed or self._publish is None:
            self._unpublished.clear()
            return
        publication = self._unpublished[0]
        try:
            self._publish(publication)
        finally:
            self._unpublished.popleft()
            if self._unpublished:
                self._loop.call_soon(self._publish_next)

    def _answer(self) -> None:
        if not self._is_closed:
            self._host.post(self._loop_answered)

    async def submit(self, request: ControllerRequest) -> object:
        if isinstance(request, AlterVoters | DescribeVoters):
            return await self._cross(lambda node, _, answer: answer(self._of_the_quorum(node, request)))
        return await self._cross(lambda node, now_ms, answer: node.submit(request, now_ms, answer))

    def _of_the_quorum(self, node: MetadataNode, request: AlterVoters | DescribeVoters) -> object:
        """Runs in the quorum's loop. The controller does not decide about voters: the quorum changes itself."""
        assert self._quorum is not None
        if isinstance(request, DescribeVoters):
            return describe_voters(self._quorum, node.controller.refused_brokers)
        return alter_voters(self._quorum, node.image, request)

    # --- its part in the quorum ---------------------------------------------------------------------------------------

    @property
    def is_voter(self) -> bool:
        """Return whether the newest configuration in the journal has this node as a voter."""
        return self._quorum is not None and self._quorum.is_voter

    @property
    def voters(self) -> VoterSet:
        """The committed voters, as this node knows them."""
        assert self._quorum is not None
        return self._quorum.voters

    @property
    def listens_at(self) -> tuple[str, int]:
        """The address of the quorum port."""
        assert self._quorum is not None
        return self._quorum.listens_at

    def meet(self, voters: VoterSet) -> None:
        """Other nodes report these voters, while this node hears from no leader."""
        quorum = self._quorum
        assert quorum is not None
        self._host.post(lambda: quorum.meet(voters))

    # --- questions ----------------------------------------------------------------------------------------------------

    async def slot_snapshot(self, slot: int) -> tuple[int, Iterable[Record]]:
        return await self._ask(lambda node: node.state.slot_snapshot(slot))

    async def slot_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        return await self._ask(lambda node: node.state.slot_log(slot, log_offset, limit))

    async def feed(
        self, after_offset: int, max_bytes: int, *, node_id: int = -1, applied: MetadataPosition | None = None
    ) -> MetadataFeed:
        feed = await self._ask(lambda node: node.feed(after_offset, max_bytes, node_id=node_id, applied=applied))
        return feed if isinstance(feed, MetadataFeed) else await self._loop.run_in_executor(None, feed)

    async def _ask(self, question: Callable[[MetadataNode], Result]) -> Result:
        return cast(Result, await self._cross(lambda node, _, answer: answer(question(node))))

    async def _cross(self, work: Callable[[MetadataNode, int, Answer], None]) -> object:
        """Run `work` in the quorum's loop, and return its answer, or raise its internal error, in this loop."""
        answer: asyncio.Future[object] = self._loop.create_future()

        def settle(told: object) -> None:
            if answer.done():
                return
            if isinstance(told, Exception):
                answer.set_exception(told)
            else:
                answer.set_result(told)

        def answered(told: object) -> None:
            self._host.post_back(lambda: settle(told))

        def run() -> None:
            assert self._node is not None
            try:
                work(self._node, self._controller_ms(), answered)
            except Exception as error:  # noqa: BLE001 - it belongs to the caller, who would wait for ever
                answered(error)

        self._host.post(run)
        return await answer

    def broker_address(self, node_id: int) -> tuple[str, int] | None:
        if self._quorum is None:
            return None
        told = self._quorum.broker_endpoint_of(node_id)
        return decode_address(told) if told else None

    async def close(self) -> None:
        self._is_closed = True
        await self._host.stop()


def _now_ms(loop: asyncio.AbstractEventLoop) -> int:
    return int(loop.time() * 1000)


def encode_address(host: str, port: int) -> bytes:
    """A voter's broker address as the quorum's hello carries it."""
    return f"{host}:{port}".encode()


def decode_address(told: bytes) -> tuple[str, int] | None:
    """Return None if the bytes are not an address: they come from a peer."""
    host, _, port = told.decode("utf-8", "replace").rpartition(":")
    return (host, int(port)) if host and port.isascii() and port.isdigit() else None

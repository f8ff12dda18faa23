"""The broker's view of the cluster metadata: the newest image, the leader of the quorum, and the subscribers to changes.

Belongs to the broker's loop. A `MetadataSource` supplies the metadata: from a quorum in its own thread, from a quorum in the same
loop (simulation), or from the feed of a voter.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from barnabas.kraft.group_state.offsets_log import SlotLog
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.records import Record
from barnabas.kraft.metadata.requests import ControllerRequest
from barnabas.kraft.node.metadata_feed import MetadataFeed
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.vocabulary.errors import InvalidRequestError, LeaderNotAvailableError, RequestTimedOutError
from barnabas.log.vocabulary.metadata_position import MetadataPosition

logger = logging.getLogger("barnabas.metadata")

Subscriber = Callable[[MetadataPublication], None]
NO_LEADERSHIP = Leadership(leader_id=None, term=0, is_self=False)


class MetadataSource(Protocol):
    """The source of publications, and the recipient of requests to a controller in this process."""

    async def start(self, publish: Subscriber) -> None: ...

    async def submit(self, request: ControllerRequest) -> object:
        """Ask the controller of this node. Raises NotControllerError if it is not active."""

    async def slot_snapshot(self, slot: int) -> tuple[int, Iterable[Record]]:
        """The metadata offset of a snapshot of a slot, and the records that rebuild the slot."""

    async def slot_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        """The records of the slot in `__consumer_offsets` from this offset on."""

    async def feed(
        self, after_offset: int, max_bytes: int, *, node_id: int = -1, applied: MetadataPosition | None = None
    ) -> MetadataFeed:
        """The commands that an observer lacks. Raises NotControllerError on a node without a quorum log."""

    def broker_address(self, node_id: int) -> tuple[str, int] | None:
        """The address of a voter's broker, as learned from the quorum's own connections: needed before registration."""

    async def close(self) -> None: ...


class RoleSource(MetadataSource, Protocol):
    """A source that can change between voter and observer: see `quorum_role`."""

    async def join(self) -> tuple[str, int]:
        """Open this broker's quorum port, start as a learner, and return the address of the port."""

    async def look(self) -> None:
        """Check whether this broker's role in the quorum has changed."""


class MetadataService:
    """Keeps the newest image, and passes every publication to the subscribers, in order."""

    def __init__(self, source: MetadataSource, *, taken_up: Callable[[], int] | None = None) -> None:
        self.source = source
        self.image = MetadataImage()
        self.leadership = NO_LEADERSHIP
        self.is_active_controller = False
        self.quarantined: tuple[str, ...] = ()  # committed records that this broker could not apply
        self._subscribers: list[Subscriber] = []
        self._waiters: dict[asyncio.Future[None], int] = {}  # each with the offset that it waits for
        # they wait until this broker knows the state of its cluster
        self._unknown: dict[asyncio.Future[None], None] = {}
        self._registered_at: int | None = None  # the offset of this process's first registration
        self._known_at_s = 0.0  # loop time at which a leader of the quorum last confirmed the image
        self._taken_up = taken_up  # the offset that the replicas of this broker have applied; None if it has none

    @property
    def role(self) -> RoleSource:
        """Raises InvalidRequestError if the source has only one role (tests)."""
        if not hasattr(self.source, "join"):
            raise InvalidRequestError("this broker cannot change its role in the quorum")
        return cast(RoleSource, self.source)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Subscribers are called synchronously, in order of subscription, and must not raise."""
        self._subscribers.append(subscriber)

    async def start(self) -> None:
        self._known_at_s = asyncio.get_running_loop().time()
        await self.source.start(self._published)

    def confirmed(self) -> None:
        """An active controller has answered, so the image was the newest one recently."""
        self._known_at_s = asyncio.get_running_loop().time()

    def unconfirmed_ms(self) -> int:
        """The time since a leader of the quorum last confirmed that the image is the newest one."""
        return int((asyncio.get_running_loop().time() - self._known_at_s) * 1000)

    async def close(self) -> None:
        for waiter in [*self._waiters, *self._unknown]:
            waiter.cancel()
        await self.source.close()

    def _published(self, publication: MetadataPublication) -> None:
        if publication.leader.leader_id is not None or self.leadership.leader_id is not None:
            self.confirmed()
        if publication.leader.leader_id != self.leadership.leader_id:
            logger.info("quorum leader=%s term=%d", publication.leader.leader_id, publication.leader.term)
        self.image = publication.image
        self.leadership = publication.leader
        self.is_active_controller = publication.is_active_controller
        self.quarantined = publication.quarantined
        for subscriber in self._subscribers:
            subscriber(publication)
        self.progressed()
        self._tell_if_known()

    def registered(self, broker_epoch: int) -> None:
        """The controller has registered this process: an image at this offset or later is not older than this process."""
        if self._registered_at is None:
            self._registered_at = broker_epoch
        self._tell_if_known()

    @property
    def is_current(self) -> bool:
        """Return whether the image contains the registration of this process, and therefore everything committed before it."""
        return self._registered_at is not None and self.image.offset >= self._registered_at

    @property
    def is_known(self) -> bool:
        """Return whether the image may be shown to clients. Until it contains the registration of this process, it is empty or
        the state from the disk: a topic that is not in it may have existed for a long time."""
        return self.is_current and self.image.has_active_brokers

    def _tell_if_known(self) -> None:
        if self._unknown and self.is_known:
            for waiter in self._unknown:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait_until_known(self, *, timeout_ms: int) -> None:
        """Return once `is_known`. Raises LeaderNotAvailableError at the timeout: every client retries after this error."""
        if self.is_known:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unknown[waiter] = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError:
            # Known in the turn of the loop in which the time ended, as after a pause of the process.
            if self.is_known:
                return
            raise LeaderNotAvailableError(
                f"this broker has not received the cluster metadata within {timeout_ms} ms: it has just started, or the quorum "
                "has no leader; try again, or ask another broker"
            ) from None
        finally:
            del self._unknown[waiter]

    @property
    def applied_offset(self) -> int:
        """The offset up to which the image and the replicas of this broker have applied the metadata."""
        return self.image.offset if self._taken_up is None else min(self.image.offset, self._taken_up())

    def progressed(self) -> None:
        """The applied offset may have risen."""
        if not self._waiters:
            return
        applied_offset = self.applied_offset
        for waiter, offset in self._waiters.items():
            if applied_offset >= offset and not waiter.done():
                waiter.set_result(None)

    async def wait_for_offset(self, offset: int, *, timeout_ms: int) -> None:
        """Return once this broker has applied the metadata up to `offset`, so that the caller sees its own change. Raises
        RequestTimedOutError."""
        if self.applied_offset >= offset:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = offset
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError:
            if self.applied_offset >= offset:
                return
            raise RequestTimedOutError(
                f"the change is committed at metadata offset {offset}, but this broker is still at {self.applied_offset}"
            ) from None
        finally:
            del self._waiters[waiter]

"""The broker's view of the cluster metadata: the newest image, who leads, and whoever wants to hear of changes.

Lives in the broker's loop. Where the metadata comes from (a quorum in a thread of its own, the same loop in simulation, or a
feed from a voter) is the business of a `MetadataSource`.
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
    """Where publications come from, and where requests to a controller in this process go."""

    async def start(self, publish: Subscriber) -> None: ...

    async def submit(self, request: ControllerRequest) -> object:
        """Ask the controller of this node. Raises NotControllerError where it is not active."""

    async def slot_snapshot(self, slot: int) -> tuple[int, Iterable[Record]]:
        """The records that rebuild a slot, and the metadata offset that they stand for."""

    async def slot_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        """What `__consumer_offsets` has of the slot from that offset on."""

    async def feed(
        self, after_offset: int, max_bytes: int, *, node_id: int = -1, applied: MetadataPosition | None = None
    ) -> MetadataFeed:
        """What an observer is missing. Raises NotControllerError on a node that holds no quorum log."""

    def broker_address(self, node_id: int) -> tuple[str, int] | None:
        """Where a voter's broker is reached, as the quorum's own connections learned it: needed before registration."""

    async def close(self) -> None: ...


class RoleSource(MetadataSource, Protocol):
    """A source that can change between voter and observer: see `quorum_role`."""

    async def join(self) -> tuple[str, int]:
        """Open this broker's quorum port and learn to become a voter; its address."""

    async def look(self) -> None:
        """Look whether this broker's role in the quorum has changed."""


class MetadataService:
    """Keeps the newest image, and tells subscribers of every publication in order."""

    def __init__(self, source: MetadataSource, *, taken_up: Callable[[], int] | None = None) -> None:
        self.source = source
        self.image = MetadataImage()
        self.leadership = NO_LEADERSHIP
        self.is_active_controller = False
        self.quarantined: tuple[str, ...] = ()  # committed records that this broker could not apply
        self._subscribers: list[Subscriber] = []
        self._waiters: dict[asyncio.Future[None], int] = {}  # the offset that each waits for
        self._unknown: dict[asyncio.Future[None], None] = {}  # who waits until this broker knows its cluster
        self._registered_at: int | None = None  # the offset of this process's first registration
        self._known_at_s = 0.0  # when a leader of the quorum was last known to stand behind the image; time of the loop
        self._taken_up = taken_up  # how far the replicas of this broker have followed; None if it has none

    @property
    def role(self) -> RoleSource:
        """Raises InvalidRequestError where the source has but one role (tests)."""
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
        """An active controller has answered: it would have told of anything newer by now."""
        self._known_at_s = asyncio.get_running_loop().time()

    def unconfirmed_ms(self) -> int:
        """How old the image is if no leader of the quorum can be asked whether it is still the newest."""
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
        """The controller has registered this process: from that offset on, the image is no older than this process."""
        if self._registered_at is None:
            self._registered_at = broker_epoch
        self._tell_if_known()

    @property
    def is_current(self) -> bool:
        """Does the image show the registration of this process, hence everything that was committed before it?"""
        return self._registered_at is not None and self.image.offset >= self._registered_at

    @property
    def is_known(self) -> bool:
        """Is the image one that clients may be told of? Until the registration of this process is in it, it is what the
        process found on its disk, or nothing: a topic that is not in it may have been there for long."""
        return self.is_current and self.image.has_active_brokers

    def _tell_if_known(self) -> None:
        if self._unknown and self.is_known:
            for waiter in self._unknown:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait_until_known(self, *, timeout_ms: int) -> None:
        """Return once `is_known`. Raises LeaderNotAvailableError: what every client takes for "ask again"."""
        if self.is_known:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unknown[waiter] = None
        try:
            await asyncio.wait_for(waiter, timeout_ms / 1000)
        except TimeoutError:
            raise LeaderNotAvailableError(
                f"this broker has not learned the state of its cluster for {timeout_ms} ms: it has just started, or the quorum "
                "has no leader; ask again, or ask another broker"
            ) from None
        finally:
            del self._unknown[waiter]

    @property
    def applied_offset(self) -> int:
        """Up to here the image and the replicas of this broker are as the metadata says."""
        return self.image.offset if self._taken_up is None else min(self.image.offset, self._taken_up())

    def progressed(self) -> None:
        """The applied offset may have risen."""
        applied_offset = self.applied_offset
        for waiter, offset in self._waiters.items():
            if applied_offset >= offset and not waiter.done():
                waiter.set_result(None)

    async def wait_for_offset(self, offset: int, *, timeout_ms: int) -> None:
        """Return once this broker has applied the metadata up to `offset`, so that a caller sees what it was told. Raises
        RequestTimedOutError."""
        if self.applied_offset >= offset:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = offset
        try:
            await asyncio.wait_for(waiter, timeout_ms / 1000)
        except TimeoutError:
            raise RequestTimedOutError(
                f"the change is committed at metadata offset {offset}, but this broker is still at {self.applied_offset}"
            ) from None
        finally:
            del self._waiters[waiter]

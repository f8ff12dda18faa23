"""Copies of the history of lags on other brokers, so that the loss of a coordinator does not lose the hour of its groups.

After each look, a coordinator sends what is new to its keeper: the next broker by node id that is not fenced. A keeper that is
new, or was restarted, gets everything. A broker that begins to coordinate a group asks all others once what they remember of it.
The quorum and the disks have no part in it. If a coordinator and its keeper are lost within one step, so is the hour.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.kraft.metadata.image import BrokerImage
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError
from barnabas.net.wire.protocol.lag import GroupLagHistory, GroupLagsRequest, GroupLagsResponse

from .lag_history import MAX_GROUPS, GroupLags

if TYPE_CHECKING:
    from ...metadata.broker_to_controller import ControllerChannel
    from ...metadata.metadata_service import MetadataService

logger = logging.getLogger("barnabas.broker")

ASK_TIMEOUT_MS: Final = 2_000  # a broker that does not answer in time has no part in it
MAX_ATTEMPTS: Final = 3  # to ask all others about a group, if some of them do not answer
MAX_ITEMS: Final = 3_000  # of one message: an hour of eight groups, or a new point of 600
AT_ONCE: Final = 8  # brokers that are asked


class LagParts(Protocol):
    """The parts of a broker that it works with."""

    @property
    def node_id(self) -> int: ...
    @property
    def controller(self) -> "ControllerChannel": ...
    @property
    def metadata(self) -> "MetadataService": ...


class LagCopies:
    def __init__(self, parts: LagParts, lags: GroupLags, wall_ms: Callable[[], int]) -> None:
        """Before the broker is built: nothing is used of it."""
        self._parts = parts
        self._wall_ms = wall_ms
        self._lags = lags
        # By group that this broker coordinates; MAX_ATTEMPTS: there is no more to ask.
        self._attempts: dict[str, int] = {}
        self._keeper: tuple[int, int] | None = None  # node id and broker epoch of the broker that has what was sent
        self._sent: dict[str, int] = {}  # the time of the last point of a group that the keeper has

    async def adopt(self, group_ids: Sequence[str]) -> None:
        """Learn what other brokers remember of these groups, which this broker coordinates; at once if it has asked before."""
        new = [name for name in group_ids if self._attempts.get(name, 0) < MAX_ATTEMPTS]
        if not new:
            return
        at_once = asyncio.Semaphore(AT_ONCE)

        async def ask(node_id: int) -> bool:
            async with at_once:
                return await self._learn(node_id, new)

        answered = await asyncio.gather(*(ask(peer.node_id) for peer in self._peers()))
        for name in new:
            self._attempts[name] = MAX_ATTEMPTS if all(answered) else self._attempts.get(name, 0) + 1
            self._sent.pop(name, None)  # points that are older than what the keeper has may have come

    def coordinates(self, listed: Iterable[str]) -> None:
        """All groups that this broker coordinates: of one that comes back later, others may know more by then."""
        names = set(listed)
        self._attempts = {name: count for name, count in self._attempts.items() if name in names}

    async def hand_on(self) -> None:
        """Send to the keeper what it does not have yet."""
        keeper = self._next()
        if keeper is None:
            return
        if self._keeper != (keeper.node_id, keeper.broker_epoch):
            self._keeper, self._sent = (keeper.node_id, keeper.broker_epoch), {}
        newest = self._lags.newest_of_own()
        # Of a time after the newest point: the clock was ahead, and such points are forgotten.
        self._sent = {name: at_ms for name, at_ms in self._sent.items() if at_ms <= newest.get(name, -1)}
        due = [name for name, at_ms in newest.items() if at_ms > self._sent.get(name, -1)]
        found = (self._lags.after(name, self._sent.get(name, -1)) for name in due)
        for some in _packed(item for item in found if item is not None):
            if await self._ask(keeper.node_id, GroupLagsRequest(kept=some)) is None:
                return  # the next look sends it
            self._sent |= {item.group_id: item.times_ms[-1] for item in some}

    def answer(self, request: GroupLagsRequest) -> GroupLagsResponse:
        for history in request.kept:
            try:
                self._lags.keep(history, now_ms=self._wall_ms())
            except ValueError as error:
                raise InvalidRequestError(f"the history of group {history.group_id!r} is not valid: {error}") from None
        found: list[GroupLagHistory] = []
        size = looked_at = 0
        for name in request.wanted[:MAX_GROUPS]:
            history_ = self._lags.after(name, -1)
            if history_ is not None:
                size += _size(history_)
                if found and size > MAX_ITEMS:
                    break
                found.append(history_)
            looked_at += 1
        return GroupLagsResponse(groups=tuple(found), looked_at=looked_at)

    async def _learn(self, node_id: int, names: Sequence[str]) -> bool:
        """Whether the broker has answered about all of them."""
        first = 0
        while first < len(names):
            answer = await self._ask(node_id, GroupLagsRequest(wanted=tuple(names[first : first + MAX_GROUPS])))
            if answer is None or answer.looked_at <= 0:
                return False
            for history in answer.groups:
                try:
                    self._lags.keep(history, now_ms=self._wall_ms())
                except ValueError:
                    return False
            first += answer.looked_at
        return True

    async def _ask(self, node_id: int, request: GroupLagsRequest) -> GroupLagsResponse | None:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_MS / 1000):
                answer = await self._parts.controller.ask_broker(node_id, request, timeout_ms=ASK_TIMEOUT_MS)
        except (BarnabasError, OSError, TimeoutError) as error:  # also a broker of an older version
            logger.debug("no copies of lags broker=%d error=%s", node_id, error)
            return None
        assert isinstance(answer, GroupLagsResponse)
        return answer

    def _peers(self) -> list[BrokerImage]:
        brokers = self._parts.metadata.image.brokers.values()
        return [item for item in brokers if not item.fenced and item.node_id != self._parts.node_id]

    def _next(self) -> BrokerImage | None:
        """The keeper: the next one by node id, and the first after the last. One that is about to stop is none."""
        peers = sorted(
            (item for item in self._peers() if not item.in_controlled_shutdown), key=lambda item: item.node_id
        )
        later = [item for item in peers if item.node_id > self._parts.node_id]
        return next(iter(later or peers), None)


def _size(history: GroupLagHistory) -> int:
    return 1 + 3 * len(history.times_ms) + len(history.topics)


def _packed(histories: Iterable[GroupLagHistory]) -> Iterator[tuple[GroupLagHistory, ...]]:
    """As many in a message as have room in it."""
    some: list[GroupLagHistory] = []
    size = 0
    for history in histories:
        size += _size(history)
        if some and size > MAX_ITEMS:
            yield tuple(some)
            some, size = [], _size(history)
        some.append(history)
    if some:
        yield tuple(some)

"""`Coordinators`: the brokers that coordinate the groups and transactional ids of a client: finds them, asks them, and follows
their moves. A group and a transactional id of the same name have the same coordinator."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from barnabas.net.wire.protocol.group_responses import FindCoordinatorResponse
from barnabas.net.wire.protocol.requests import FindCoordinatorRequest, OffsetCommitRequest, Request

from .errors import BarnabasError, ConcurrentTransactionsError, NetworkError, UnstableOffsetCommitError
from .ports import Connection

if TYPE_CHECKING:
    from .client import Client

MOST_CONNECTS = 10  # As long as one attempt to connect lasts (CONNECT_TIMEOUT_MS).
SLOW_CONNECT_S = 0.5  # Longer than any working handshake, even between continents.

# The coordinator answers, and what it was asked for has to wait.
_BUSY: Final = (ConcurrentTransactionsError, UnstableOffsetCommitError)


class Coordinators:
    """Of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._known: dict[str, FindCoordinatorResponse] = {}  # By group, until one is the cause of a failure.
        self._committer = uuid.uuid4().hex
        self._last_commit = 0

    async def call(self, group_id: str, request: Request, *, timeout_ms: int) -> Any:
        """Send a request to the coordinator of a group or transactional id, following its moves, for at most `timeout_ms`."""
        return await self._client.retrying(lambda: self.ask(group_id, request), timeout_ms=timeout_ms)

    async def ask(
        self,
        group_id: str,
        request: Request,
        *,
        timeout_ms: int | None = None,
        on_sending: Callable[[], None] | None = None,
    ) -> Any:
        """Ask the coordinator once. If the coordinator is the cause of a failure, the next call looks it up again.

        `on_sending` is called when the request is about to leave: without that call, no broker has seen it."""
        client = self._client
        coordinator = self._known.get(group_id) or await self._look_up(group_id)
        try:
            coordinator, connection = await self._connected(group_id, coordinator)
            if isinstance(request, OffsetCommitRequest):
                request = self._numbered(request, coordinator.coordinator_epoch)
            if on_sending is not None:
                on_sending()
            response = await connection.call(request, timeout_ms=timeout_ms or client.request_timeout_ms)
        except BarnabasError as error:
            if error.retriable and not isinstance(error, _BUSY):
                self._known.pop(group_id, None)
                client.note_trouble(f"coordinator of {group_id}", error)
            raise
        client.troubles.works(f"coordinator of {group_id}")
        return response

    async def _connected(
        self, group_id: str, coordinator: FindCoordinatorResponse
    ) -> tuple[FindCoordinatorResponse, Connection]:
        """The coordinator and the connection to it. While it accepts none, it is looked up again: if it stands still, other
        brokers name its successor before the attempt to connect is over. That attempt goes on for the next call. Raises
        NetworkError."""
        for earlier in range(MOST_CONNECTS):
            if earlier:
                coordinator = await self._look_up(group_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SLOW_CONNECT_S):
                    return coordinator, await self._client.connect_to(coordinator)
        where = f"{coordinator.host}:{coordinator.port}"
        raise NetworkError(
            f"the coordinator of {group_id!r} at {where} accepts no connection, and has no successor yet"
        )

    async def _look_up(self, group_id: str) -> FindCoordinatorResponse:
        found: FindCoordinatorResponse = await self._client.call_any(FindCoordinatorRequest(group_id=group_id))
        self._known[group_id] = found
        return found

    def _numbered(self, request: OffsetCommitRequest, coordinator_epoch: int) -> OffsetCommitRequest:
        """Give the commit a new number on each attempt. An earlier copy may still arrive on an abandoned connection: the
        coordinator does not accept it after a higher number."""
        if coordinator_epoch < 0:
            return request
        self._last_commit += 1
        return replace(
            request, committer=self._committer, sequence=self._last_commit, coordinator_epoch=coordinator_epoch
        )

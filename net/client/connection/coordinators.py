"""`Coordinators`: the brokers that coordinate the groups and transactional ids of a client: finds them, asks them, and follows
their moves. A group and a transactional id of the same name have the same coordinator."""

import uuid
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from barnabas.net.wire.protocol.group_responses import FindCoordinatorResponse
from barnabas.net.wire.protocol.requests import FindCoordinatorRequest, OffsetCommitRequest, Request

from .errors import BarnabasError, ConcurrentTransactionsError, UnstableOffsetCommitError

if TYPE_CHECKING:
    from .client import Client


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

    async def ask(self, group_id: str, request: Request, *, timeout_ms: int | None = None) -> Any:
        """Ask the coordinator once. If the coordinator is the cause of a failure, the next call looks it up again."""
        client = self._client
        coordinator = self._known.get(group_id)
        if coordinator is None:
            coordinator = await client.call_any(FindCoordinatorRequest(group_id=group_id))
            self._known[group_id] = coordinator
        try:
            connection = await client.connect_to(coordinator)
            if isinstance(request, OffsetCommitRequest):
                request = self._numbered(request, coordinator.coordinator_epoch)
            response = await connection.call(request, timeout_ms=timeout_ms or client.request_timeout_ms)
        except BarnabasError as error:
            if error.retriable and not isinstance(error, _BUSY):
                self._known.pop(group_id, None)
                client.note_trouble(f"coordinator of {group_id}", error)
            raise
        client.troubles.works(f"coordinator of {group_id}")
        return response

    def _numbered(self, request: OffsetCommitRequest, coordinator_epoch: int) -> OffsetCommitRequest:
        """Give the commit a new number on each attempt. An earlier copy may still arrive on an abandoned connection: the
        coordinator does not accept it after a higher number."""
        if coordinator_epoch < 0:
            return request
        self._last_commit += 1
        return replace(
            request, committer=self._committer, sequence=self._last_commit, coordinator_epoch=coordinator_epoch
        )

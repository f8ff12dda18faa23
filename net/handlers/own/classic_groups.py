"""JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14): members of classic groups, whose leader assigns.

Versions: 0; Heartbeat also Kafka's 0-4. Behaviour: joins and syncs wait for the other members. Differs from Kafka: LeaveGroup
takes one member; the answer has no protocol type, because all members of a group share it. A reply leaves once
the quorum has committed its content; `kafka.groups` translates the joins, syncs and leaves of Kafka's clients, and passes them
to these handlers.
"""

from msgspec.structs import replace

from barnabas.consumer_groups.model.classic_messages import LeaveOutcome
from barnabas.log.vocabulary.errors import error_for
from barnabas.log.vocabulary.group_messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.responses import EmptyResponse

from ..common.services import Services


class ClassicGroupHandlers:
    def __init__(self, services: Services) -> None:
        self._groups = services.groups

    async def joined(
        self, asked: JoinGroupRequest, context: RequestContext, *, needs_known_id: bool = True
    ) -> JoinGroupResponse:
        """Handle joins of both protocols."""
        now_ms, client_host = self._groups.now_ms, context.client_host
        told = await self._groups.handle_parked(
            asked.group_id,
            lambda machine, ticket: machine.join_group(
                asked, ticket, now_ms(), client_host=client_host, needs_known_id=needs_known_id
            ),
        )
        assert isinstance(told, JoinGroupResponse)
        return told

    async def left(self, group_id: str, leaving: tuple[LeaveGroupRequest, ...]) -> tuple[LeaveOutcome, ...]:
        """Handle the leaves of one group."""
        return await self._groups.handle(
            group_id,
            lambda machine: machine.leave_group(group_id=group_id, leaving=leaving, now_ms=self._groups.now_ms()),
        )

    async def join(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        return await self.joined(replace(request, client_id=request.client_id or context.client_id), context)

    async def sync(self, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
        told = await self._groups.handle_parked(
            request.group_id, lambda machine, ticket: machine.sync_group(request, ticket, self._groups.now_ms())
        )
        assert isinstance(told, SyncGroupResponse)
        return told

    async def heartbeat(self, request: HeartbeatRequest, context: RequestContext) -> EmptyResponse:
        await self._groups.handle(
            request.group_id, lambda machine: machine.heartbeat_classic(request, self._groups.now_ms())
        )
        return EmptyResponse()

    async def leave(self, request: LeaveGroupRequest, context: RequestContext) -> EmptyResponse:
        (outcome,) = await self.left(request.group_id, (request,))
        if outcome.error:
            raise error_for(outcome.error, f"member {request.member_id!r} of group {request.group_id} cannot leave")
        return EmptyResponse()

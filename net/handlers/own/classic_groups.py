"""JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14): members of classic groups, whose leader assigns.

Versions: 0; Heartbeat also Kafka's 0-4. Behaviour: joins and syncs wait for the other members. Differs from Kafka: LeaveGroup
takes one member; the answer tells no protocol type, which the members of a group have in common anyway. A reply leaves once
the quorum has committed what it tells; `kafka.groups` translates the joins, syncs and leaves of Kafka's clients, and has them
answered here.
"""

from barnabas.consumer_groups.model.classic_messages import (
    JoinAnswer,
    JoinRequest,
    LeaveOutcome,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from barnabas.log.vocabulary.errors import error_for
from barnabas.net.protocol.group_responses import JoinedMember, JoinGroupResponse, SyncGroupResponse
from barnabas.net.protocol.requests import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from barnabas.net.protocol.responses import EmptyResponse
from barnabas.net.server.dispatcher import RequestContext

from ..common.services import Services


class ClassicGroupHandlers:
    def __init__(self, services: Services) -> None:
        self._groups = services.groups

    async def joined(self, asked: JoinRequest) -> JoinAnswer:
        """Both protocols' joins, as the coordinator knows them."""
        told = await self._groups.handle_parked(
            asked.group_id, lambda machine, ticket: machine.join_group(asked, ticket, self._groups.now_ms())
        )
        assert isinstance(told, JoinAnswer)
        return told

    async def synced(self, asked: SyncRequest) -> SyncAnswer:
        told = await self._groups.handle_parked(
            asked.group_id, lambda machine, ticket: machine.sync_group(asked, ticket, self._groups.now_ms())
        )
        assert isinstance(told, SyncAnswer)
        return told

    async def left(self, group_id: str, leaving: tuple[LeavingMember, ...]) -> tuple[LeaveOutcome, ...]:
        return await self._groups.handle(
            group_id,
            lambda machine: machine.leave_group(group_id=group_id, leaving=leaving, now_ms=self._groups.now_ms()),
        )

    async def join(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        asked = JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.instance_id,
            client_id=request.client_id or context.client_id,
            client_host=context.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((item.name, item.metadata) for item in request.protocols),
            reason=request.reason,
        )
        told = await self.joined(asked)
        return JoinGroupResponse(
            member_id=told.member_id,
            error=int(told.error),
            generation=told.generation,
            protocol_name=told.protocol_name,
            leader_id=told.leader_id,
            members=tuple(
                JoinedMember(member_id=member.member_id, instance_id=member.instance_id, metadata=member.metadata)
                for member in told.members
            ),
            skip_assignment=told.skip_assignment,
        )

    async def sync(self, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
        asked = SyncRequest(
            group_id=request.group_id,
            generation=request.generation,
            member_id=request.member_id,
            instance_id=request.instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=tuple((item.member_id, item.assignment) for item in request.assignments),
        )
        told = await self.synced(asked)
        return SyncGroupResponse(protocol_name=told.protocol_name, assignment=told.assignment)

    async def heartbeat(self, request: HeartbeatRequest, context: RequestContext) -> EmptyResponse:
        await self._groups.handle(
            request.group_id,
            lambda machine: machine.heartbeat_classic(
                group_id=request.group_id,
                generation=request.generation,
                member_id=request.member_id,
                instance_id=request.instance_id,
                now_ms=self._groups.now_ms(),
            ),
        )
        return EmptyResponse()

    async def leave(self, request: LeaveGroupRequest, context: RequestContext) -> EmptyResponse:
        leaving = LeavingMember(member_id=request.member_id, instance_id=request.instance_id, reason=request.reason)
        (outcome,) = await self.left(request.group_id, (leaving,))
        if outcome.error:
            raise error_for(outcome.error, f"member {request.member_id!r} of group {request.group_id} cannot leave")
        return EmptyResponse()

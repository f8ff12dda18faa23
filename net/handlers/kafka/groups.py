"""FindCoordinator (10), JoinGroup (11), LeaveGroup (13), SyncGroup (14), ConsumerGroupHeartbeat (68): members of groups, for
Kafka's clients.

Versions: 0-4, 0-9, 0-5, 0-5, 0-1. Behaviour: joins and syncs wait for the other members; any refusal is the answer's error
code. Differs from Kafka: a member whose connection closes before its first join is answered is removed at once; Kafka waits for
its session or the rebalance.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.consumer_groups.model.classic_messages import LeaveOutcome
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    InvalidRequestError,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    GroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberAssignment,
    SyncGroupRequest,
    TopicPartitions,
)
from barnabas.net.base.settings.group_config import default_session_ms
from barnabas.net.base.slices import sliced
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.requests import FindCoordinatorRequest

from ..common.many import once
from ..common.services import Services
from ..own.classic_groups import ClassicGroupHandlers
from ..own.groups import GroupHandlers

_KEY_IS_GROUP, _KEY_IS_TRANSACTION = 0, 1
_MANY_KEYS_SINCE = 4  # of FindCoordinator
_KNOWN_ID_SINCE = 4  # of JoinGroup (KIP-394)
_SKIP_ASSIGNMENT_SINCE = 9  # of JoinGroup (KIP-814)
_MANY_MEMBERS_SINCE = 3  # of LeaveGroup
LEAVING_PER_DECISION = 500  # takes a few milliseconds; a request may name 20,000 members, and each has its own outcome


class KafkaGroupHandlers:
    def __init__(self, services: Services, own: GroupHandlers, classic: ClassicGroupHandlers) -> None:
        self._services = services
        self._groups = services.groups
        self._own = own
        self._classic = classic
        self._default_session_ms = default_session_ms(services.config)

    # --- where a group is ---------------------------------------------------------------------------------------------

    async def find_coordinator(
        self, request: KafkaRequest[bodies.FindCoordinatorRequest], context: RequestContext
    ) -> KafkaResponse[bodies.FindCoordinatorResponse]:
        body, answer = request.body, bodies.FindCoordinatorResponse
        if request.version < _MANY_KEYS_SINCE:
            found = await self._coordinator(body.key, body.key_type, context)
            only = answer(
                error_code=found.error_code,
                error_message=found.error_message,
                node_id=found.node_id,
                host=found.host,
                port=found.port,
            )
            return KafkaResponse(body=only)
        coordinators = [
            await self._coordinator(key, body.key_type, context)
            async for key in sliced(once(body.coordinator_keys), self._groups.now_ms)
        ]
        return KafkaResponse(body=answer(coordinators=coordinators))

    async def _coordinator(
        self, key: str, key_type: int, context: RequestContext
    ) -> bodies.FindCoordinatorResponse.Coordinator:
        made = bodies.FindCoordinatorResponse.Coordinator
        try:
            if key_type not in (_KEY_IS_GROUP, _KEY_IS_TRANSACTION):  # both are in the slot of their id
                raise InvalidRequestError(
                    f"coordinator type {key_type} is not supported; use 0 (group) or 1 (transaction)"
                )
            found = await self._own.find_coordinator(FindCoordinatorRequest(group_id=key), context)
        except BarnabasError as error:
            return made(key=key, error_code=error.code, error_message=error.message, node_id=-1, host="", port=-1)
        return made(key=key, node_id=found.node_id, host=found.host, port=found.port, error_message=None)

    # --- classic members ----------------------------------------------------------------------------------------------

    async def join(
        self, request: KafkaRequest[bodies.JoinGroupRequest], context: RequestContext
    ) -> KafkaResponse[bodies.JoinGroupResponse]:
        body = request.body
        asked = JoinGroupRequest(
            group_id=body.group_id,
            member_id=body.member_id,
            instance_id=body.group_instance_id,
            client_id=context.client_id,
            session_timeout_ms=body.session_timeout_ms,
            rebalance_timeout_ms=body.session_timeout_ms
            if body.rebalance_timeout_ms < 0
            else body.rebalance_timeout_ms,
            protocol_type=body.protocol_type,
            protocols=tuple(GroupProtocol(name=item.name, metadata=item.metadata) for item in body.protocols),
            reason=body.reason or "",
        )
        told = await self._classic.joined(asked, context, needs_known_id=request.version >= _KNOWN_ID_SINCE)
        return KafkaResponse(body=_join_response(told, body.protocol_type, request.version))

    async def sync(
        self, request: KafkaRequest[bodies.SyncGroupRequest], context: RequestContext
    ) -> KafkaResponse[bodies.SyncGroupResponse]:
        body = request.body
        asked = SyncGroupRequest(
            group_id=body.group_id,
            generation=body.generation_id,
            member_id=body.member_id,
            instance_id=body.group_instance_id,
            protocol_type=body.protocol_type,
            protocol_name=body.protocol_name,
            assignments=tuple(
                MemberAssignment(member_id=item.member_id, assignment=item.assignment) for item in body.assignments
            ),
        )
        told = await self._classic.sync(asked, context)
        made = bodies.SyncGroupResponse(
            protocol_type=body.protocol_type, protocol_name=told.protocol_name, assignment=told.assignment
        )
        return KafkaResponse(body=made)

    async def leave(
        self, request: KafkaRequest[bodies.LeaveGroupRequest], context: RequestContext
    ) -> KafkaResponse[bodies.LeaveGroupResponse]:
        body = request.body
        if request.version < _MANY_MEMBERS_SINCE:
            leaving: tuple[LeaveGroupRequest, ...] = (
                LeaveGroupRequest(group_id=body.group_id, member_id=body.member_id),
            )
        else:
            leaving = tuple(
                LeaveGroupRequest(
                    group_id=body.group_id,
                    member_id=item.member_id,
                    instance_id=item.group_instance_id,
                    reason=item.reason or "",
                )
                for item in body.members
            )
        outcomes: list[LeaveOutcome] = []
        for start in range(0, len(leaving) or 1, LEAVING_PER_DECISION):
            outcomes += await self._classic.left(body.group_id, leaving[start : start + LEAVING_PER_DECISION])
        if request.version < _MANY_MEMBERS_SINCE:
            return KafkaResponse(body=bodies.LeaveGroupResponse(error_code=outcomes[0].error))
        members = [
            bodies.LeaveGroupResponse.MemberResponse(
                member_id=outcome.member_id, group_instance_id=outcome.instance_id, error_code=outcome.error
            )
            for outcome in outcomes
        ]
        return KafkaResponse(body=bodies.LeaveGroupResponse(members=members))

    # --- members by KIP-848 -------------------------------------------------------------------------------------------

    async def consumer_heartbeat(
        self, request: KafkaRequest[bodies.ConsumerGroupHeartbeatRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ConsumerGroupHeartbeatResponse]:
        body = request.body
        names = body.subscribed_topic_names
        asked = ConsumerGroupHeartbeatRequest(
            group_id=body.group_id,
            member_id=body.member_id,
            member_epoch=body.member_epoch,
            instance_id=body.instance_id,
            rack=body.rack_id,
            subscribed_topics=None if names is None else tuple(sorted(names)),
            subscribed_pattern=body.subscribed_topic_regex,
            rebalance_timeout_ms=body.rebalance_timeout_ms,
            session_timeout_ms=self._default_session_ms,  # Kafka's clients do not send one
            assignor=body.server_assignor,
            owned=None if body.topic_partitions is None else self._by_name(body.topic_partitions),
        )
        told = await self._own.heartbeat(asked, context)
        made = bodies.ConsumerGroupHeartbeatResponse(
            member_id=told.member_id,
            member_epoch=told.member_epoch,
            heartbeat_interval_ms=told.heartbeat_interval_ms,
        )
        if told.assignment is not None:
            made.assignment = bodies.ConsumerGroupHeartbeatResponse.Assignment(
                topic_partitions=self._by_id(told.assignment)
            )
        return KafkaResponse(body=made)

    def _by_name(
        self, items: Sequence[bodies.ConsumerGroupHeartbeatRequest.TopicPartitions]
    ) -> tuple[TopicPartitions, ...]:
        """Deleted topics are left out of the assignment."""
        topic_names = self._services.metadata.image.topic_names
        return tuple(
            TopicPartitions(topic=name, partitions=tuple(sorted(item.partitions)))
            for item in items
            if (name := topic_names.get(item.topic_id.hex())) is not None
        )

    def _by_id(self, items: tuple[TopicPartitions, ...]) -> list[bodies.ConsumerGroupHeartbeatResponse.TopicPartitions]:
        topics = self._services.metadata.image.topics
        return [
            bodies.ConsumerGroupHeartbeatResponse.TopicPartitions(
                topic_id=bytes.fromhex(topics[item.topic].topic_id), partitions=item.partitions
            )
            for item in items
            if item.topic in topics
        ]


def _join_response(told: JoinGroupResponse, protocol_type: str, version: int) -> bodies.JoinGroupResponse:
    # A client that cannot be told to skip the assignment must not believe that it leads: it would assign without the members.
    is_follower_in_effect = told.skip_assignment and version < _SKIP_ASSIGNMENT_SINCE
    members = [
        bodies.JoinGroupResponse.JoinGroupResponseMember(
            member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
        )
        for member in told.members
    ]
    return bodies.JoinGroupResponse(
        error_code=told.error,
        generation_id=told.generation,
        protocol_type=None if told.error else protocol_type,  # all members have the group's type
        protocol_name=told.protocol_name or (None if version >= 7 and told.error != ErrorCode.NONE else ""),
        leader="" if is_follower_in_effect else told.leader_id,
        skip_assignment=told.skip_assignment,
        member_id=told.member_id,
        members=[] if is_follower_in_effect else members,
    )

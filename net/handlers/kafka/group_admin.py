"""DescribeGroups (15), ListGroups (16), DeleteGroups (42), ConsumerGroupDescribe (69): groups for admin tools.

Versions: 0-5, 0-5, 0-2, 0-1. Behaviour: a broker lists the groups that it coordinates; an unknown group is "Dead". Differs from
Kafka: DescribeGroups also shows groups of the newer protocol, in the form of the classic one, because many tools know only that.

Our own ListGroups and DescribeGroups (`own.groups`) have other handlers because their meaning differs: they use the phases of
the coordinator instead of Kafka's states, refuse an unknown group, and explain what a group waits for. They cannot express
filters, many groups in one request, or the subscriptions of classic members in bytes. Both ask the same coordinator; a
deletion means the same and has one handler.
"""

from __future__ import annotations

from barnabas.consumer_groups.model.messages import DescribedMember, GroupDescription
from barnabas.consumer_groups.model.partitions import to_set
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.kraft.group_state.group_slots import CLASSIC_PROTOCOL
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, GroupIdNotFoundError
from barnabas.log.vocabulary.group_messages import TopicPartitions
from barnabas.log.vocabulary.group_protocol import ClientSubscription, encode_assignment, encode_subscription
from barnabas.log.vocabulary.share.messages import SHARE_PROTOCOL
from barnabas.net.base.slices import sliced
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import OPERATIONS_NOT_ASKED, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.requests import DeleteGroupRequest

from ..common.answer_room import AnswerRoom, size_of_group
from ..common.many import once
from ..common.services import Services
from ..own.groups import GroupHandlers
from .access import ALL_GROUP_OPERATIONS

_CLASSIC_STATES = {
    GroupPhase.EMPTY: "Empty",
    GroupPhase.PREPARING_REBALANCE: "PreparingRebalance",
    GroupPhase.ASSIGNING: "PreparingRebalance",
    GroupPhase.COMPLETING_REBALANCE: "CompletingRebalance",
    GroupPhase.RECONCILING: "CompletingRebalance",
    GroupPhase.STABLE: "Stable",
    GroupPhase.DEAD: "Dead",
}
_CONSUMER_STATES = {**_CLASSIC_STATES, GroupPhase.ASSIGNING: "Assigning", GroupPhase.RECONCILING: "Reconciling"}


FEWER_GROUPS = "describe fewer groups in one request"
_TYPES = {CLASSIC_PROTOCOL: "Classic", SHARE_PROTOCOL: "Share"}


class KafkaGroupAdminHandlers:
    def __init__(self, services: Services, own: GroupHandlers) -> None:
        self._services = services
        self._groups = services.groups
        self._own = own

    async def list(
        self, request: KafkaRequest[bodies.ListGroupsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ListGroupsResponse]:
        states = {state.lower() for state in request.body.states_filter}
        kinds = {kind.lower() for kind in request.body.types_filter}
        groups = []
        async for machine in sliced(self._groups.slots(), self._groups.now_ms):
            for group in machine.list_groups():
                is_classic = group.protocol == CLASSIC_PROTOCOL
                state = (_CLASSIC_STATES if is_classic else _CONSUMER_STATES)[group.phase]
                if (states and state.lower() not in states) or (kinds and group.protocol not in kinds):
                    continue
                groups.append(
                    bodies.ListGroupsResponse.ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type,
                        group_state=state,
                        group_type=_TYPES.get(group.protocol, "Consumer"),
                    )
                )
        return KafkaResponse(body=bodies.ListGroupsResponse(groups=groups))

    async def describe(
        self, request: KafkaRequest[bodies.DescribeGroupsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeGroupsResponse]:
        groups = []
        with AnswerRoom(self._services.memory, FEWER_GROUPS) as room:
            async for group_id in sliced(once(request.body.groups), self._groups.now_ms):
                try:
                    group = _described(await self._found(group_id, room))
                    group.authorized_operations = _operations(request)
                except BarnabasError as error:
                    group = bodies.DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=error.code)
                groups.append(group)
        return KafkaResponse(body=bodies.DescribeGroupsResponse(groups=groups))

    async def describe_consumer_groups(
        self, request: KafkaRequest[bodies.ConsumerGroupDescribeRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ConsumerGroupDescribeResponse]:
        with AnswerRoom(self._services.memory, FEWER_GROUPS) as room:
            groups = [
                await self._described_consumer_group(group_id, request, room)
                async for group_id in sliced(once(request.body.group_ids), self._groups.now_ms)
            ]
        return KafkaResponse(body=bodies.ConsumerGroupDescribeResponse(groups=groups))

    async def _described_consumer_group(
        self, group_id: str, request: KafkaRequest[bodies.ConsumerGroupDescribeRequest], room: AnswerRoom
    ) -> bodies.ConsumerGroupDescribeResponse.DescribedGroup:
        try:
            found = await self._found(group_id, room)
            if not found.protocol:
                raise GroupIdNotFoundError(f"there is no group {group_id}")
            if found.phase is GroupPhase.DEAD or found.protocol in _TYPES:
                raise GroupIdNotFoundError(f"group {group_id} is not a consumer group")
        except BarnabasError as error:
            return bodies.ConsumerGroupDescribeResponse.DescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.message
            )
        group = self._consumer_group(found)
        group.authorized_operations = _operations(request)
        return group

    async def delete(
        self, request: KafkaRequest[bodies.DeleteGroupsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DeleteGroupsResponse]:
        results = [
            bodies.DeleteGroupsResponse.DeletableGroupResult(
                group_id=group_id, error_code=await self._deleted(group_id, context)
            )
            async for group_id in sliced(once(request.body.groups_names), self._groups.now_ms)
        ]
        return KafkaResponse(body=bodies.DeleteGroupsResponse(results=results))

    async def _deleted(self, group_id: str, context: RequestContext) -> ErrorCode:
        try:
            await self._own.delete_group(DeleteGroupRequest(group_id=group_id), context)
        except BarnabasError as error:
            return error.code
        return ErrorCode.NONE

    async def _found(self, group_id: str, room: AnswerRoom) -> GroupDescription:
        found = await self._groups.handle_slot(group_id, lambda machine: machine.describe_group(group_id))
        room.take(size_of_group(found))
        return found

    def _consumer_group(self, found: GroupDescription) -> bodies.ConsumerGroupDescribeResponse.DescribedGroup:
        members = [
            bodies.ConsumerGroupDescribeResponse.Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.subscribed_topics,
                subscribed_topic_regex=member.subscribed_pattern,
                assignment=self._assignment(member.assigned),
                target_assignment=self._assignment(member.target),
                member_type=1,
            )
            for member in found.members
        ]
        return bodies.ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=found.group_id,
            group_state=_CONSUMER_STATES[found.phase],
            group_epoch=found.group_epoch,
            assignment_epoch=found.assignment_epoch,
            assignor_name=found.assignor,
            members=members,
        )

    def _assignment(self, assigned: tuple[TopicPartitions, ...]) -> bodies.ConsumerGroupDescribeResponse.Assignment:
        topics = self._services.metadata.image.topics
        return bodies.ConsumerGroupDescribeResponse.Assignment(
            topic_partitions=[
                bodies.ConsumerGroupDescribeResponse.TopicPartitions(
                    topic_id=bytes.fromhex(topics[item.topic].topic_id),
                    topic_name=item.topic,
                    partitions=item.partitions,
                )
                for item in assigned
                if item.topic in topics
            ]
        )


def _operations(
    request: KafkaRequest[bodies.DescribeGroupsRequest] | KafkaRequest[bodies.ConsumerGroupDescribeRequest],
) -> int:
    """All; with an authorizer, `net/server/access` leaves those that this client has."""
    return ALL_GROUP_OPERATIONS if request.body.include_authorized_operations else OPERATIONS_NOT_ASKED


def _described(found: GroupDescription) -> bodies.DescribeGroupsResponse.DescribedGroup:
    is_classic = found.protocol == CLASSIC_PROTOCOL
    return bodies.DescribeGroupsResponse.DescribedGroup(
        group_id=found.group_id,
        group_state=_CLASSIC_STATES[found.phase],
        protocol_type=found.protocol_type,
        protocol_data=found.assignor if found.members else "",
        members=[
            bodies.DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.classic_metadata if is_classic else _as_subscription(member),
                member_assignment=member.classic_assignment
                if is_classic
                else encode_assignment(to_set(member.assigned)),
            )
            for member in found.members
        ],
    )


def _as_subscription(member: DescribedMember) -> bytes:
    return encode_subscription(ClientSubscription(topics=member.subscribed_topics, owned=to_set(member.assigned)))

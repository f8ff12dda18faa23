"""ShareGroupDescribe (77), DescribeShareGroupOffsets (90), AlterShareGroupOffsets (91), DeleteShareGroupOffsets (92): share
groups for admin tools.

Versions: 1, 0-1, 0, 0. Behaviour: the coordinator of each group answers from its own state; offsets are changed only while the
group has no members. The lag is that of KIP-1226; -1 for a partition whose leader does not tell its end within two seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from barnabas.consumer_groups.model.messages import GroupDescription
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.kraft.metadata.records import ShareStateRecord
from barnabas.log.vocabulary.errors import BarnabasError, GroupIdNotFoundError
from barnabas.log.vocabulary.group_messages import PartitionOffset, TopicPartitions
from barnabas.log.vocabulary.share.messages import SHARE_PROTOCOL
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.slices import sliced
from barnabas.net.coordination.shares.log_ends import LogEnds, share_lag
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import NO_TOPIC_ID, OPERATIONS_NOT_ASKED, KafkaRequest, KafkaResponse

from ..common.answer_room import ENTRY_BYTES, AnswerRoom, size_of_group
from ..common.many import check_all_once, once
from ..common.services import Services
from ..kafka.access import ALL_GROUP_OPERATIONS
from ..kafka.group_admin import FEWER_GROUPS

_STATES = {GroupPhase.EMPTY: "Empty", GroupPhase.STABLE: "Stable"}
_NO_START = -1  # the group has not read the partition
_NO_LAG = -1  # not known


class KafkaShareAdminHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._groups = services.groups
        self._log_ends = LogEnds(
            node_id=services.node_id, replication=services.replication, controller=services.controller
        )

    async def describe(
        self, request: KafkaRequest[bodies.ShareGroupDescribeRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ShareGroupDescribeResponse]:
        with AnswerRoom(self._services.memory, FEWER_GROUPS) as room:
            groups = [
                await self._described(group_id, request, room)
                async for group_id in sliced(once(request.body.group_ids), self._groups.now_ms)
            ]
        return KafkaResponse(body=bodies.ShareGroupDescribeResponse(groups=groups))

    async def _described(
        self, group_id: str, request: KafkaRequest[bodies.ShareGroupDescribeRequest], room: AnswerRoom
    ) -> bodies.ShareGroupDescribeResponse.DescribedGroup:
        answer = bodies.ShareGroupDescribeResponse.DescribedGroup
        try:
            found = await self._found(group_id)
            if not found.protocol:
                raise GroupIdNotFoundError(f"there is no group {group_id}")
            if found.protocol != SHARE_PROTOCOL:
                raise GroupIdNotFoundError(f"group {group_id} is not a share group")
            room.take(size_of_group(found))
        except BarnabasError as error:
            return answer(group_id=group_id, error_code=error.code, error_message=error.message)
        group = self._share_group(found)
        asked = request.body.include_authorized_operations
        group.authorized_operations = ALL_GROUP_OPERATIONS if asked else OPERATIONS_NOT_ASKED
        return group

    async def _found(self, group_id: str) -> GroupDescription:
        return await self._groups.handle_slot(group_id, lambda machine: machine.describe_group(group_id))

    def _share_group(self, found: GroupDescription) -> bodies.ShareGroupDescribeResponse.DescribedGroup:
        answer = bodies.ShareGroupDescribeResponse
        return answer.DescribedGroup(
            group_id=found.group_id,
            group_state=_STATES[found.phase],
            group_epoch=found.group_epoch,
            assignment_epoch=found.assignment_epoch,
            assignor_name=found.assignor,
            members=[
                answer.Member(
                    member_id=member.member_id,
                    rack_id=member.rack,
                    member_epoch=member.member_epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=member.subscribed_topics,
                    assignment=self._assignment(member.assigned),
                )
                for member in found.members
            ],
        )

    def _assignment(self, assigned: tuple[TopicPartitions, ...]) -> bodies.ShareGroupDescribeResponse.Assignment:
        answer = bodies.ShareGroupDescribeResponse
        return answer.Assignment(
            topic_partitions=[
                answer.TopicPartitions(
                    topic_id=self._topic_id(item.topic), topic_name=item.topic, partitions=item.partitions
                )
                for item in assigned
            ]
        )

    # --- offsets ------------------------------------------------------------------------------------------------------

    async def describe_offsets(
        self, request: KafkaRequest[bodies.DescribeShareGroupOffsetsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeShareGroupOffsetsResponse]:
        check_all_once("group", (group.group_id for group in request.body.groups))
        with AnswerRoom(self._services.memory, "describe the offsets of fewer groups in one request") as room:
            groups = [
                await self._described_offsets(group, room)
                async for group in sliced(request.body.groups, self._groups.now_ms)
            ]
        return KafkaResponse(body=bodies.DescribeShareGroupOffsetsResponse(groups=groups))

    async def _described_offsets(
        self, group: bodies.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup, room: AnswerRoom
    ) -> bodies.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup:
        group_id, answer = (
            group.group_id,
            bodies.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup,
        )
        try:
            states = await self._states(group_id)
            if group.topics is None:
                wanted = list(states)
            else:
                wanted = list(once((topic.topic_name, number) for topic in group.topics for number in topic.partitions))
            room.take(sum(ENTRY_BYTES + len(topic) for topic, _ in wanted))
        except BarnabasError as error:
            return answer(group_id=group_id, topics=[], error_code=error.code, error_message=error.message)
        ends = await self._log_ends.of(TopicPartition(*key) for key in wanted if key in states)
        return answer(group_id=group_id, topics=self._offsets(states, wanted, ends), error_message=None)

    async def _states(self, group_id: str) -> dict[tuple[str, int], ShareStateRecord]:
        found = await self._groups.handle_slot(group_id, lambda machine: machine.shares.states.of_group(group_id))
        return {(state.topic, state.partition): state for state in found}

    def _offsets(
        self,
        states: dict[tuple[str, int], ShareStateRecord],
        wanted: Iterable[tuple[str, int]],
        ends: Mapping[TopicPartition, int],
    ) -> list[bodies.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic]:
        make_topic = bodies.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic
        make_partition = bodies.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition
        found = []
        for topic, keys in groupby(sorted(wanted), key=lambda key: key[0]):
            partitions = []
            for key in keys:
                state = states.get(key)
                partitions.append(
                    make_partition(
                        partition_index=key[1],
                        start_offset=_NO_START if state is None else state.start_offset,
                        leader_epoch=0 if state is None else max(0, state.leader_epoch),
                        lag=_lag(state, ends.get(TopicPartition(*key))),
                        error_message=None,
                    )
                )
            found.append(make_topic(topic_name=topic, topic_id=self._topic_id(topic), partitions=partitions))
        return found

    async def alter_offsets(
        self, request: KafkaRequest[bodies.AlterShareGroupOffsetsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.AlterShareGroupOffsetsResponse]:
        body, groups, answer = request.body, self._groups, bodies.AlterShareGroupOffsetsResponse
        offsets = tuple(
            PartitionOffset(topic=topic.topic_name, partition=item.partition_index, offset=item.start_offset)
            for topic in body.topics
            for item in topic.partitions
        )
        outcomes = await groups.handle_slot(
            body.group_id,
            lambda machine: machine.shares.states.alter_offsets(
                body.group_id, offsets, groups.topic_ids, groups.now_ms()
            ),
        )
        topics = [
            answer.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic,
                topic_id=self._topic_id(topic),
                partitions=[
                    answer.AlterShareGroupOffsetsResponsePartition(
                        partition_index=item.partition, error_code=item.error, error_message=item.message or None
                    )
                    for item in items
                ],
            )
            for topic, items in groupby(outcomes, key=lambda item: item.topic)
        ]
        return KafkaResponse(body=answer(responses=topics, error_message=None))

    async def delete_offsets(
        self, request: KafkaRequest[bodies.DeleteShareGroupOffsetsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DeleteShareGroupOffsetsResponse]:
        body, groups, answer = request.body, self._groups, bodies.DeleteShareGroupOffsetsResponse
        names = tuple(once(topic.topic_name for topic in body.topics))
        outcomes = await groups.handle_slot(
            body.group_id, lambda machine: machine.shares.states.delete_offsets(body.group_id, names, groups.now_ms())
        )
        topics = [
            answer.DeleteShareGroupOffsetsResponseTopic(
                topic_name=item.topic,
                topic_id=self._topic_id(item.topic),
                error_code=item.error,
                error_message=item.message or None,
            )
            for item in outcomes
        ]
        return KafkaResponse(body=answer(responses=topics, error_message=None))

    def _topic_id(self, name: str) -> bytes:
        topic = self._services.metadata.image.topics.get(name)
        return NO_TOPIC_ID if topic is None else bytes.fromhex(topic.topic_id)


def _lag(state: ShareStateRecord | None, log_end_offset: int | None) -> int:
    if state is None or log_end_offset is None:
        return _NO_LAG
    return share_lag(state.start_offset, state.ranges, log_end_offset)

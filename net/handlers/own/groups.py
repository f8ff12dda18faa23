"""FindCoordinator (10), ConsumerGroupHeartbeat (68), OffsetCommit (8), OffsetFetch (9), ListGroups (16), DescribeGroups (15),
DeleteGroup (42), ResetOffsets (1002), UndoOffsetReset (1011), DeleteOffsets (1024): consumer groups.

Versions: 0; OffsetCommit also Kafka's 2-9. Behaviour: KIP-848's, with the coordinator of the group's slot; any other broker
answers NOT_COORDINATOR. A reply leaves once the quorum has committed its content. Differs from Kafka: ResetOffsets works on
a group that is running, and on a share group without members.
"""

from itertools import groupby
from operator import itemgetter
from typing import Final

from msgspec.structs import replace

from barnabas.consumer_groups.model.messages import CommitPlace
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError, GroupIdNotFoundError, error_for
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
    UndoOffsetResetResponse,
)
from barnabas.log.vocabulary.share.messages import SHARE_PROTOCOL, SharePartitionView
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.group_responses import (
    DescribeGroupResponse,
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from barnabas.net.wire.protocol.requests import (
    DeleteGroupRequest,
    DeleteOffsetsRequest,
    DescribeGroupRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ResetOffsetsRequest,
    UndoOffsetResetRequest,
)
from barnabas.net.wire.protocol.responses import EmptyResponse

from ..common.answer_room import AnswerRoom, size_of_offsets
from ..common.services import Services
from .group_descriptions import group_description

VIEW_BYTES: Final = 200  # of a partition of a share group: its names, and a count for each number of deliveries


class GroupHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._groups = services.groups

    async def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        slot = self._groups.place_of(request.group_id)
        broker = self._services.metadata.image.brokers.get(slot.coordinator)
        if broker is None:
            raise CoordinatorNotAvailableError(f"the coordinator of {request.group_id!r} is leaving the cluster; retry")
        endpoint = broker.endpoint(context.listener_name)
        return FindCoordinatorResponse(
            node_id=slot.coordinator,
            host=endpoint.host,
            port=endpoint.port,
            coordinator_epoch=slot.coordinator_epoch,
        )

    # --- members ------------------------------------------------------------------------------------------------------

    async def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        times = self._services.group_times(request.group_id)
        session_timeout_ms = request.session_timeout_ms if times.session_timeout_ms < 0 else times.session_timeout_ms
        asked = replace(
            request, client_id=request.client_id or context.client_id, session_timeout_ms=session_timeout_ms
        )
        groups, client_host, interval_ms = self._groups, context.client_host, times.heartbeat_interval_ms
        if asked.max_wait_ms > 0 and groups.has_room_to_park(asked.group_id):
            told = await groups.handle_parked(
                asked.group_id,
                lambda machine, ticket: machine.poll_heartbeat(
                    asked,
                    ticket,
                    groups.now_ms(),
                    client_host=client_host,
                    interval_ms=interval_ms,
                    topic_ids=groups.topic_ids,
                ),
            )
            assert isinstance(told, ConsumerGroupHeartbeatResponse)
            return told
        return await groups.handle(
            asked.group_id,
            lambda machine: machine.heartbeat(
                asked,
                groups.now_ms(),
                client_host=client_host,
                interval_ms=interval_ms,
                topic_ids=groups.topic_ids,
            ),
        )

    # --- offsets ------------------------------------------------------------------------------------------------------

    async def commit_offsets(self, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
        outcomes = await self._groups.handle(
            request.group_id,
            lambda machine: machine.commit_offsets(
                group_id=request.group_id,
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                offsets=request.partitions,
                now_ms=self._groups.now_ms(),
                instance_id=request.instance_id,
                place=_place_of(request),
                topic_ids=self._groups.topic_ids,
            ),
        )
        return OffsetCommitResponse(partitions=outcomes)

    async def fetch_offsets(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        wanted = None
        if request.partitions is not None:
            wanted = tuple((item.topic, number) for item in request.partitions for number in item.partitions)
        found = await self._groups.handle_slot(
            request.group_id,
            lambda machine: machine.fetch_offsets(
                group_id=request.group_id,
                partitions=wanted,
                topic_ids=self._groups.topic_ids,
                must_confirm=request.require_stable,
            ),
        )
        with AnswerRoom(self._services.memory, "fetch the offsets of fewer partitions in one request") as room:
            room.take(size_of_offsets(found.offsets))
        if not request.require_stable:
            return OffsetFetchResponse(partitions=found.offsets)
        unstable = found.unstable if wanted is None else found.unstable & set(wanted)
        return OffsetFetchResponse(
            partitions=tuple(item for item in found.offsets if (item.topic, item.partition) not in unstable),
            unstable=tuple(
                TopicPartitions(topic=topic, partitions=tuple(number for _, number in items))
                for topic, items in groupby(sorted(unstable), key=itemgetter(0))
            ),
        )

    async def reset_offsets(self, request: ResetOffsetsRequest, context: RequestContext) -> EmptyResponse:
        await self._groups.handle_slot(
            request.group_id,
            lambda machine: machine.reset_offsets(
                group_id=request.group_id,
                offsets=request.partitions,
                topic_ids=self._groups.topic_ids,
                now_ms=self._groups.now_ms(),
                by=_asker(context),
            ),
        )
        return EmptyResponse()

    async def delete_offsets(self, request: DeleteOffsetsRequest, context: RequestContext) -> EmptyResponse:
        """Raises the error of the first partition that keeps its offset; those of the others are deleted."""
        keys = tuple((item.topic, number) for item in request.partitions for number in item.partitions)
        outcomes = await self._groups.handle(
            request.group_id,
            lambda machine: machine.delete_offsets(
                group_id=request.group_id, partitions=keys, now_ms=self._groups.now_ms()
            ),
        )
        for outcome in outcomes:
            if outcome.error:
                raise error_for(outcome.error, f"{outcome.topic}-{outcome.partition}: {outcome.message}")
        return EmptyResponse()

    async def undo_reset(self, request: UndoOffsetResetRequest, context: RequestContext) -> UndoOffsetResetResponse:
        return await self._groups.handle_slot(
            request.group_id,
            lambda machine: machine.undo_reset(
                group_id=request.group_id,
                now_ms=self._groups.now_ms(),
                by=_asker(context),
                validate_only=request.validate_only,
                topics=request.topics,
            ),
        )

    # --- groups -------------------------------------------------------------------------------------------------------

    async def list_groups(self, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
        return ListGroupsResponse(
            groups=tuple(
                ListedGroup(
                    group_id=group.group_id,
                    state=group.phase.value,
                    protocol=group.protocol,
                    member_count=group.member_count,
                )
                for machine in self._groups.slots()
                for group in machine.list_groups()
            )
        )

    async def describe_group(self, request: DescribeGroupRequest, context: RequestContext) -> DescribeGroupResponse:
        group_id = request.group_id
        found = await self._groups.handle_slot(group_id, lambda machine: machine.describe_group(group_id))
        if found.phase is GroupPhase.DEAD:
            raise GroupIdNotFoundError(f"there is no group {request.group_id!r}; see them all: barnabas group list")
        told = None
        if request.explain and found.protocol != SHARE_PROTOCOL:
            now_ms = self._groups.now_ms()
            told = await self._groups.handle(
                group_id, lambda machine: machine.explain_group(group_id=group_id, now_ms=now_ms)
            )
        description = group_description(found, told, self._services.node_id)
        if request.shares and found.protocol == SHARE_PROTOCOL:
            description = replace(description, shares=await self._share_views(group_id))
        if not request.history:
            return description
        points, topics = await self._services.figures.lags_of(group_id)
        return replace(description, lags=points, lag_topics=topics)

    async def _share_views(self, group_id: str) -> tuple[SharePartitionView, ...]:
        states = await self._groups.handle_slot(group_id, lambda machine: machine.shares.states.of_group(group_id))
        with AnswerRoom(self._services.memory, "its topics are too many for one answer") as room:
            room.take(sum(VIEW_BYTES + len(state.topic) for state in states))
            return await self._services.shares.views.of(group_id, states)

    async def delete_group(self, request: DeleteGroupRequest, context: RequestContext) -> EmptyResponse:
        await self._groups.handle_slot(
            request.group_id,
            lambda machine: machine.delete_group(request.group_id, self._groups.now_ms()),
        )
        return EmptyResponse()


def _asker(context: RequestContext) -> str:
    """The client that resets offsets, shown to the client that undoes the reset."""
    return f"{context.client_id or 'unknown'}@{context.client_host}"


def _place_of(request: OffsetCommitRequest) -> CommitPlace | None:
    if not request.committer:
        return None
    return CommitPlace(
        committer=request.committer, sequence=request.sequence, coordinator_epoch=request.coordinator_epoch
    )

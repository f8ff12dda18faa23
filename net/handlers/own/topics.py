"""CreateTopic (19), DeleteTopic (20), AddPartitions (37), AssignReplicas (45), ElectLeader (43): accepted by any broker.

Versions: 0. Behaviour: forwarded to the active controller; the answer leaves once the change is committed *and* this
broker's own image shows it, so that later requests here see it. Differs from Kafka: one topic per request. Kafka's
requests, which name many and say how long they wait (`timeout_ms`), come here for each of them.
"""

from barnabas.kraft.controller.topic_control import new_topic_id
from barnabas.kraft.metadata.requests import ControllerRequest, CreateTopic, DeleteTopic, TopicCreated
from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AssignReplicasRequest,
    CreateTopicResponse,
    ElectionNotNeededError,
    ElectLeaderRequest,
    NoReassignmentInProgressError,
)
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InvalidPartitionsError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.requests import CreateTopicRequest, DeleteTopicRequest
from barnabas.net.wire.protocol.responses import EmptyResponse

from ..common.changes import CHANGE_TIMEOUT_MS, decided
from ..common.mutations import mutations, partitions_of
from ..common.services import Services


class TopicHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, request: CreateTopicRequest, context: RequestContext) -> CreateTopicResponse:
        count = len(request.assignment) or request.partition_count
        count = count if count > 0 else self._services.config.num_partitions
        with mutations(self._services, context, 0 if request.validate_only else count):
            created = await self._services.controller.call(
                CreateTopic(
                    name=request.name,
                    partition_count=request.partition_count,
                    replication_factor=request.replication_factor,
                    assignment=request.assignment,
                    configs=request.configs,
                    validate_only=request.validate_only,
                    topic_id=request.topic_id or new_topic_id(self._services.rng),
                ),
                timeout_ms=min(request.timeout_ms, CHANGE_TIMEOUT_MS),
            )
        assert isinstance(created, TopicCreated)
        if not request.validate_only:
            await self._services.metadata.wait_for_offset(created.offset, timeout_ms=CHANGE_TIMEOUT_MS)
        return CreateTopicResponse(
            name=created.name,
            topic_id=created.topic_id,
            partition_count=created.partition_count,
            replication_factor=created.replication_factor,
        )

    async def delete(
        self, request: DeleteTopicRequest, context: RequestContext, *, timeout_ms: int = CHANGE_TIMEOUT_MS
    ) -> EmptyResponse:
        self.check_deletable(request.name)
        with mutations(self._services, context, partitions_of(self._services, request.name)):
            return await self.change(
                DeleteTopic(name=request.name),
                done_already=(UnknownTopicOrPartitionError,),
                timeout_ms=min(request.timeout_ms, timeout_ms),
            )

    def check_deletable(self, name: str) -> None:
        if not self._services.config.delete_topic_enable:
            raise TopicDeletionDisabledError(
                f"topic {name!r} is not deleted: set delete.topic.enable=true in server.properties to allow deletions"
            )

    async def add_partitions(
        self, request: AddPartitionsRequest, context: RequestContext, *, timeout_ms: int = CHANGE_TIMEOUT_MS
    ) -> EmptyResponse:
        now = partitions_of(self._services, request.name)
        with mutations(self._services, context, 0 if request.validate_only or not now else request.total_count - now):
            return await self.change(request, done_already=(InvalidPartitionsError,), timeout_ms=timeout_ms)

    async def assign_replicas(
        self, request: AssignReplicasRequest, context: RequestContext, *, timeout_ms: int = CHANGE_TIMEOUT_MS
    ) -> EmptyResponse:
        """No replicas: cancel the move in progress."""
        return await self.change(request, done_already=(NoReassignmentInProgressError,), timeout_ms=timeout_ms)

    async def elect_leader(
        self, request: ElectLeaderRequest, context: RequestContext, *, timeout_ms: int = CHANGE_TIMEOUT_MS
    ) -> EmptyResponse:
        return await self.change(request, done_already=(ElectionNotNeededError,), timeout_ms=timeout_ms)

    async def change(
        self,
        request: ControllerRequest,
        *,
        done_already: tuple[type[BarnabasError], ...] = (),
        timeout_ms: int = CHANGE_TIMEOUT_MS,
    ) -> EmptyResponse:
        await decided(self._services, request, done_already=done_already, timeout_ms=timeout_ms)
        return EmptyResponse()

"""DescribeMoves (1008) and DecommissionBroker (1009): moves of single replicas, or of all replicas of a broker.

Versions: 0. Behaviour: any broker lists moves; only the leader knows what a new replica has yet to copy, and the bytes are an
estimate from the records. The controller decides and executes a decommission; the broker only ensures that a voter loses its
vote. This API does not exist in Kafka.
"""

from barnabas.kraft.metadata.image import PartitionImage
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT, REASSIGNMENT_THROTTLE
from barnabas.log.vocabulary.cluster_changes import DecommissionBrokerRequest
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.requests import AlterVotersRequest, DescribeMovesRequest, DescribeQuorumRequest
from barnabas.net.wire.protocol.responses import (
    CatchingUp,
    DescribeMovesResponse,
    EmptyResponse,
    PartitionMove,
)

from ..common.changes import CHANGE_TIMEOUT_MS, decided
from ..common.services import Services
from .voters import VoterHandlers


class MoveHandlers:
    def __init__(self, services: Services, voters: VoterHandlers) -> None:
        self._services = services
        self._voters = voters

    async def describe(self, request: DescribeMovesRequest, context: RequestContext) -> DescribeMovesResponse:
        image = self._services.metadata.image
        throttle = image.broker_configs.get(CLUSTER_DEFAULT, {}).get(REASSIGNMENT_THROTTLE, "0")
        return DescribeMovesResponse(
            moves=tuple(
                self._describe_one(TopicPartition(topic.name, number), partition)
                for topic in image.topics.values()
                for number, partition in enumerate(topic.partitions)
                if partition.is_moving
            ),
            throttle_bytes_per_s=int(throttle) if throttle.isdecimal() else 0,
        )

    def _describe_one(self, topic_partition: TopicPartition, partition: PartitionImage) -> PartitionMove:
        return PartitionMove(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            leader=partition.leader,
            replicas=partition.replicas,
            adding=partition.adding_replicas,
            removing=partition.removing_replicas,
            catching_up=tuple(
                self._left(topic_partition, node_id)
                for node_id in partition.adding_replicas
                if node_id not in partition.isr
            ),
        )

    def _left(self, topic_partition: TopicPartition, node_id: int) -> CatchingUp:
        led = self._services.replication.manager.find(topic_partition)
        state = None if led is None else led.role.leader_state
        replica = None if state is None else state.followers.replicas.get(node_id)
        if led is None or state is None or replica is None:
            return CatchingUp(node_id=node_id)
        start = led.log.log_start_offset
        has = max(replica.log_end_offset, start)
        records_left, records = max(0, state.log_end_offset - has), max(1, state.log_end_offset - start)
        bytes_left = led.log.size_bytes * records_left // records
        return CatchingUp(node_id=node_id, records_left=records_left, bytes_left=bytes_left)

    async def decommission(self, request: DecommissionBrokerRequest, context: RequestContext) -> EmptyResponse:
        await decided(self._services, request)
        if not request.cancel and await self._votes(request.node_id, context):
            # After the controller has agreed: a broker that must stay keeps its vote. A repeated request does the rest.
            leaving = AlterVotersRequest(node_id=request.node_id, add=False, timeout_ms=CHANGE_TIMEOUT_MS)
            await self._voters.alter(leaving, context)
        return EmptyResponse()

    async def _votes(self, node_id: int, context: RequestContext) -> bool:
        """As the leader of the quorum knows it: the metadata here may be behind a change that has just ended."""
        return node_id in (await self._voters.describe(DescribeQuorumRequest(), context)).voters

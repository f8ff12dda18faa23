"""DescribeQuorum (55), for Kafka's clients: the quorum as partition 0 of `__cluster_metadata`.

Versions: 0-2. Behaviour: any broker asks the quorum's leader; without a leader it answers from its own metadata. Log ends are
the committed index minus each voter's lag; they are -1 (unknown) for observers, and for voters while there is no leader.
"""

from __future__ import annotations

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.requests import DescribeQuorumRequest
from barnabas.net.wire.protocol.responses import DescribeQuorumResponse

from ..own.voters import VoterHandlers

METADATA_TOPIC = "__cluster_metadata"
_NOT_KNOWN = -1


class KafkaQuorumHandlers:
    def __init__(self, voters: VoterHandlers) -> None:
        self._voters = voters

    async def describe(
        self, request: KafkaRequest[bodies.DescribeQuorumRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeQuorumResponse]:
        found = await self._voters.describe(DescribeQuorumRequest(), context)
        topics = [
            bodies.DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=[_partition(topic.topic_name, item.partition_index, found) for item in topic.partitions],
            )
            for topic in request.body.topics
        ]
        nodes = [
            bodies.DescribeQuorumResponse.Node(
                node_id=peer.node_id,
                listeners=[bodies.DescribeQuorumResponse.Listener(name="QUORUM", host=peer.host, port=peer.port)],
            )
            for peer in found.peers
        ]
        return KafkaResponse(body=bodies.DescribeQuorumResponse(error_message=None, topics=topics, nodes=nodes))


def _partition(topic: str, number: int, found: DescribeQuorumResponse) -> bodies.DescribeQuorumResponse.PartitionData:
    if (topic, number) != (METADATA_TOPIC, 0):
        return bodies.DescribeQuorumResponse.PartitionData(
            partition_index=number,
            error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            error_message=f"{topic}-{number} is not the quorum: use {METADATA_TOPIC}-0",
        )
    lags = {peer.node_id: peer.lag_entries for peer in found.peers}

    def state(node_id: int) -> bodies.DescribeQuorumResponse.ReplicaState:
        lag = 0 if node_id == found.leader_id else lags.get(node_id, _NOT_KNOWN)
        return bodies.DescribeQuorumResponse.ReplicaState(
            replica_id=node_id, log_end_offset=_NOT_KNOWN if lag < 0 else max(0, found.committed_index - lag)
        )

    return bodies.DescribeQuorumResponse.PartitionData(
        partition_index=number,
        error_message=None,
        leader_id=found.leader_id,
        leader_epoch=found.term,
        high_watermark=found.committed_index,
        current_voters=[state(node_id) for node_id in found.voters],
        observers=[state(node_id) for node_id in found.observers],
    )

"""ShareGroupHeartbeat (76), ShareFetch (78), ShareAcknowledge (79): share groups for Kafka's clients.

Versions: 1, 1-2, 1-2. Behaviour: translated to the requests of the same names in `own`. A session's fault is the error of
the whole answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

from barnabas.log.vocabulary.share.messages import (
    AcknowledgedBatch,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
    SharePartitionAnswer,
)
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse

from ..common.services import Services
from .own import ShareHandlers

_RECORD_LIMIT: Final = 1  # of ShareAcquireMode (KIP-1206)


class KafkaShareHandlers:
    def __init__(self, services: Services, own: ShareHandlers) -> None:
        self._services = services
        self._own = own

    async def heartbeat(
        self, request: KafkaRequest[bodies.ShareGroupHeartbeatRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ShareGroupHeartbeatResponse]:
        body, answer = request.body, bodies.ShareGroupHeartbeatResponse
        names = body.subscribed_topic_names
        told = await self._own.heartbeat(
            ShareGroupHeartbeatRequest(
                group_id=body.group_id,
                member_id=body.member_id,
                member_epoch=body.member_epoch,
                subscribed_topics=None if names is None else tuple(names),
                rack=body.rack_id,
            ),
            context,
        )
        made = answer(
            member_id=told.member_id,
            member_epoch=told.member_epoch,
            heartbeat_interval_ms=told.heartbeat_interval_ms,
        )
        if told.assignment is not None:
            topics = self._services.metadata.image.topics
            made.assignment = answer.Assignment(
                topic_partitions=[
                    answer.TopicPartitions(
                        topic_id=bytes.fromhex(topics[item.topic].topic_id), partitions=item.partitions
                    )
                    for item in told.assignment
                    if item.topic in topics
                ]
            )
        return KafkaResponse(body=made)

    async def fetch(
        self, request: KafkaRequest[bodies.ShareFetchRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ShareFetchResponse]:
        body, answer = request.body, bodies.ShareFetchResponse
        asked = ShareFetchRequest(
            group_id=body.group_id or "",
            member_id=body.member_id or "",
            session_epoch=body.share_session_epoch,
            partitions=tuple(_named(body.topics)),
            forgotten=tuple(
                ShareFetchPartition(topic_id=topic.topic_id.hex(), partition=number)
                for topic in body.forgotten_topics_data
                for number in topic.partitions
            ),
            max_wait_ms=body.max_wait_ms,
            min_bytes=body.min_bytes,
            max_bytes=body.max_bytes,
            max_records=body.max_records,
            is_strict=body.share_acquire_mode == _RECORD_LIMIT,
        )
        told = await self._own.fetch(asked, context)
        topics = [
            answer.ShareFetchableTopicResponse(
                topic_id=bytes.fromhex(topic_id), partitions=[_fetched(item) for item in items]
            )
            for topic_id, items in _by_topic(told.partitions)
        ]
        made = answer(
            acquisition_lock_timeout_ms=told.lock_duration_ms,
            responses=topics,
            node_endpoints=self._endpoints(told.partitions, answer.NodeEndpoint, context),
        )
        return KafkaResponse(body=made)

    async def acknowledge(
        self, request: KafkaRequest[bodies.ShareAcknowledgeRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ShareAcknowledgeResponse]:
        body, answer = request.body, bodies.ShareAcknowledgeResponse
        asked = ShareAcknowledgeRequest(
            group_id=body.group_id or "",
            member_id=body.member_id or "",
            session_epoch=body.share_session_epoch,
            partitions=tuple(_named(body.topics)),
        )
        told = await self._own.acknowledge(asked, context)
        topics = [
            answer.ShareAcknowledgeTopicResponse(
                topic_id=bytes.fromhex(topic_id),
                partitions=[
                    answer.PartitionData(
                        partition_index=item.partition,
                        error_code=item.acknowledge_error,
                        error_message=item.acknowledge_message or None,
                        current_leader=answer.LeaderIdAndEpoch(
                            leader_id=item.leader_id, leader_epoch=item.leader_epoch
                        ),
                    )
                    for item in items
                ],
            )
            for topic_id, items in _by_topic(told.partitions)
        ]
        made = answer(
            acquisition_lock_timeout_ms=told.lock_duration_ms,
            responses=topics,
            node_endpoints=self._endpoints(told.partitions, answer.NodeEndpoint, context),
        )
        return KafkaResponse(body=made)

    def _endpoints(self, partitions: Iterable[SharePartitionAnswer], make: Any, context: RequestContext) -> list[Any]:
        """The addresses of the leaders that the answer names."""
        brokers = self._services.metadata.image.brokers
        leaders = sorted({item.leader_id for item in partitions if item.leader_id in brokers})
        found = []
        for node_id in leaders:
            endpoint = brokers[node_id].endpoint(context.listener_name)
            found.append(make(node_id=node_id, host=endpoint.host, port=endpoint.port, rack=brokers[node_id].rack))
        return found


def _named(topics: Iterable[Any]) -> Iterable[ShareFetchPartition]:
    for topic in topics:
        topic_id = topic.topic_id.hex()
        for item in topic.partitions:
            yield ShareFetchPartition(
                topic_id=topic_id,
                partition=item.partition_index,
                acknowledged=tuple(
                    AcknowledgedBatch(
                        first_offset=batch.first_offset,
                        last_offset=batch.last_offset,
                        kinds=tuple(batch.acknowledge_types),
                    )
                    for batch in item.acknowledgement_batches
                ),
            )


def _by_topic(partitions: Iterable[SharePartitionAnswer]) -> Iterable[tuple[str, Iterable[SharePartitionAnswer]]]:
    return groupby(sorted(partitions, key=lambda item: (item.topic_id, item.partition)), key=lambda item: item.topic_id)


def _fetched(item: SharePartitionAnswer) -> bodies.ShareFetchResponse.PartitionData:
    answer = bodies.ShareFetchResponse
    return answer.PartitionData(
        partition_index=item.partition,
        error_code=item.error,
        error_message=item.message or None,
        acknowledge_error_code=item.acknowledge_error,
        acknowledge_error_message=item.acknowledge_message or None,
        current_leader=answer.LeaderIdAndEpoch(leader_id=item.leader_id, leader_epoch=item.leader_epoch),
        records=item.records,
        acquired_records=[
            answer.AcquiredRecords(
                first_offset=acquired.first_offset,
                last_offset=acquired.last_offset,
                delivery_count=acquired.delivery_count,
            )
            for acquired in item.acquired
        ],
    )

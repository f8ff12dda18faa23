"""DeleteRecords (21), ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46),
DescribeProducers (61): requests of admin tools for many partitions, each with its own error.

Versions: 0-2, 0-2, 0, 0, 0. Behaviour: any broker accepts elections and reassignments, and the active controller executes
them; the leader deletes records; any broker with a replica describes producers. Differs from Kafka: the low watermark of a
deletion is that of the leader, which does not wait for its followers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from barnabas.kraft.metadata.image import NO_LEADER, PartitionImage
from barnabas.log.segment.producer_state import ProducerEntry
from barnabas.log.vocabulary.cluster_changes import AssignReplicasRequest, ElectionNotNeededError, ElectLeaderRequest
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InvalidReplicaAssignmentError
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_PARTITIONS, CONSUMER_OFFSETS_TOPIC, TopicPartition
from barnabas.net.base.slices import sliced
from barnabas.net.server.dispatcher import Reply, RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse

from ..common.answer_room import ENTRY_BYTES, AnswerRoom
from ..common.many import DONE, Outcome, each
from ..common.services import Services
from ..own.offsets import OffsetHandlers
from ..own.topics import TopicHandlers

PREFERRED, UNCLEAN = 0, 1  # kinds of elections (KIP-460)
T = TypeVar("T")


class KafkaPartitionHandlers:
    def __init__(self, services: Services, topics: TopicHandlers, offsets: OffsetHandlers) -> None:
        self._metadata = services.metadata
        self._replication = services.replication
        self._now_ms = services.clock.now_ms
        self._memory = services.memory
        self._topics = topics
        self._offsets = offsets

    # --- elections ----------------------------------------------------------------------------------------------------

    async def elect(
        self, request: KafkaRequest[bodies.ElectLeadersRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ElectLeadersResponse]:
        body = request.body
        if body.election_type not in (PREFERRED, UNCLEAN):
            return KafkaResponse(body=bodies.ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
        unclean = body.election_type == UNCLEAN
        if body.topic_partitions is None:
            asked = list(self._to_be_elected(unclean))
        else:
            asked = _named((item.topic, item.partitions) for item in body.topic_partitions)
        outcomes = await each(self._elect(item, unclean, context, body.timeout_ms) for item in asked)
        results = [
            bodies.ElectLeadersResponse.ReplicaElectionResult(
                topic=topic,
                partition_result=[
                    bodies.ElectLeadersResponse.PartitionResult(
                        partition_id=number, error_code=outcome.error, error_message=outcome.message
                    )
                    for number, outcome in items
                ],
            )
            for topic, items in _by_topic(zip(asked, outcomes, strict=True))
        ]
        return KafkaResponse(body=bodies.ElectLeadersResponse(replica_election_results=results))

    async def _elect(self, item: TopicPartition, unclean: bool, context: RequestContext, timeout_ms: int) -> Outcome:
        if _is_slot(item):
            # Clients that name all partitions include these too. Their "leaders" are coordinators, which are not elected.
            raise ElectionNotNeededError(f"{item} always has a live coordinator, so there is no election")
        request = ElectLeaderRequest(topic=item.topic, partition=item.partition, unclean=unclean)
        await self._topics.elect_leader(request, context, timeout_ms=timeout_ms)
        return DONE

    def _to_be_elected(self, unclean: bool) -> Iterator[TopicPartition]:
        """Partitions where an election would change the leader: the answer leaves out the others."""
        image = self._metadata.image
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if partition.leader == NO_LEADER if unclean else partition.leader != partition.replicas[0]:
                    yield TopicPartition(topic.name, number)

    # --- reassignments ------------------------------------------------------------------------------------------------

    async def reassign(
        self, request: KafkaRequest[bodies.AlterPartitionReassignmentsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.AlterPartitionReassignmentsResponse]:
        body = request.body
        wanted = {
            TopicPartition(topic.name, item.partition_index): item.replicas
            for topic in body.topics
            for item in topic.partitions
        }
        outcomes = await each(
            self._reassign(topic_partition, replicas, context, body.timeout_ms)
            for topic_partition, replicas in wanted.items()
        )
        responses = [
            bodies.AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic,
                partitions=[
                    bodies.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                        partition_index=number, error_code=outcome.error, error_message=outcome.message
                    )
                    for number, outcome in items
                ],
            )
            for topic, items in _by_topic(zip(wanted, outcomes, strict=True))
        ]
        made = bodies.AlterPartitionReassignmentsResponse(responses=responses, error_message=None)
        return KafkaResponse(body=made)

    async def _reassign(
        self, item: TopicPartition, replicas: Sequence[int] | None, context: RequestContext, timeout_ms: int
    ) -> Outcome:
        """`replicas` None cancels the reassignment in progress."""
        if replicas is not None and len(replicas) == 0:
            raise InvalidReplicaAssignmentError(f"{item} needs at least one replica; use null to cancel a reassignment")
        request = AssignReplicasRequest(topic=item.topic, partition=item.partition, replicas=tuple(replicas or ()))
        await self._topics.assign_replicas(request, context, timeout_ms=timeout_ms)
        return DONE

    def list_reassignments(
        self, request: KafkaRequest[bodies.ListPartitionReassignmentsRequest], context: RequestContext, reply: Reply
    ) -> None:
        asked = None
        if request.body.topics is not None:
            asked = set(_named((topic.name, topic.partition_indexes) for topic in request.body.topics))
        topics = [
            bodies.ListPartitionReassignmentsResponse.OngoingTopicReassignment(
                name=topic,
                partitions=[
                    bodies.ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                        partition_index=number,
                        replicas=partition.replicas,
                        adding_replicas=partition.adding_replicas,
                        removing_replicas=partition.removing_replicas,
                    )
                    for number, partition in items
                ],
            )
            for topic, items in _by_topic(item for item in self._moving() if asked is None or item[0] in asked)
        ]
        made = bodies.ListPartitionReassignmentsResponse(topics=topics, error_message=None)
        reply(KafkaResponse(body=made))

    def _moving(self) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        for topic in self._metadata.image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if partition.is_moving:
                    yield TopicPartition(topic.name, number), partition

    # --- records ------------------------------------------------------------------------------------------------------

    def delete_records(
        self, request: KafkaRequest[bodies.DeleteRecordsRequest], context: RequestContext, reply: Reply
    ) -> None:
        topics = [
            bodies.DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name, partitions=[self._delete_records(topic.name, item) for item in topic.partitions]
            )
            for topic in request.body.topics
        ]
        reply(KafkaResponse(body=bodies.DeleteRecordsResponse(topics=topics)))

    def _delete_records(
        self, topic: str, item: bodies.DeleteRecordsRequest.DeleteRecordsPartition
    ) -> bodies.DeleteRecordsResponse.DeleteRecordsPartitionResult:
        error, low_watermark = ErrorCode.NONE, -1
        try:
            low_watermark = self._offsets.delete_before(TopicPartition(topic, item.partition_index), item.offset)
        except BarnabasError as refusal:
            error = refusal.code
        return bodies.DeleteRecordsResponse.DeleteRecordsPartitionResult(
            partition_index=item.partition_index, low_watermark=low_watermark, error_code=error
        )

    # --- producers ----------------------------------------------------------------------------------------------------

    async def describe_producers(
        self, request: KafkaRequest[bodies.DescribeProducersRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeProducersResponse]:
        named = _named((topic.name, topic.partition_indexes) for topic in request.body.topics)
        with AnswerRoom(self._memory, "describe the producers of fewer partitions in one request") as room:
            found = [(item, self._producers(item, room)) async for item in sliced(named, self._now_ms)]
        topics = [
            bodies.DescribeProducersResponse.TopicResponse(name=topic, partitions=[told for _, told in items])
            for topic, items in _by_topic(found)
        ]
        return KafkaResponse(body=bodies.DescribeProducersResponse(topics=topics))

    def _producers(
        self, topic_partition: TopicPartition, room: AnswerRoom
    ) -> bodies.DescribeProducersResponse.PartitionResponse:
        outcome, producers = DONE, []
        try:
            entries = list(self._producers_of(topic_partition))
            room.take(ENTRY_BYTES * len(entries))
            producers = [
                bodies.DescribeProducersResponse.ProducerState(
                    producer_id=producer_id,
                    producer_epoch=entry.epoch,
                    last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
                    last_timestamp=entry.last_update_ms,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=entry.open_transaction_offset,
                )
                for producer_id, entry in entries
            ]
        except BarnabasError as error:
            outcome = Outcome.of(error)
        return bodies.DescribeProducersResponse.PartitionResponse(
            partition_index=topic_partition.partition,
            error_code=outcome.error,
            error_message=outcome.message,
            active_producers=producers,
        )

    def _producers_of(self, topic_partition: TopicPartition) -> Iterable[tuple[int, ProducerEntry]]:
        """No client produces to a slot. Raises UnknownTopicOrPartitionError, NotLeaderOrFollowerError."""
        if _is_slot(topic_partition):
            return ()
        return self._replication.replica(topic_partition).log.producers.entries()


def _is_slot(item: TopicPartition) -> bool:
    """A partition of `__consumer_offsets`: read-only, written by its coordinator through the quorum."""
    return item.topic == CONSUMER_OFFSETS_TOPIC and 0 <= item.partition < CONSUMER_OFFSETS_PARTITIONS


def _named(topics: Iterable[tuple[str, Iterable[int]]]) -> list[TopicPartition]:
    """Each partition once, those of a topic together, in the order of the request."""
    named: dict[str, dict[int, None]] = {}
    for topic, numbers in topics:
        named.setdefault(topic, {}).update(dict.fromkeys(numbers))
    return [TopicPartition(topic, number) for topic, numbers in named.items() for number in numbers]


def _by_topic(items: Iterable[tuple[TopicPartition, T]]) -> Iterator[tuple[str, Iterator[tuple[int, T]]]]:
    for topic, found in groupby(items, key=lambda item: item[0].topic):
        yield topic, ((item.partition, value) for item, value in found)

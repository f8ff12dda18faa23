"""ListOffsets (2), OffsetForLeaderEpoch (23), DeleteRecords (21): offsets of partitions that this broker leads.

Versions: 0. Behaviour: -1 latest visible, -2 and -4 earliest, -3 the record with the largest timestamp (KIP-734), anything
else the first record at or after that time (offset -1: there is none). DeleteRecords takes one partition a request.
"""

from barnabas.log.errors import BarnabasError, ErrorCode, InvalidTopicError
from barnabas.log.topic_partition import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TopicPartition
from barnabas.net.dispatcher import Reply, RequestContext, answering
from barnabas.net.offsets_topic import OffsetsTopic
from barnabas.net.protocol.requests import (
    EARLIEST_TIMESTAMP,
    DeleteRecordsRequest,
    EpochPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from barnabas.net.protocol.responses import (
    DeleteRecordsResponse,
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
)

from .many import check_count
from .services import Services


class OffsetHandlers:
    def __init__(self, services: Services) -> None:
        self._replication = services.replication
        self._clock = services.clock
        self._offsets_topic = OffsetsTopic(services.metadata)
        self._list_with_slots = answering(self._list_offsets_topic)

    def list_offsets(self, request: ListOffsetsRequest, context: RequestContext, reply: Reply) -> None:
        check_count(request.partitions)
        if any(item.topic == CONSUMER_OFFSETS_TOPIC for item in request.partitions):
            self._list_with_slots(request, context, reply)
            return
        reply(ListOffsetsResponse(partitions=tuple(self._list_one(request, item) for item in request.partitions)))

    async def _list_offsets_topic(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        """Any broker has all of `__consumer_offsets`; the other partitions of the request are looked up as always."""
        return ListOffsetsResponse(
            partitions=tuple(
                [
                    await self._list_slot(item)
                    if item.topic == CONSUMER_OFFSETS_TOPIC
                    else self._list_one(request, item)
                    for item in request.partitions
                ]
            )
        )

    async def _list_slot(self, item: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        error, message, found = ErrorCode.NONE, "", (-1, -1)
        try:
            if item.timestamp_ms == EARLIEST_TIMESTAMP:
                found = (0, -1)
            elif item.timestamp_ms < 0:
                found = (await self._offsets_topic.end_offset(item.partition), -1)
            else:
                found = await self._offsets_topic.first_at_or_after(item.partition, item.timestamp_ms) or found
        except BarnabasError as refusal:
            error, message = refusal.code, refusal.message
        return ListOffsetsPartitionResponse(
            topic=item.topic,
            partition=item.partition,
            error=error,
            message=message,
            offset=found[0],
            timestamp_ms=found[1],
        )

    def _list_one(self, request: ListOffsetsRequest, item: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        try:
            found = self._replication.replica(TopicPartition(item.topic, item.partition)).list_offset(
                item.timestamp_ms,
                isolation_level=request.isolation_level,
                current_leader_epoch=item.current_leader_epoch,
                for_replica=request.replica_id >= 0,
            )
        except BarnabasError as error:
            return ListOffsetsPartitionResponse(
                topic=item.topic, partition=item.partition, error=error.code, message=error.message
            )
        return ListOffsetsPartitionResponse(
            topic=item.topic,
            partition=item.partition,
            offset=found.offset,
            timestamp_ms=found.timestamp_ms,
            leader_epoch=found.leader_epoch,
        )

    def end_of_epoch(self, request: OffsetForLeaderEpochRequest, context: RequestContext, reply: Reply) -> None:
        if request.replica_id < 0:
            check_count(request.partitions)
        reply(OffsetForLeaderEpochResponse(partitions=tuple(self._end_of_one(item) for item in request.partitions)))

    def _end_of_one(self, item: EpochPartition) -> EpochEndOffset:
        try:
            partition = self._replication.replica(TopicPartition(item.topic, item.partition))
            leader_epoch, end_offset = partition.end_offset_for_epoch(
                item.leader_epoch, current_leader_epoch=item.current_leader_epoch
            )
        except BarnabasError as error:
            return EpochEndOffset(topic=item.topic, partition=item.partition, error=error.code)
        return EpochEndOffset(
            topic=item.topic, partition=item.partition, leader_epoch=leader_epoch, end_offset=end_offset
        )

    def delete_records(self, request: DeleteRecordsRequest, context: RequestContext, reply: Reply) -> None:
        start = self.delete_before(TopicPartition(request.topic, request.partition), request.before_offset)
        reply(DeleteRecordsResponse(log_start_offset=start))

    def delete_before(self, topic_partition: TopicPartition, offset: int) -> int:
        """Return where the log begins now."""
        if topic_partition.topic in INTERNAL_TOPICS:
            raise InvalidTopicError(
                f"{topic_partition.topic} belongs to the cluster itself: it is read, and nothing else"
            )
        partition = self._replication.replica(topic_partition)
        log_start_offset, effects = partition.delete_records(offset, now_ms=self._clock.now_ms())
        self._replication.perform(effects)
        return log_start_offset

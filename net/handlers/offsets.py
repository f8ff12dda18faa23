"""ListOffsets (2), OffsetForLeaderEpoch (23), DeleteRecords (21): offsets of partitions that this broker leads.

Versions: 0. Behaviour: -1 latest visible, -2 earliest, -3 the record with the largest timestamp (KIP-734), anything else the
first record at or after that time (offset -1: there is none). DeleteRecords takes one partition a request.
"""

from barnabas.log.errors import BarnabasError
from barnabas.log.topic_partition import TopicPartition
from barnabas.net.dispatcher import Reply, RequestContext
from barnabas.net.protocol.requests import (
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

from .services import Services


class OffsetHandlers:
    def __init__(self, services: Services) -> None:
        self._replication = services.replication
        self._clock = services.clock

    def list_offsets(self, request: ListOffsetsRequest, context: RequestContext, reply: Reply) -> None:
        reply(ListOffsetsResponse(partitions=tuple(self._list_one(request, item) for item in request.partitions)))

    def _list_one(self, request: ListOffsetsRequest, item: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        try:
            found = self._replication.manager.partition(TopicPartition(item.topic, item.partition)).list_offset(
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
        reply(OffsetForLeaderEpochResponse(partitions=tuple(self._end_of_one(item) for item in request.partitions)))

    def _end_of_one(self, item: EpochPartition) -> EpochEndOffset:
        try:
            partition = self._replication.manager.partition(TopicPartition(item.topic, item.partition))
            leader_epoch, end_offset = partition.end_offset_for_epoch(
                item.leader_epoch, current_leader_epoch=item.current_leader_epoch
            )
        except BarnabasError as error:
            return EpochEndOffset(topic=item.topic, partition=item.partition, error=error.code)
        return EpochEndOffset(
            topic=item.topic, partition=item.partition, leader_epoch=leader_epoch, end_offset=end_offset
        )

    def delete_records(self, request: DeleteRecordsRequest, context: RequestContext, reply: Reply) -> None:
        partition = self._replication.manager.partition(TopicPartition(request.topic, request.partition))
        log_start_offset, effects = partition.delete_records(request.before_offset, now_ms=self._clock.now_ms())
        self._replication.perform(effects)
        reply(DeleteRecordsResponse(log_start_offset=log_start_offset))

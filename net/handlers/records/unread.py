"""Unread (1012): the unread records and the lag in time of a reader at an offset. Kafka has no such API.

Versions: 0. Behaviour: asked of the leader, which alone knows the high watermark and when it appended a record; every
time in an answer is by its clock, so an age needs no other clock. An offset of -1, or one that retention has
taken away, counts from the log start; one behind the end has nothing unread.
"""

from typing import Final

from barnabas.log.replication.partition_reads import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.slices import sliced
from barnabas.net.server.dispatcher import Reply, RequestContext, answering
from barnabas.net.wire.protocol.group_responses import UnreadPartitionResponse, UnreadResponse
from barnabas.net.wire.protocol.requests import UnreadPartition, UnreadRequest

from ..common.services import Services

MAX_AT_ONCE: Final = 1_000  # partitions: some milliseconds of the loop


class UnreadHandler:
    def __init__(self, services: Services) -> None:
        self._replication = services.replication
        self._clock = services.clock
        self._later = answering(self._in_slices)

    def __call__(self, request: UnreadRequest, context: RequestContext, reply: Reply) -> None:
        if len(request.partitions) > MAX_AT_ONCE:
            self._later(request, context, reply)
        else:
            reply(UnreadResponse(partitions=tuple(self._one(item) for item in request.partitions)))

    async def _in_slices(self, request: UnreadRequest, context: RequestContext) -> UnreadResponse:
        found = [self._one(item) async for item in sliced(request.partitions, self._clock.now_ms)]
        return UnreadResponse(partitions=tuple(found))

    def _one(self, item: UnreadPartition) -> UnreadPartitionResponse:
        try:
            partition = self._replication.manager.partition(TopicPartition(item.topic, item.partition))
            epoch = item.current_leader_epoch
            start = partition.reads.list_offset(EARLIEST_TIMESTAMP, current_leader_epoch=epoch).offset
            end = partition.reads.list_offset(LATEST_TIMESTAMP, current_leader_epoch=epoch).offset
        except BarnabasError as error:
            return UnreadPartitionResponse(
                topic=item.topic, partition=item.partition, error=error.code, message=error.message
            )
        first = max(item.offset, start)
        unread = partition.log.append_time_of(first) if first < end else None
        last = partition.log.append_time_of(end - 1) if end > start else None
        return UnreadPartitionResponse(
            topic=item.topic,
            partition=item.partition,
            log_start_offset=start,
            log_end_offset=end,
            first_unread_ms=-1 if unread is None else unread.time_ms,
            last_append_ms=-1 if last is None else last.time_ms,
            now_ms=self._clock.wall_ms(),
            is_estimate=unread is not None and not unread.is_exact,
        )

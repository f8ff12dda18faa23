"""ListOffsets (2), OffsetForLeaderEpoch (23), DeleteRecords (21): offsets of partitions that this broker leads.

Versions: 0. Behaviour: -1 latest visible, -2 and -4 earliest, -3 the record with the largest timestamp (KIP-734), anything
else the first record at or after that time (offset -1: there is none). DeleteRecords takes one partition a request.
"""

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from barnabas.log.format.record_batch import Buffer, read_header
from barnabas.log.format.record_codec import LookIntoBatch, first_record_at_or_after
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InvalidTopicError, RequestTimedOutError
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TopicPartition
from barnabas.net.base.limits import check_count
from barnabas.net.base.slices import sliced
from barnabas.net.base.threads import to_its_end
from barnabas.net.coordination.groups.offsets_topic import OffsetsTopic
from barnabas.net.server.dispatcher import Reply, RequestContext, answering
from barnabas.net.wire.protocol.requests import (
    EARLIEST_TIMESTAMP,
    DeleteRecordsRequest,
    EpochPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from barnabas.net.wire.protocol.responses import (
    DeleteRecordsResponse,
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
)

from ..common.services import Services

MAX_AT_ONCE_BYTES: Final = 16 * 1024  # of an uncompressed batch: takes about half a millisecond of the loop
MAX_LOOKS: Final = 8  # batches read for one partition: the indexes lead to the right batch, or to one just before it
MAX_LISTED_AT_ONCE: Final = 64  # partitions: one lookup by time takes up to 0.1 ms
LOOKING_AT_ONCE: Final = 2  # requests in parallel; each holds one unpacked batch, and the loop needs a processor too
THREAD_PAUSE_S: Final = 0.0002  # long enough for the loop, which waits for the interpreter, to take it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A lookup, and the batch to search."""

    base_offset: int
    crc: int
    timestamp_ms: int
    from_offset: int


class _LongLookError(Exception):
    """Searching the batch would block the loop for too long."""

    def __init__(self, look: _Look, batch: bytes) -> None:
        super().__init__("a thread must search this batch")
        self.look = look
        self.batch = batch


class _Looks:
    """The results of one lookup: small batches are searched at once, a thread adds the results of the others."""

    def __init__(self) -> None:
        self.found: dict[_Look, tuple[int, int] | None] = {}

    def __call__(self, batch: Buffer, timestamp_ms: int, from_offset: int) -> tuple[int, int] | None:
        header = read_header(batch)
        look = _Look(base_offset=header.base_offset, crc=header.crc, timestamp_ms=timestamp_ms, from_offset=from_offset)
        if look in self.found:
            return self.found[look]
        if header.compression or header.size_bytes > MAX_AT_ONCE_BYTES:
            raise _LongLookError(look, bytes(batch))
        return first_record_at_or_after(batch, timestamp_ms, from_offset)


class OffsetHandlers:
    def __init__(self, services: Services) -> None:
        self._replication = services.replication
        self._clock = services.clock
        self._offsets_topic = OffsetsTopic(services.metadata)
        self._memory = services.memory
        self._looking = asyncio.Semaphore(LOOKING_AT_ONCE)
        self._list_later = answering(self._list_in_turn)

    def list_offsets(self, request: ListOffsetsRequest, context: RequestContext, reply: Reply) -> None:
        """Answer at once, unless there are many items, a slot of `__consumer_offsets`, or a batch that a thread must search."""
        check_count(request.partitions)
        try:
            if len(request.partitions) > MAX_LISTED_AT_ONCE or any(
                item.topic == CONSUMER_OFFSETS_TOPIC for item in request.partitions
            ):
                found = None
            else:
                found = tuple(self._list_one(request, item, _Looks()) for item in request.partitions)
        except _LongLookError:
            found = None
        if found is None:
            self._list_later(request, context, reply)
        else:
            reply(ListOffsetsResponse(partitions=found))

    async def _list_in_turn(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        """Any broker can answer for `__consumer_offsets`."""
        found = [
            await self._list_slot(item)
            if item.topic == CONSUMER_OFFSETS_TOPIC
            else await self._list_with_threads(request, item)
            async for item in sliced(request.partitions, self._clock.now_ms)
        ]
        return ListOffsetsResponse(partitions=tuple(found))

    async def _list_with_threads(
        self, request: ListOffsetsRequest, item: ListOffsetsPartition
    ) -> ListOffsetsPartitionResponse:
        """Accept the result of a thread if the log still leads to the same batch."""
        looks = _Looks()
        for _ in range(MAX_LOOKS):
            try:
                return self._list_one(request, item, looks)
            except _LongLookError as long:
                try:
                    looks.found[long.look] = await self._look_in_thread(long)
                except BarnabasError as error:
                    return _refused(item, error)
        return _refused(item, RequestTimedOutError("the log changed during each lookup; ask again"))

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

    async def _look_in_thread(self, long: _LongLookError) -> tuple[int, int] | None:
        size_bytes = len(long.batch)
        if not self._memory.take(size_bytes):
            raise RequestTimedOutError("too many lookups are waiting; retry")
        try:
            async with self._looking:
                look = partial(
                    first_record_at_or_after,
                    long.batch,
                    long.look.timestamp_ms,
                    long.look.from_offset,
                    pause=_let_the_loop_go_first,
                )
                # Keep the turn until the thread has finished, even if the client disconnects.
                return await to_its_end(asyncio.get_running_loop().run_in_executor(None, look))
        finally:
            self._memory.give_back(size_bytes)

    def _list_one(
        self, request: ListOffsetsRequest, item: ListOffsetsPartition, look: LookIntoBatch
    ) -> ListOffsetsPartitionResponse:
        try:
            replica = self._replication.replica(TopicPartition(item.topic, item.partition))
            replica.role.check_topic_id(item.topic_id)
            found = replica.reads.list_offset(
                item.timestamp_ms,
                isolation_level=request.isolation_level,
                current_leader_epoch=item.current_leader_epoch,
                for_replica=request.replica_id >= 0,
                look=look,
            )
        except BarnabasError as error:
            return _refused(item, error)
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
            leader_epoch, end_offset = partition.reads.end_offset_for_epoch(
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
        """Return the new log start offset."""
        if topic_partition.topic in INTERNAL_TOPICS:
            raise InvalidTopicError(f"{topic_partition.topic} is an internal topic of the cluster: it is read-only")
        return self._replication.replica(topic_partition).leading.delete_records(offset)


def _names_slots(request: ListOffsetsRequest) -> bool:
    return any(item.topic == CONSUMER_OFFSETS_TOPIC for item in request.partitions)


def _refused(item: ListOffsetsPartition, error: BarnabasError) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        topic=item.topic, partition=item.partition, error=error.code, message=error.message
    )


def _let_the_loop_go_first() -> None:
    time.sleep(THREAD_PAUSE_S)

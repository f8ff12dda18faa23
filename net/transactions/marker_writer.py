"""Writes the markers that coordinators send: into the partitions that this broker leads, and to the groups that it coordinates.

A marker counts when the high watermark has passed it: only then the coordinator may call the transaction complete. In the
second version of the protocol the epoch of a marker is newer than that of the records. So a marker whose epoch the partition
knows already is a repetition: without an open transaction it is acknowledged again, and behind the next transaction it is
refused.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.format.record_codec import encode_marker
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InvalidProducerEpochError, UnknownTopicIdError
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import GroupOutcome, TransactionMarker

from ..base.clock import Clock
from ..groups.slot_hosting import SlotHosting
from ..logs.replication_service import ReplicationService
from ..protocol.requests import WriteMarkersRequest
from ..protocol.responses import MarkerOutcomes, WriteMarkersResponse
from ..server.purgatory import DelayedProduce, Operation

ACKS_ALL: Final = -1
COMMIT_TIMEOUT_MS: Final = 5_000  # until the in-sync replicas have the markers; then the coordinator sends them again

Required = dict[TopicPartition, tuple[int, int]]  # offset that the high watermark must reach, leadership


class MarkerWriter:
    def __init__(
        self,
        *,
        replication: ReplicationService,
        slots: SlotHosting[SlotCoordinator],
        clock: Clock,
        ended: Callable[[TopicPartition, int], None],
    ) -> None:
        """`ended` learns of every marker that is appended: checks of the producer's records that are under way are void."""
        self._replication = replication
        self._slots = slots
        self._clock = clock
        self._ended = ended

    async def write(self, request: WriteMarkersRequest) -> WriteMarkersResponse:
        required: Required = {}
        appended = [self._append(marker, required) for marker in request.markers]
        groups, late = await asyncio.gather(
            asyncio.gather(*(self._end_offsets(marker) for marker in request.markers)), self._committed(required)
        )
        return WriteMarkersResponse(
            outcomes=tuple(
                MarkerOutcomes(partitions=tuple(_with_late(item, late) for item in partitions), groups=ended)
                for partitions, ended in zip(appended, groups, strict=True)
            )
        )

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _append(self, marker: TransactionMarker, required: Required) -> list[PartitionOutcome]:
        outcomes = []
        for topic in marker.topics:
            for number in topic.partitions:
                topic_partition = TopicPartition(topic.topic, number)
                try:
                    required[topic_partition] = self._append_one(marker, topic_partition, topic.topic_id)
                    outcomes.append(PartitionOutcome(topic=topic.topic, partition=number))
                except BarnabasError as error:
                    told = self._replication.as_told(topic_partition, error)
                    outcomes.append(
                        PartitionOutcome(topic=topic.topic, partition=number, error=told.code, message=told.message)
                    )
        return outcomes

    def _append_one(self, marker: TransactionMarker, topic_partition: TopicPartition, topic_id: str) -> tuple[int, int]:
        partition = self._replication.manager.partition(topic_partition)
        if topic_id and partition.topic_id != topic_id:
            raise UnknownTopicIdError(f"{topic_partition} has topic id {partition.topic_id} here, not {topic_id}")
        if marker.uses_v2 and self._is_repeated(partition, marker):
            return partition.log.log_end_offset, partition.leadership
        batch = encode_marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=self._clock.wall_ms(),
        )
        _, required_offset = self._replication.append(partition, batch, acks=ACKS_ALL, from_coordinator=True)
        self._ended(topic_partition, marker.producer_id)
        return required_offset, partition.leadership

    def _is_repeated(self, partition: Partition, marker: TransactionMarker) -> bool:
        entry = partition.log.producers.find(marker.producer_id)
        if entry is None or entry.epoch != marker.producer_epoch or not partition.role.is_leader:
            return False
        if entry.open_transaction_offset >= 0:
            raise InvalidProducerEpochError(
                f"producer {marker.producer_id} has begun its next transaction in epoch {marker.producer_epoch}: "
                "the marker is late"
            )
        return True

    async def _committed(self, required: Required) -> dict[TopicPartition, ErrorCode]:
        """Wait until the high watermarks have passed the markers; return what happened instead."""
        if not required:
            return {}
        answer: asyncio.Future[dict[TopicPartition, ErrorCode]] = asyncio.get_running_loop().create_future()

        def completed(operation: Operation) -> None:
            assert isinstance(operation, DelayedProduce)
            if not answer.done():
                answer.set_result(operation.errors)

        delayed = DelayedProduce(token=completed, client=self, timeout_ms=COMMIT_TIMEOUT_MS)
        for topic_partition, (required_offset, leadership) in required.items():
            delayed.wait_for(topic_partition, required_offset=required_offset, leadership=leadership)
        self._replication.park(delayed)
        return await answer

    # --- groups -------------------------------------------------------------------------------------------------------

    async def _end_offsets(self, marker: TransactionMarker) -> tuple[GroupOutcome, ...]:
        return tuple(await asyncio.gather(*(self._end_offsets_of(group_id, marker) for group_id in marker.groups)))

    async def _end_offsets_of(self, group_id: str, marker: TransactionMarker) -> GroupOutcome:
        try:
            slot = self._slots.available(slot_of(group_id), f"group {group_id!r}")
            await slot.decide(
                lambda machine: machine.offsets.end(
                    group_id=group_id,
                    producer_id=marker.producer_id,
                    marker_epoch=marker.producer_epoch,
                    uses_v2=marker.uses_v2,
                    is_commit=marker.is_commit,
                    now_ms=self._slots.now_ms(),
                )
            )
        except BarnabasError as error:
            return GroupOutcome(group_id=group_id, error=error.code, message=error.message)
        return GroupOutcome(group_id=group_id)


def _with_late(item: PartitionOutcome, late: dict[TopicPartition, ErrorCode]) -> PartitionOutcome:
    code = late.get(TopicPartition(item.topic, item.partition), ErrorCode.NONE)
    if item.error or not code:
        return item
    return PartitionOutcome(
        topic=item.topic, partition=item.partition, error=code, message="the marker is not on all in-sync replicas yet"
    )

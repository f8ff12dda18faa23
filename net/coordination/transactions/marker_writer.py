"""Writes the markers that coordinators send: into the partitions that this broker leads, and to the groups that it coordinates.

A marker may be delayed on its way until the transaction has ended by a repetition of it, and the next one has begun. It must not
end that one. (1) It names the coordinator epoch of its slot, and counts only while that is the current one. (2) It names the
leader epoch of the partition, or the coordinator epoch of the group's slot: after a change, only markers count that were sent
after it, so of transactions that were not complete then. (3) It names when its transaction began: what has begun at this leader
or slot, after the coordinator was asked (`verification`), is ended only by markers with the same stamp.

A marker counts when the high watermark has passed it: only then the coordinator may call the transaction complete. In the
second version of the protocol the epoch of a marker is newer than that of the records. So a marker whose epoch the partition
knows already is a repetition: without an open transaction it is acknowledged again, and behind the next transaction it is
refused.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.format.record_codec import encode_marker
from barnabas.log.replication.partition import Partition
from barnabas.log.segment.producer_state import NO_COORDINATOR_EPOCH
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    CoordinatorNotAvailableError,
    ErrorCode,
    InvalidProducerEpochError,
    NotCoordinatorError,
    TransactionCoordinatorFencedError,
    UnknownTopicIdError,
    error_for,
)
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import NOT_STARTED, GroupOutcome, TransactionMarker
from barnabas.net.base.clock import Clock
from barnabas.net.base.slices import SharedSlice
from barnabas.net.logs.purgatory import DelayedProduce, Operation
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.wire.protocol.requests import WriteMarkersRequest
from barnabas.net.wire.protocol.responses import MarkerOutcomes, WriteMarkersResponse

from ..groups.slot_hosting import SlotHosting

ACKS_ALL: Final = -1
# Until the in-sync replicas have the markers, which takes some milliseconds. All markers of a request wait for the slowest
# partition. Then the coordinator sends those that are late again, apart from the others.
COMMIT_TIMEOUT_MS: Final = 250
MAX_LATE: Final = 10_000  # markers that are known to be in the log; another one that is repeated is appended again

Required = dict[TopicPartition, tuple[int, int]]  # offset that the high watermark must reach, leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A marker that is in the log, and the high watermark that it needs."""

    ended: tuple[int, int, int]  # producer epoch, coordinator epoch, and when the transaction began
    required_offset: int
    leadership: int


Written = dict[tuple[TopicPartition, int], _Written]  # by partition and producer id


class MarkerWriter:
    def __init__(
        self,
        *,
        replication: ReplicationService,
        slots: SlotHosting[SlotCoordinator],
        clock: Clock,
        slot_epoch: Callable[[str], int],
        ended: Callable[[TopicPartition, int, int], None],
    ) -> None:
        """`slot_epoch(transactional_id)`: the coordinator epoch of its slot, as the metadata of this broker says. `ended` learns
        of every marker that is appended: its partition, its producer, and when the transaction began."""
        self._replication = replication
        self._slots = slots
        self._clock = clock
        self._slot_epoch = slot_epoch
        self._ended = ended
        self._late: Written = {}  # those that the in-sync replicas did not have in time, the oldest first

    async def write(self, request: WriteMarkersRequest) -> WriteMarkersResponse:
        written: Written = {}
        part = SharedSlice(self._clock.now_ms)
        appended = [await self._append(marker, written, part) for marker in request.markers]
        required: Required = {}
        for (topic_partition, _), item in written.items():
            # The leader may have changed while the loop ran between two markers, and truncated the first: neither counts then.
            offset, leadership = required.get(topic_partition, (0, item.leadership))
            required[topic_partition] = max(offset, item.required_offset), min(leadership, item.leadership)
        groups, late = await asyncio.gather(
            asyncio.gather(*(self._end_offsets(marker) for marker in request.markers)), self._committed(required)
        )
        self._remember(written, late)
        return WriteMarkersResponse(
            outcomes=tuple(
                MarkerOutcomes(partitions=tuple(_with_late(item, late) for item in partitions), groups=ended)
                for partitions, ended in zip(appended, groups, strict=True)
            )
        )

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _remember(self, written: Written, late: dict[TopicPartition, ErrorCode]) -> None:
        for key, item in written.items():
            self._late.pop(key, None)
            if late.get(key[0]) == ErrorCode.REQUEST_TIMED_OUT:
                self._late[key] = item
        while len(self._late) > MAX_LATE:
            del self._late[next(iter(self._late))]

    async def _append(self, marker: TransactionMarker, written: Written, part: SharedSlice) -> list[PartitionOutcome]:
        outcomes = []
        leader_epochs = iter(marker.leader_epochs)
        for topic in marker.topics:
            for number in topic.partitions:
                topic_partition = TopicPartition(topic.topic, number)
                leader_epoch = next(leader_epochs, None)
                try:
                    self._check_coordinator(marker)
                    required = self._append_one(marker, topic_partition, topic.topic_id, leader_epoch)
                    written[topic_partition, marker.producer_id] = _Written(
                        ended=_ended_by(marker), required_offset=required[0], leadership=required[1]
                    )
                    outcomes.append(PartitionOutcome(topic=topic.topic, partition=number))
                except BarnabasError as error:
                    told = self._replication.as_told(topic_partition, error)
                    outcomes.append(
                        PartitionOutcome(topic=topic.topic, partition=number, error=told.code, message=told.message)
                    )
                await part.step()
        return outcomes

    def _check_coordinator(self, marker: TransactionMarker) -> None:
        epoch = self._slot_epoch(marker.transactional_id)
        if marker.coordinator_epoch < epoch:
            raise TransactionCoordinatorFencedError(
                f"a marker of {marker.transactional_id!r} comes from coordinator epoch {marker.coordinator_epoch}, and epoch "
                f"{epoch} has taken over"
            )
        if marker.coordinator_epoch > epoch:
            raise CoordinatorNotAvailableError(
                f"coordinator epoch {marker.coordinator_epoch} of {marker.transactional_id!r} is not known here yet; try again"
            )

    def _append_one(
        self, marker: TransactionMarker, topic_partition: TopicPartition, topic_id: str, leader_epoch: int | None
    ) -> tuple[int, int]:
        partition = self._replication.manager.partition(topic_partition)
        if topic_id and partition.topic_id != topic_id:
            raise UnknownTopicIdError(f"{topic_partition} has topic id {partition.topic_id} here, not {topic_id}")
        late = self._late.get((topic_partition, marker.producer_id))
        if late is not None and (late.ended, late.leadership) == (_ended_by(marker), partition.leadership):
            return late.required_offset, late.leadership  # it is in the log
        if marker.uses_v2 and self._is_repeated(partition, marker):
            return partition.log.log_end_offset, partition.leadership
        _check_stamp(partition, marker)
        batch = encode_marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=self._clock.wall_ms(),
        )
        _, required_offset = self._replication.append(
            partition, batch, acks=ACKS_ALL, leader_epoch=leader_epoch, from_coordinator=True
        )
        self._ended(topic_partition, marker.producer_id, marker.started_ms)
        return required_offset, partition.leadership

    async def abort_hanging(self, partition: Partition, *, producer_id: int, producer_epoch: int) -> None:
        """End a transaction that no coordinator knows, and return when the in-sync replicas have its end. The epoch of the
        coordinator stays what the producer's last marker had. Raises what an append raises."""
        entry = partition.log.producers.find(producer_id)
        batch = encode_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_commit=False,
            coordinator_epoch=NO_COORDINATOR_EPOCH if entry is None else entry.coordinator_epoch,
            timestamp_ms=self._clock.wall_ms(),
        )
        topic_partition = partition.topic_partition
        _, required_offset = self._replication.append(partition, batch, acks=ACKS_ALL, from_coordinator=True)
        self._ended(topic_partition, producer_id, NOT_STARTED)
        late = await self._committed({topic_partition: (required_offset, partition.leadership)})
        if code := late.get(topic_partition, ErrorCode.NONE):
            raise error_for(code, f"the end of the transaction is not on all in-sync replicas of {topic_partition} yet")

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
        epochs = marker.group_epochs or (None,) * len(marker.groups)
        return tuple(
            await asyncio.gather(
                *(
                    self._end_offsets_of(group_id, marker, slot_epoch)
                    for group_id, slot_epoch in zip(marker.groups, epochs, strict=False)
                )
            )
        )

    async def _end_offsets_of(self, group_id: str, marker: TransactionMarker, slot_epoch: int | None) -> GroupOutcome:
        try:
            self._check_coordinator(marker)
            slot = self._slots.available(slot_of(group_id), f"group {group_id!r}")
            if slot_epoch is not None and slot_epoch != slot.coordinator_epoch:
                raise NotCoordinatorError(
                    f"group {group_id!r} is in coordinator epoch {slot.coordinator_epoch}, the marker was sent to {slot_epoch}"
                )
            await slot.decide(
                lambda machine: machine.offsets.end(
                    group_id=group_id,
                    producer_id=marker.producer_id,
                    marker_epoch=marker.producer_epoch,
                    uses_v2=marker.uses_v2,
                    is_commit=marker.is_commit,
                    started_ms=marker.started_ms,
                    now_ms=self._slots.now_ms(),
                )
            )
        except BarnabasError as error:
            return GroupOutcome(group_id=group_id, error=error.code, message=error.message)
        return GroupOutcome(group_id=group_id)


def _ended_by(marker: TransactionMarker) -> tuple[int, int, int]:
    return marker.producer_epoch, marker.coordinator_epoch, marker.started_ms


def _check_stamp(partition: Partition, marker: TransactionMarker) -> None:
    entry = partition.log.producers.find(marker.producer_id)
    known = NOT_STARTED if entry is None else entry.transaction_started_ms
    if NOT_STARTED != known != marker.started_ms != NOT_STARTED:
        raise InvalidProducerEpochError(
            f"producer {marker.producer_id} has a transaction open that began at {known}, the marker ends that of "
            f"{marker.started_ms}: it is late"
        )


def _with_late(item: PartitionOutcome, late: dict[TopicPartition, ErrorCode]) -> PartitionOutcome:
    code = late.get(TopicPartition(item.topic, item.partition), ErrorCode.NONE)
    if item.error or not code:
        return item
    return PartitionOutcome(
        topic=item.topic, partition=item.partition, error=code, message="the marker is not on all in-sync replicas yet"
    )

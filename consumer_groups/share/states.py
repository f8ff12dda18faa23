"""What share groups have done with the records of partitions, at the coordinator of a slot: leaders load it and write it.

A leader loads a state once, with its leader epoch. The load id that it gets makes the writes of every earlier leader, and of its
own earlier loads, void; the sequence of its writes does the same for delayed attempts of its own.
"""

import random
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import SlotState, slot_of
from barnabas.kraft.group_state.share_groups import ShareGroup
from barnabas.kraft.metadata.records import RemoveShareStatesRecord, ShareStateRecord
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    FencedLeaderEpochError,
    GroupIdNotFoundError,
    InvalidRequestError,
    NonEmptyGroupError,
    NotCoordinatorError,
    UnknownTopicIdError,
)
from barnabas.log.vocabulary.group_messages import NO_OFFSET, PartitionOffset, PartitionOutcome
from barnabas.log.vocabulary.share.errors import FencedStateEpochError
from barnabas.log.vocabulary.share.messages import (
    LoadedShareState,
    LoadShareStatesRequest,
    LoadShareStatesResponse,
    ShareStateOutcome,
    ShareStateToLoad,
    ShareStateToWrite,
    WriteShareStatesRequest,
    WriteShareStatesResponse,
)

from ..model.decision import Decision
from ..model.messages import CoordinatorResult
from ..subscriptions.subscriptions import TopicsView

MAX_RANGES: Final = 20_000  # of one state: above the largest group.share.partition.max.record.locks
_LOAD_ID_BITS: Final = 53  # as random as it must be to tell two loads of a partition


class ShareStates:
    def __init__(self, *, state: SlotState, topics: TopicsView, rng: random.Random) -> None:
        self.topics = topics  # the newest view
        self._state = state
        self._rng = rng

    # --- leaders ------------------------------------------------------------------------------------------------------

    def load(
        self, request: LoadShareStatesRequest, topic_ids: Mapping[str, str], now_ms: int
    ) -> CoordinatorResult[LoadShareStatesResponse]:
        """From now on, only this leader may write these states. Raises GroupIdNotFoundError."""
        group = self.existing(request.group_id)
        decision = Decision(state=self._state, now_ms=now_ms)
        loaded = []
        for item in request.states:
            try:
                record = self._taken_over(request.group_id, group, item, topic_ids)
            except BarnabasError as error:
                loaded.append(LoadedShareState(error=error.code, message=error.message))
                continue
            decision.add(record)
            loaded.append(
                LoadedShareState(
                    load_id=record.load_id,
                    start_offset=record.start_offset,
                    ranges=record.ranges,
                    written_epoch=record.written_epoch,
                )
            )
        return CoordinatorResult(records=decision.finish(), response=LoadShareStatesResponse(states=tuple(loaded)))

    def _taken_over(
        self, group_id: str, group: ShareGroup, item: ShareStateToLoad, topic_ids: Mapping[str, str]
    ) -> ShareStateRecord:
        if topic_ids.get(item.topic) != item.topic_id or not 0 <= item.partition < self.topics.get(item.topic, 0):
            raise UnknownTopicIdError(
                f"{item.topic}-{item.partition} is not known at the coordinator of {group_id}; try again"
            )
        before = group.states.get((item.topic, item.partition))
        if before is None or before.topic_id != item.topic_id:
            begun = self._state_record(
                group_id, item.topic, item.partition, item.topic_id, item.initial_offset, item.leader_epoch
            )
            return replace(begun, written_epoch=item.leader_epoch)
        if item.leader_epoch < before.leader_epoch:
            raise FencedLeaderEpochError(
                f"leader epoch {item.leader_epoch} of {item.topic}-{item.partition} is over: {before.leader_epoch} has begun"
            )
        return replace(
            before,
            coordinator_epoch=self._state.coordinator_epoch,
            leader_epoch=item.leader_epoch,
            load_id=self._new_load_id(),
            sequence=0,
        )

    def write(self, request: WriteShareStatesRequest, now_ms: int) -> CoordinatorResult[WriteShareStatesResponse]:
        """Store what leaders have done. Raises GroupIdNotFoundError."""
        group = self.existing(request.group_id)
        decision = Decision(state=self._state, now_ms=now_ms)
        outcomes = []
        for item in request.states:
            try:
                decision.add(self._written(group, item))
            except BarnabasError as error:
                outcomes.append(ShareStateOutcome(error=error.code, message=error.message))
            else:
                outcomes.append(ShareStateOutcome())
        return CoordinatorResult(records=decision.finish(), response=WriteShareStatesResponse(outcomes=tuple(outcomes)))

    def _written(self, group: ShareGroup, item: ShareStateToWrite) -> ShareStateRecord:
        before = group.states.get((item.topic, item.partition))
        if before is None or item.load_id != before.load_id or item.sequence <= before.sequence:
            raise FencedStateEpochError(
                f"the state of {item.topic}-{item.partition} was loaded or changed since this leader loaded it: load it again"
            )
        if len(item.ranges) > MAX_RANGES or item.start_offset < 0:
            raise InvalidRequestError(
                f"a state of {len(item.ranges)} ranges from offset {item.start_offset} is not stored"
            )
        return replace(
            before,
            coordinator_epoch=self._state.coordinator_epoch,
            sequence=item.sequence,
            start_offset=item.start_offset,
            ranges=item.ranges,
            written_epoch=before.leader_epoch,
        )

    def _state_record(
        self, group_id: str, topic: str, partition: int, topic_id: str, start_offset: int, leader_epoch: int = -1
    ) -> ShareStateRecord:
        return ShareStateRecord(
            slot=self._state.slot,
            coordinator_epoch=self._state.coordinator_epoch,
            group_id=group_id,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            leader_epoch=leader_epoch,
            load_id=self._new_load_id(),
            sequence=0,
            start_offset=start_offset,
        )

    def _new_load_id(self) -> int:
        return self._rng.getrandbits(_LOAD_ID_BITS)

    def _without_states(self, group_id: str, topic: str) -> RemoveShareStatesRecord:
        return RemoveShareStatesRecord(
            slot=self._state.slot, coordinator_epoch=self._state.coordinator_epoch, group_id=group_id, topic=topic
        )

    # --- topics and operators -----------------------------------------------------------------------------------------

    def topics_gone(self, group_id: str, gone: AbstractSet[str], decision: Decision) -> None:
        """The quorum drops the states of a deleted topic; these were in flight at that time."""
        states = self._state.shares.groups[group_id].states
        for topic in sorted({key[0] for key in states} & gone):
            decision.add(self._without_states(group_id, topic))

    def of_group(self, group_id: str) -> CoordinatorResult[tuple[ShareStateRecord, ...]]:
        """Of all partitions that the group has read. Raises GroupIdNotFoundError."""
        states = self.existing(group_id).states
        return CoordinatorResult(records=(), response=tuple(states[key] for key in sorted(states)))

    def alter_offsets(
        self, group_id: str, offsets: tuple[PartitionOffset, ...], topic_ids: Mapping[str, str], now_ms: int
    ) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        """Begin elsewhere: all records from these offsets on are available. Raises NonEmptyGroupError, GroupIdNotFoundError."""
        group = self.empty(group_id)
        decision = Decision(state=self._state, now_ms=now_ms)
        outcomes = []
        for item in offsets:
            error, message = self._judged(item, topic_ids)
            if not error:
                before = group.states.get((item.topic, item.partition))
                epoch = -1 if before is None else before.leader_epoch
                topic_id = topic_ids[item.topic]
                decision.add(self._state_record(group_id, item.topic, item.partition, topic_id, item.offset, epoch))
            outcomes.append(PartitionOutcome(topic=item.topic, partition=item.partition, error=error, message=message))
        return CoordinatorResult(records=decision.finish(), response=tuple(outcomes))

    def reset_offsets(
        self, group_id: str, offsets: tuple[PartitionOffset, ...], topic_ids: Mapping[str, str], now_ms: int
    ) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        """As `alter_offsets`, all or nothing. Also raises InvalidRequestError."""
        self.empty(group_id)
        for item in offsets:  # before a decision, which takes effect at once
            error, message = self._judged(item, topic_ids)
            if error:
                raise InvalidRequestError(f"{item.topic}-{item.partition}: {message}")
        return self.alter_offsets(group_id, offsets, topic_ids, now_ms)

    def _judged(self, item: PartitionOffset, topic_ids: Mapping[str, str]) -> tuple[ErrorCode, str]:
        if not 0 <= item.partition < self.topics.get(item.topic, 0) or item.topic not in topic_ids:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist"
        if item.offset <= NO_OFFSET:
            return ErrorCode.INVALID_REQUEST, f"offset {item.offset} is negative"
        return ErrorCode.NONE, ""

    def delete_offsets(
        self, group_id: str, topics: tuple[str, ...], now_ms: int
    ) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        """Forget the states of whole topics: the group begins there as a new one. Raises NonEmptyGroupError,
        GroupIdNotFoundError."""
        group = self.empty(group_id)
        decision = Decision(state=self._state, now_ms=now_ms)
        known = {key[0] for key in group.states}
        outcomes = []
        for topic in topics:
            if topic in known:
                decision.add(self._without_states(group_id, topic))
                outcomes.append(PartitionOutcome(topic=topic, partition=-1))
            else:
                code, message = (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"group {group_id} has no offsets of topic {topic}",
                )
                outcomes.append(PartitionOutcome(topic=topic, partition=-1, error=code, message=message))
        return CoordinatorResult(records=decision.finish(), response=tuple(outcomes))

    def empty(self, group_id: str) -> ShareGroup:
        """The group, if it has no members. Raises NonEmptyGroupError, GroupIdNotFoundError."""
        group = self.existing(group_id)
        if group.members:
            raise NonEmptyGroupError(f"group {group_id} has {len(group.members)} members: stop them first")
        return group

    def existing(self, group_id: str) -> ShareGroup:
        """Raises GroupIdNotFoundError, NotCoordinatorError."""
        self.check_slot(group_id)
        group = self._state.shares.groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"there is no share group {group_id}")
        return group

    def check_slot(self, group_id: str) -> None:
        if slot_of(group_id) != self._state.slot:
            raise NotCoordinatorError(
                f"group {group_id} belongs to slot {slot_of(group_id)}, not to slot {self._state.slot}"
            )

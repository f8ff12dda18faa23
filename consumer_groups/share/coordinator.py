"""The coordinator of the share groups of one slot (KIP-932): their members, and the states that leaders of partitions store here.

Members own nothing, so a change of the assignment needs no handshake: a member learns it with its next heartbeat. The leader of a
partition loads the state of a group once, with its leader epoch; the load id that it gets makes the writes of every earlier
leader, and of its own earlier loads, void. The duties of the shell stand in `consumer_groups.coordinator`.
"""

import random
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import SlotState, slot_of
from barnabas.kraft.group_state.share_groups import ShareGroup
from barnabas.kraft.metadata.records import (
    RemoveShareGroupRecord,
    RemoveShareMemberRecord,
    RemoveShareStatesRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    ShareStateRecord,
)
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    FencedLeaderEpochError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    NonEmptyGroupError,
    NotCoordinatorError,
    UnknownMemberIdError,
    UnknownTopicIdError,
)
from barnabas.log.vocabulary.group_messages import (
    NO_OFFSET,
    ConsumerGroupHeartbeatResponse,
    PartitionOffset,
    PartitionOutcome,
)
from barnabas.log.vocabulary.share.errors import FencedStateEpochError
from barnabas.log.vocabulary.share.messages import (
    LoadedShareState,
    LoadShareStatesRequest,
    LoadShareStatesResponse,
    ShareGroupHeartbeatRequest,
    ShareStateOutcome,
    ShareStateToLoad,
    ShareStateToWrite,
    WriteShareStatesRequest,
    WriteShareStatesResponse,
)

from ..model.deadlines import Deadlines
from ..model.decision import Decision
from ..model.group_limits import check_group_id, check_ids, check_new_group
from ..model.messages import CoordinatorResult, DescribedMember, GroupDescription, ListedGroup, MemberEpoch
from ..model.settings import GroupSettings
from ..model.states import GroupPhase, MemberState
from ..subscriptions.subscriptions import TopicsView
from .assignor import Assignment, assign

SHARE_PROTOCOL: Final = "share"
ASSIGNOR: Final = "simple"
USUAL: Final = -1  # the group's configuration sets no time
MAX_RANGES: Final = 20_000  # of one state: above the largest group.share.partition.max.record.locks
_LOAD_ID_BITS: Final = 53  # as random as it must be to tell two loads of a partition


class ShareCoordinator:
    """`is_other_group`: whether a group of another type has the name."""

    def __init__(
        self,
        *,
        state: SlotState,
        settings: GroupSettings,
        topics: TopicsView,
        rng: random.Random,
        now_ms: int,
        is_other_group: Callable[[str], bool],
    ) -> None:
        self._state = state
        self._settings = settings
        self._topics = topics
        self._rng = rng
        self._is_other_group = is_other_group
        self._sessions = Deadlines()
        self._assignments: dict[str, Assignment] = {}  # by group; those of a change are dropped
        self._told: dict[tuple[str, str], int] = {}  # (group, member) -> the group epoch of the assignment that it has
        for group_id, group in state.shares.groups.items():
            for member_id in group.members:
                self._sessions.set((group_id, member_id), now_ms + settings.share_session_timeout_ms)

    # --- members ------------------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        request: ShareGroupHeartbeatRequest,
        now_ms: int,
        *,
        client_host: str = "",
        session_timeout_ms: int = USUAL,
        interval_ms: int = USUAL,
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """Raises UnknownMemberIdError, FencedMemberEpochError, GroupIdNotFoundError (another type of group has the name),
        GroupMaxSizeReachedError, InvalidRequestError."""
        self._check_request(request)
        decision = Decision(state=self._state, now_ms=now_ms)
        group_id, member_id = request.group_id, request.member_id
        if request.member_epoch == MemberEpoch.LEAVE:
            self._leave(request, decision)
            left = ConsumerGroupHeartbeatResponse(
                member_id=member_id, member_epoch=MemberEpoch.LEAVE, heartbeat_interval_ms=0
            )
            return CoordinatorResult(records=decision.finish(), response=left)
        member = self._found(request)
        if member is None or _has_changed(member, request):
            self._put_member(request, member, client_host, decision)
        timeout_ms = self._settings.share_session_timeout_ms if session_timeout_ms == USUAL else session_timeout_ms
        self._sessions.set((group_id, member_id), now_ms + timeout_ms)
        group = self._state.shares.groups[group_id]
        is_whole = request.subscribed_topics is not None or request.member_epoch != group.group_epoch
        is_told = self._told.get((group_id, member_id)) == group.group_epoch and not is_whole
        self._told[group_id, member_id] = group.group_epoch
        usual_ms = self._settings.share_heartbeat_interval_ms
        answer = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=group.group_epoch,
            heartbeat_interval_ms=usual_ms if interval_ms == USUAL else interval_ms,
            assignment=None if is_told else self._assignment(group_id)[member_id],
        )
        return CoordinatorResult(records=decision.finish(), response=answer)

    def _check_request(self, request: ShareGroupHeartbeatRequest) -> None:
        check_group_id(request.group_id, self._settings)
        self._check_slot(request.group_id)
        if self._is_other_group(request.group_id):
            raise GroupIdNotFoundError(
                f"group {request.group_id} is not a share group: choose another name, or delete that group"
            )
        check_ids((request.member_id, request.client_id, request.rack or ""), self._settings)
        if not request.member_id:
            raise InvalidRequestError("the member id is empty: a member of a share group chooses its own")
        if request.member_epoch < MemberEpoch.LEAVE:
            raise InvalidRequestError(f"member epoch {request.member_epoch} is invalid: use -1 or more")
        names = request.subscribed_topics
        if request.member_epoch == MemberEpoch.JOIN and not names:
            raise InvalidRequestError("a member that joins must subscribe to topics")
        if names is not None and len(names) > self._settings.max_subscribed_topics:
            raise InvalidRequestError(
                f"{len(names)} topics; a member may subscribe to {self._settings.max_subscribed_topics}"
            )

    def _found(self, request: ShareGroupHeartbeatRequest) -> ShareMemberRecord | None:
        """None: a new member, which may join."""
        group = self._state.shares.groups.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if request.member_epoch != MemberEpoch.JOIN:
            if group is None or member is None:
                raise UnknownMemberIdError(f"no member {request.member_id} in group {request.group_id}: rejoin")
            if request.member_epoch > group.group_epoch:
                raise FencedMemberEpochError(
                    f"member epoch {request.member_epoch}, but group {request.group_id} is at epoch {group.group_epoch}: rejoin"
                )
        elif group is None:
            existing = self._state.groups.keys() | self._state.shares.groups.keys()
            check_new_group(request.group_id, existing, self._settings)
        elif member is None and len(group.members) >= self._settings.max_share_group_size:
            raise GroupMaxSizeReachedError(
                f"group {request.group_id} already has {len(group.members)} members, the maximum (group.share.max.size)"
            )
        return member

    def _put_member(
        self,
        request: ShareGroupHeartbeatRequest,
        before: ShareMemberRecord | None,
        client_host: str,
        decision: Decision,
    ) -> None:
        self._raise_epoch(request.group_id, decision)
        topics = request.subscribed_topics
        if topics is None:
            assert before is not None, "a member that joins names its topics"
            topics = before.subscribed_topics
        decision.add(
            ShareMemberRecord(
                slot=self._state.slot,
                coordinator_epoch=self._state.coordinator_epoch,
                group_id=request.group_id,
                member_id=request.member_id,
                client_id=request.client_id,
                client_host=client_host,
                rack=request.rack if before is None or request.rack is not None else before.rack,
                subscribed_topics=tuple(sorted(set(topics))),
            )
        )

    def _leave(self, request: ShareGroupHeartbeatRequest, decision: Decision) -> None:
        group = self._state.shares.groups.get(request.group_id)
        if group is None or request.member_id not in group.members:
            raise UnknownMemberIdError(f"no member {request.member_id} in group {request.group_id}")
        self._remove_member(request.group_id, request.member_id, decision)

    def _remove_member(self, group_id: str, member_id: str, decision: Decision) -> None:
        decision.add(
            RemoveShareMemberRecord(
                slot=self._state.slot,
                coordinator_epoch=self._state.coordinator_epoch,
                group_id=group_id,
                member_id=member_id,
            )
        )
        self._sessions.cancel((group_id, member_id))
        self._told.pop((group_id, member_id), None)
        self._raise_epoch(group_id, decision)

    def _raise_epoch(self, group_id: str, decision: Decision) -> None:
        """Another assignment, which is computed when a member asks for it."""
        group = self._state.shares.groups.get(group_id)
        self._assignments.pop(group_id, None)
        decision.add(
            ShareGroupRecord(
                slot=self._state.slot,
                coordinator_epoch=self._state.coordinator_epoch,
                group_id=group_id,
                group_epoch=1 if group is None else group.group_epoch + 1,
            )
        )

    def _assignment(self, group_id: str) -> Assignment:
        found = self._assignments.get(group_id)
        if found is None:
            found = assign(self._state.shares.groups[group_id].members, self._topics)
            self._assignments[group_id] = found
        return found

    # --- time and topics ----------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> CoordinatorResult[None]:
        """Remove the members whose sessions have ended."""
        decision = Decision(state=self._state, now_ms=now_ms)
        for group_id, member_id in self._sessions.take_expired(now_ms):
            self._remove_member(group_id, member_id, decision)
        return CoordinatorResult(records=decision.finish(), response=None)

    def next_deadline_ms(self) -> int | None:
        return self._sessions.next_deadline_ms()

    @property
    def follows_topics(self) -> bool:
        return bool(self._state.shares.groups)

    def take_topics(self, topics: TopicsView) -> None:
        self._topics = topics

    def topics_changed(
        self, topics: TopicsView, now_ms: int, *, recreated: AbstractSet[str], changed: AbstractSet[str]
    ) -> CoordinatorResult[None]:
        """The quorum drops the states of a deleted topic; those here were in flight at that time."""
        before, self._topics = self._topics, topics
        decision = Decision(state=self._state, now_ms=now_ms)
        other = {name for name in changed if before.get(name) != topics.get(name)} | recreated
        gone = {name for name in other if name not in topics or name in recreated}
        for group_id, group in self._state.shares.groups.items():
            for topic in sorted({key[0] for key in group.states} & gone):
                decision.add(self._without_states(group_id, topic))
            if any(not other.isdisjoint(member.subscribed_topics) for member in group.members.values()):
                self._raise_epoch(group_id, decision)
        return CoordinatorResult(records=decision.finish(), response=None)

    # --- states of partitions -----------------------------------------------------------------------------------------

    def load(
        self, request: LoadShareStatesRequest, topic_ids: Mapping[str, str], now_ms: int
    ) -> CoordinatorResult[LoadShareStatesResponse]:
        """From now on, only this leader may write these states. Raises GroupIdNotFoundError."""
        group = self._group(request.group_id)
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
                LoadedShareState(load_id=record.load_id, start_offset=record.start_offset, ranges=record.ranges)
            )
        return CoordinatorResult(records=decision.finish(), response=LoadShareStatesResponse(states=tuple(loaded)))

    def _taken_over(
        self, group_id: str, group: ShareGroup, item: ShareStateToLoad, topic_ids: Mapping[str, str]
    ) -> ShareStateRecord:
        if topic_ids.get(item.topic) != item.topic_id or not 0 <= item.partition < self._topics.get(item.topic, 0):
            raise UnknownTopicIdError(
                f"{item.topic}-{item.partition} is not known at the coordinator of {group_id}; try again"
            )
        before = group.states.get((item.topic, item.partition))
        if before is None or before.topic_id != item.topic_id:
            return self._state_record(
                group_id, item.topic, item.partition, item.topic_id, item.initial_offset, item.leader_epoch
            )
        if item.leader_epoch < before.leader_epoch:
            raise FencedLeaderEpochError(
                f"leader epoch {item.leader_epoch} of {item.topic}-{item.partition} is over: epoch {before.leader_epoch} has begun"
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
        group = self._group(request.group_id)
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

    # --- operators ----------------------------------------------------------------------------------------------------

    def has_group(self, group_id: str) -> bool:
        return group_id in self._state.shares.groups

    def listed(self) -> tuple[ListedGroup, ...]:
        return tuple(
            ListedGroup(
                group_id=group_id,
                phase=_phase_of(group),
                protocol=SHARE_PROTOCOL,
                protocol_type=SHARE_PROTOCOL,
                member_count=len(group.members),
            )
            for group_id, group in sorted(self._state.shares.groups.items())
        )

    def describe(self, group_id: str) -> CoordinatorResult[GroupDescription]:
        """A group that does not exist is described as DEAD."""
        self._check_slot(group_id)
        group = self._state.shares.groups.get(group_id)
        if group is None:
            return CoordinatorResult(records=(), response=GroupDescription(group_id=group_id, phase=GroupPhase.DEAD))
        assignment = self._assignment(group_id)
        members = tuple(
            DescribedMember(
                member_id=member_id,
                instance_id=None,
                client_id=member.client_id,
                client_host=member.client_host,
                member_epoch=self._told.get((group_id, member_id), group.group_epoch),
                state=MemberState.STABLE,
                subscribed_topics=member.subscribed_topics,
                subscribed_pattern=None,
                assigned=assignment[member_id],
                pending_revocation=(),
                target=assignment[member_id],
                rack=member.rack,
            )
            for member_id, member in sorted(group.members.items())
        )
        found = GroupDescription(
            group_id=group_id,
            phase=_phase_of(group),
            group_epoch=group.group_epoch,
            assignment_epoch=group.group_epoch,
            protocol=SHARE_PROTOCOL,
            protocol_type=SHARE_PROTOCOL,
            assignor=ASSIGNOR,
            members=members,
        )
        return CoordinatorResult(records=(), response=found)

    def delete_group(self, group_id: str, now_ms: int) -> CoordinatorResult[None]:
        """Raises NonEmptyGroupError, GroupIdNotFoundError."""
        self._check_empty(group_id)
        decision = Decision(state=self._state, now_ms=now_ms)
        decision.add(
            RemoveShareGroupRecord(
                slot=self._state.slot, coordinator_epoch=self._state.coordinator_epoch, group_id=group_id
            )
        )
        self._assignments.pop(group_id, None)
        return CoordinatorResult(records=decision.finish(), response=None)

    def offsets(self, group_id: str) -> CoordinatorResult[tuple[ShareStateRecord, ...]]:
        """The states of all partitions that the group has read. Raises GroupIdNotFoundError."""
        states = self._group(group_id).states
        return CoordinatorResult(records=(), response=tuple(states[key] for key in sorted(states)))

    def alter_offsets(
        self, group_id: str, offsets: tuple[PartitionOffset, ...], topic_ids: Mapping[str, str], now_ms: int
    ) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        """Begin elsewhere: all records from these offsets on are available. Raises NonEmptyGroupError, GroupIdNotFoundError."""
        group = self._check_empty(group_id)
        decision = Decision(state=self._state, now_ms=now_ms)
        outcomes = []
        for item in offsets:
            error, message = ErrorCode.NONE, ""
            if not 0 <= item.partition < self._topics.get(item.topic, 0) or item.topic not in topic_ids:
                error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist"
            elif item.offset <= NO_OFFSET:
                error, message = ErrorCode.INVALID_REQUEST, f"offset {item.offset} is negative"
            else:
                before = group.states.get((item.topic, item.partition))
                epoch = -1 if before is None else before.leader_epoch
                topic_id = topic_ids[item.topic]
                decision.add(self._state_record(group_id, item.topic, item.partition, topic_id, item.offset, epoch))
            outcomes.append(PartitionOutcome(topic=item.topic, partition=item.partition, error=error, message=message))
        return CoordinatorResult(records=decision.finish(), response=tuple(outcomes))

    def delete_offsets(
        self, group_id: str, topics: tuple[str, ...], now_ms: int
    ) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        """Forget the states of whole topics: the group begins there as a new one. Raises NonEmptyGroupError,
        GroupIdNotFoundError."""
        group = self._check_empty(group_id)
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

    def _check_empty(self, group_id: str) -> ShareGroup:
        group = self._group(group_id)
        if group.members:
            raise NonEmptyGroupError(f"group {group_id} has {len(group.members)} members: stop them first")
        return group

    def _group(self, group_id: str) -> ShareGroup:
        self._check_slot(group_id)
        group = self._state.shares.groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"there is no share group {group_id}")
        return group

    def _check_slot(self, group_id: str) -> None:
        if slot_of(group_id) != self._state.slot:
            raise NotCoordinatorError(
                f"group {group_id} belongs to slot {slot_of(group_id)}, not to slot {self._state.slot}"
            )


def _has_changed(member: ShareMemberRecord, request: ShareGroupHeartbeatRequest) -> bool:
    topics = request.subscribed_topics
    if topics is not None and tuple(sorted(set(topics))) != member.subscribed_topics:
        return True
    return request.rack is not None and request.rack != member.rack


def _phase_of(group: ShareGroup) -> GroupPhase:
    return GroupPhase.STABLE if group.members else GroupPhase.EMPTY

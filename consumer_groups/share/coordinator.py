"""The coordinator of the share groups of one slot (KIP-932): their members. `states` keeps what they have done with records.

Members own nothing, so a change of the assignment needs no handshake: a member learns it with its next heartbeat. The duties of
the shell stand in `consumer_groups.coordinator`.
"""

import random
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from barnabas.kraft.group_state.group_slots import SlotState
from barnabas.kraft.group_state.share_groups import ShareGroup
from barnabas.kraft.metadata.records import (
    RemoveShareGroupRecord,
    RemoveShareMemberRecord,
    ShareGroupRecord,
    ShareMemberRecord,
)
from barnabas.log.vocabulary.errors import (
    FencedMemberEpochError,
    GroupAuthorizationError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatResponse,
)
from barnabas.log.vocabulary.share.messages import (
    SHARE_PROTOCOL,
    ShareGroupHeartbeatRequest,
)

from ..model.deadlines import Deadlines
from ..model.decision import Decision
from ..model.group_limits import check_group_id, check_ids, check_new_group
from ..model.messages import CoordinatorResult, DescribedMember, GroupDescription, ListedGroup, MemberEpoch
from ..model.settings import GroupSettings
from ..model.states import GroupPhase, MemberState
from ..subscriptions.subscriptions import TopicsView
from .assignor import Assignment, assign
from .states import ShareStates

ASSIGNOR: Final = "simple"
USUAL: Final = -1  # the group's configuration sets no time


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
        self.states = ShareStates(state=state, topics=topics, rng=rng)
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
        principal: str = "",
        session_timeout_ms: int = USUAL,
        interval_ms: int = USUAL,
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """Raises UnknownMemberIdError, FencedMemberEpochError, GroupIdNotFoundError (another type of group has the name),
        GroupMaxSizeReachedError, InvalidRequestError, GroupAuthorizationError (the member is another user's)."""
        self._check_request(request)
        self._check_user(request, principal)
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
            self._put_member(request, member, client_host, principal, decision)
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
        self.states.check_slot(request.group_id)
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

    def _check_user(self, request: ShareGroupHeartbeatRequest, principal: str) -> None:
        """A member id is no secret: another user that knows it must not keep the member alive, change it, or end it."""
        group = self._state.shares.groups.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if member is not None and member.principal not in ("", principal):
            raise GroupAuthorizationError(
                f"member {request.member_id} of group {request.group_id} belongs to another user: choose another member id"
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
        principal: str,
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
                principal=principal,
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
            found = assign(self._state.shares.groups[group_id].members, self.states.topics)
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

    def topics_changed(
        self, topics: TopicsView, now_ms: int, *, recreated: AbstractSet[str], changed: AbstractSet[str]
    ) -> CoordinatorResult[None]:
        before, self.states.topics = self.states.topics, topics
        decision = Decision(state=self._state, now_ms=now_ms)
        other = {name for name in changed if before.get(name) != topics.get(name)} | recreated
        gone = {name for name in other if name not in topics or name in recreated}
        for group_id, group in self._state.shares.groups.items():
            self.states.topics_gone(group_id, gone, decision)
            if any(not other.isdisjoint(member.subscribed_topics) for member in group.members.values()):
                self._raise_epoch(group_id, decision)
        return CoordinatorResult(records=decision.finish(), response=None)

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
        self.states.check_slot(group_id)
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
        self.states.empty(group_id)
        decision = Decision(state=self._state, now_ms=now_ms)
        decision.add(
            RemoveShareGroupRecord(
                slot=self._state.slot, coordinator_epoch=self._state.coordinator_epoch, group_id=group_id
            )
        )
        self._assignments.pop(group_id, None)
        return CoordinatorResult(records=decision.finish(), response=None)


def _has_changed(member: ShareMemberRecord, request: ShareGroupHeartbeatRequest) -> bool:
    topics = request.subscribed_topics
    if topics is not None and tuple(sorted(set(topics))) != member.subscribed_topics:
        return True
    return request.rack is not None and request.rack != member.rack


def _phase_of(group: ShareGroup) -> GroupPhase:
    return GroupPhase.STABLE if group.members else GroupPhase.EMPTY

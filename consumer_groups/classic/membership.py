"""Requests of the members of classic groups: they join, sync, heartbeat, leave and expire; the leader member computes the
assignment (KIP-62, KIP-394, KIP-345, KIP-814).

`members` knows who is in a group, `rebalancing` takes the group through the two steps of a rebalance. Members that join, leave or
change between these steps are held only in memory (`group`), and so are parked requests.
"""

import dataclasses
import random

from barnabas.kraft.group_state.group_slots import SlotState
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
)
from barnabas.log.vocabulary.group_messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from ..model.classic_messages import Answer, LeaveOutcome, Ticket
from ..model.decision import Decision
from ..model.group_limits import check_new_group
from ..model.rebalance_causes import RebalanceCause, cause_of_leaving
from ..model.rebalance_log import RebalanceLog
from ..model.settings import GroupSettings
from ..model.states import GroupPhase
from .causes import cause_of_joining_again, let_go_by_joining
from .checks import check_join, check_room, check_sync
from .group import ClassicGroup, ClassicMember
from .members import ClassicMembers, unknown_member
from .rebalancing import ClassicRebalancing
from .records import current_record, member_record

MEMBER_ID_BITS = 128  # as random as a UUID: never given twice


class ClassicMembership:
    def __init__(
        self, *, state: SlotState, settings: GroupSettings, log: RebalanceLog, rng: random.Random, now_ms: int
    ) -> None:
        self.members = ClassicMembers(state=state, log=log, now_ms=now_ms)
        self.rebalancing = ClassicRebalancing(
            state=state, settings=settings, members=self.members, log=log, now_ms=now_ms
        )
        self._state = state
        self._settings = settings
        self._rng = rng

    # --- joining ------------------------------------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, ticket: Ticket, decision: Decision, *, needs_known_id: bool = True
    ) -> None:
        """`needs_known_id` (KIP-394): answer with an id first, so that a lost answer leaves no orphaned member. Raises
        UnknownMemberIdError, InconsistentGroupProtocolError, GroupMaxSizeReachedError and others."""
        check_join(request, self._settings)
        group = self._group_to_join(request)
        if request.member_id:
            known = group.members.get(request.member_id)
            if known is None and request.member_id not in group.pending:
                raise unknown_member(request.group_id, request.member_id)
            member = self.members.find(group, request.member_id, request.instance_id) if known is not None else None
            self._check_protocols(group, request)
        else:
            member = group.holder_of(request.instance_id)
            check_room(group, request, self._settings, is_new=member is None)
            self._check_protocols(group, request, but="" if member is None else member.member_id)
        if group.group_id not in self.members.groups:
            check_new_group(group.group_id, self._state.groups.keys() | self.members.groups.keys(), self._settings)
        self.members.groups[group.group_id] = group
        if member is None:
            self._enter(group, request, ticket, decision, needs_known_id)
        elif request.member_id:
            self._rejoin(group, member, request, ticket, decision)
        else:
            self._replace_static(group, member, request, ticket, decision)

    def _group_to_join(self, request: JoinGroupRequest) -> ClassicGroup:
        group = self.members.groups.get(request.group_id)
        if group is not None:
            return group
        stored = self._state.groups.get(request.group_id)
        if stored is not None and stored.members:
            raise InconsistentGroupProtocolError(
                f"the members of group {request.group_id} use the consumer protocol: set group.protocol=consumer, or stop them"
            )
        generation = 0 if stored is None else stored.group.group_epoch
        return ClassicGroup(group_id=request.group_id, generation=generation, assigned_generation=generation)

    def _check_protocols(self, group: ClassicGroup, request: JoinGroupRequest, *, but: str = "") -> None:
        if not group.supports(request.protocol_type, request.protocols, but=but or request.member_id):
            names = ", ".join(item.name for item in request.protocols)
            raise InconsistentGroupProtocolError(
                f"group {request.group_id} ({group.protocol_type}) uses {group.protocol_name or 'other assignors'}; this member "
                f"offers {names} ({request.protocol_type}): configure an assignor that all members have in common"
            )

    def _enter(
        self, group: ClassicGroup, request: JoinGroupRequest, ticket: Ticket, decision: Decision, needs_known_id: bool
    ) -> None:
        member_id = request.member_id or f"{request.client_id or 'member'}-{self._rng.getrandbits(MEMBER_ID_BITS):032x}"
        if not request.member_id and request.instance_id is None and needs_known_id:
            group.pending.add(member_id)
            self.members.sessions.set((group.group_id, member_id), decision.now_ms + request.session_timeout_ms)
            answer = JoinGroupResponse(member_id=member_id, error=ErrorCode.MEMBER_ID_REQUIRED)
            decision.answers.append(Answer(ticket=ticket, value=answer))
            return
        group.pending.discard(member_id)
        if not group.members:
            group.protocol_type = request.protocol_type
        member = ClassicMember(record=member_record(self._state, member_id, request, decision.client_host), is_new=True)
        group.add(member)
        group.has_newcomers = True
        self._park_join(group, member, ticket, decision)
        self.rebalancing.begin(group, RebalanceCause.MEMBER_JOINED, member.record, request.reason, decision)

    def _rejoin(
        self, group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest, ticket: Ticket, decision: Decision
    ) -> None:
        """A member of this generation rejoins: it may retry its request, change its metadata, or follow a rebalance."""
        record = member_record(self._state, member.member_id, request, decision.client_host)
        is_same = record.classic_metadata == member.record.classic_metadata
        is_leader_again = group.phase is GroupPhase.STABLE and member.member_id == group.leader_id
        if group.phase is not GroupPhase.PREPARING_REBALANCE and is_same and not is_leader_again:
            self.members.start_session(group, member, decision.now_ms)
            decision.answers.append(Answer(ticket=ticket, value=group.join_answer(member.member_id)))
            return
        cause = cause_of_joining_again(member.record, record, is_leader=member.member_id == group.leader_id)
        group.change(member, record)
        self.members.let_go(group, member, let_go_by_joining(member, group.protocol_name), decision.now_ms)
        self._park_join(group, member, ticket, decision)
        if group.phase is GroupPhase.PREPARING_REBALANCE:
            self.rebalancing.complete_if_all_joined(group, decision)
        else:
            self.rebalancing.begin(group, cause, record, request.reason, decision)

    def _replace_static(
        self, group: ClassicGroup, old: ClassicMember, request: JoinGroupRequest, ticket: Ticket, decision: Decision
    ) -> None:
        """A static member returns with a new member id; a client that still uses the old id is fenced (KIP-345)."""
        member_id = f"{request.instance_id}-{self._rng.getrandbits(MEMBER_ID_BITS):032x}"
        record = member_record(self._state, member_id, request, decision.client_host)
        fenced = FencedInstanceIdError(f"instance id {request.instance_id} now belongs to member {member_id}")
        is_alive = old.join is not None or old.sync is not None
        cause = RebalanceCause.STATIC_MEMBER_FENCED if is_alive else RebalanceCause.STATIC_MEMBER_RETURNED
        lost_ms = decision.now_ms if is_alive else self.members.heard_ms(group, old, decision.now_ms)
        self.members.refuse_parked(group, old, fenced, decision)
        self.members.sessions.cancel((group.group_id, old.member_id))
        is_same = record.classic_metadata == old.record.classic_metadata
        was_leader = group.leader_id == old.member_id
        holds = old.holds
        self.members.let_go(group, old, holds, lost_ms)
        member = dataclasses.replace(old, record=record)
        group.swap(old, member)
        if was_leader:
            group.leader_id = member_id
        if group.phase is GroupPhase.STABLE and is_same:
            self.rebalancing.store_members(group, decision)
            decision.add(current_record(self._state, group, member))
            self.members.start_session(group, member, decision.now_ms)
            answer = group.join_answer(member_id, skip_assignment=was_leader)
            decision.answers.append(Answer(ticket=ticket, value=answer))
            self.members.note(group, cause, record, request.reason, decision)
            self.members.take(group, member, holds, decision.now_ms)
            return
        self._park_join(group, member, ticket, decision)
        self.rebalancing.begin(group, cause, record, request.reason, decision)

    def _park_join(self, group: ClassicGroup, member: ClassicMember, ticket: Ticket, decision: Decision) -> None:
        """The member waits for the others, so its session timer stops; a new member's parked join has a time limit."""
        superseded = RebalanceInProgressError("the same member has sent a newer join request: this one is obsolete")
        self.members.refuse_parked(group, member, superseded, decision)
        group.park_join(member, ticket)
        key = (group.group_id, member.member_id)
        if member.is_new and member.record.instance_id is None:
            self.members.sessions.set(key, decision.now_ms + self._settings.new_member_join_timeout_ms)
        else:
            self.members.sessions.cancel(key)

    def withdraw(self, group_id: str, ticket: Ticket, decision: Decision) -> None:
        """The client of a parked join has disconnected. A new member was in no generation and holds no partitions, so it is
        removed immediately: its client, if it is alive, joins as another member. A member of a generation stays until its
        session ends."""
        group = self.members.groups.get(group_id)
        member = None if group is None else group.joins.get(ticket)
        if group is None or member is None:
            return
        if member.is_new:
            group.take_join(member)
            self.members.remove(group, member, decision.now_ms)
            detail = "its connection closed before its first join was answered"
            self.rebalancing.begin(group, RebalanceCause.MEMBER_LEFT, member.record, detail, decision)
        else:
            self.members.start_session(group, member, decision.now_ms)

    # --- syncing ------------------------------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, ticket: Ticket, decision: Decision) -> None:
        """Raises UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError, InconsistentGroupProtocolError."""
        group = self.members.existing(request.group_id, request.member_id)
        member = self.members.find(group, request.member_id, request.instance_id)
        check_sync(group, request)
        if group.phase is GroupPhase.STABLE:
            self.members.start_session(group, member, decision.now_ms)
            decision.answers.append(Answer(ticket=ticket, value=group.sync_answer(member)))
            return
        superseded = RebalanceInProgressError("the same member has sent a newer sync request: this one is obsolete")
        self.members.refuse_parked(group, member, superseded, decision)
        member.sync, member.has_synced = ticket, True
        self.members.sessions.cancel((group.group_id, member.member_id))
        if member.member_id == group.leader_id:
            self.rebalancing.assign(group, {item.member_id: item.assignment for item in request.assignments}, decision)

    # --- staying and leaving ------------------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> None:
        """Raises UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError; RebalanceInProgressError: rejoin."""
        group = self.members.existing(request.group_id, request.member_id)
        member = self.members.find(group, request.member_id, request.instance_id)
        _check_generation(group, request.generation)
        if member.join is None and member.sync is None:
            self.members.start_session(group, member, now_ms)
        if group.phase is GroupPhase.PREPARING_REBALANCE:
            raise RebalanceInProgressError(f"group {request.group_id} is rebalancing: rejoin")

    def leave(
        self, group_id: str, leaving: tuple[LeaveGroupRequest, ...], decision: Decision
    ) -> tuple[LeaveOutcome, ...]:
        return tuple(
            LeaveOutcome(
                member_id=one.member_id, instance_id=one.instance_id, error=self._leave(group_id, one, decision)
            )
            for one in leaving
        )

    def _leave(self, group_id: str, leaving: LeaveGroupRequest, decision: Decision) -> ErrorCode:
        group = self.members.groups.get(group_id)
        if group is not None and leaving.member_id in group.pending:
            self._drop_pending(group, leaving.member_id, decision)
            return ErrorCode.NONE
        try:
            group = self.members.existing(group_id, leaving.member_id)
            if not leaving.member_id:
                member = group.holder_of(leaving.instance_id)
                if member is None:
                    return ErrorCode.UNKNOWN_MEMBER_ID
            else:
                member = self.members.find(group, leaving.member_id, leaving.instance_id)
        except BarnabasError as error:
            return error.code
        cause = cause_of_leaving(leaving.reason)
        self.rebalancing.remove(group, member, cause, "" if cause == leaving.reason else leaving.reason, decision)
        return ErrorCode.NONE

    def expire(self, decision: Decision) -> None:
        """Remove members that sent no heartbeat for a whole session; end the steps whose deadline has passed."""
        for (group_id, member_id), deadline_ms in self.members.sessions.take_expired_at(decision.now_ms):
            group = self.members.groups.get(group_id)
            if group is None:
                continue
            member = group.members.get(member_id)
            if member is not None:  # the removal of another member may have removed this one too
                timeout_ms = member.record.session_timeout_ms
                detail, heard_ms = f"no heartbeat for {timeout_ms} ms", deadline_ms - timeout_ms
                self.rebalancing.remove(
                    group, member, RebalanceCause.MEMBER_EXPIRED, detail, decision, since_ms=heard_ms
                )
            elif member_id in group.pending:
                self._drop_pending(group, member_id, decision)
        self.rebalancing.expire(decision)

    def remove_all(self, group_id: str, cause: RebalanceCause, decision: Decision) -> None:
        """Remove all members, so that their later commits are refused: they rejoin and start from the offsets committed by then.
        This is how offsets of a running group are reset."""
        group = self.members.groups.get(group_id)
        if group is None or not group.members:
            return
        self.members.note(group, cause, None, "", decision)
        for member in list(group.members.values()):
            self.members.refuse_parked(group, member, unknown_member(group_id, member.member_id), decision)
            self.members.remove(group, member, decision.now_ms)
        self.rebalancing.become_empty(group, decision)

    def _drop_pending(self, group: ClassicGroup, member_id: str, decision: Decision) -> None:
        group.pending.discard(member_id)
        self.members.sessions.cancel((group.group_id, member_id))
        self.rebalancing.complete_if_all_joined(group, decision)
        if not group.members and not group.pending and group.group_id not in self._state.groups:
            self.members.groups.pop(group.group_id, None)

    def forget(self, group_id: str) -> None:
        """Drop a group without members: it is deleted, or changes to the consumer protocol."""
        if self.members.drop_group(group_id) is not None:
            self.rebalancing.steps.cancel((group_id, ""))

    # --- queries ------------------------------------------------------------------------------------------------------

    def has_members(self, group_id: str) -> bool:
        return self.member_count(group_id) > 0

    def member_count(self, group_id: str) -> int:
        group = self.members.groups.get(group_id)
        return 0 if group is None else len(group.members)

    def check_committer(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> None:
        """Raises UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError. A commit renews the session, too."""
        group = self.members.existing(group_id, member_id)
        member = self.members.find(group, member_id, instance_id)
        _check_generation(group, generation)
        if group.phase is GroupPhase.COMPLETING_REBALANCE:
            raise RebalanceInProgressError(f"group {group_id} has no assignment yet: sync, then commit")
        if member.join is None:
            self.members.start_session(group, member, now_ms)


def _check_generation(group: ClassicGroup, generation: int) -> None:
    if generation != group.generation:
        raise IllegalGenerationError(
            f"generation {generation}, but group {group.group_id} is at generation {group.generation}: rejoin"
        )

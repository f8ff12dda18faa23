"""Members of classic groups: they join, sync, heartbeat, leave and expire; the leader member computes the assignment (KIP-62,
KIP-394, KIP-345, KIP-814).

A generation is stored when its join phase ends, before any member receives it, so that no later coordinator gives its number
to other members. The assignment is stored when the leader has sent it. A new coordinator continues from the last of these.
Members that join, leave or change in between are held only in memory (`classic_group`), and so are parked requests.
"""

import dataclasses
import random

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import SlotState
from barnabas.kraft.metadata.records import MemberRecord, RemoveMemberRecord
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.group_messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from ..model.classic_messages import Answer, LeaveOutcome, Ticket
from ..model.deadlines import Deadlines
from ..model.decision import Decision
from ..model.group_limits import check_new_group
from ..model.partitions import PartitionSet
from ..model.rebalance_causes import RebalanceCause, cause_of_leaving
from ..model.rebalance_log import RebalanceLog
from ..model.rebalance_record import reason_of
from ..model.settings import GroupSettings
from ..model.states import GroupPhase
from .causes import cause_of_joining_again, let_go_by_joining
from .checks import check_join, check_room, check_sync
from .group import ClassicGroup, ClassicMember
from .records import current_record, group_record, member_record

MEMBER_ID_BITS = 128  # as random as a UUID: never given twice


class ClassicMembership:
    def __init__(
        self, *, state: SlotState, settings: GroupSettings, log: RebalanceLog, rng: random.Random, now_ms: int
    ) -> None:
        self.sessions = Deadlines()  # of members, and of ids that were issued
        self.steps = Deadlines()  # the end of a group's join phase or sync phase
        self.groups: dict[str, ClassicGroup] = {}
        self._state = state
        self._settings = settings
        self._log = log
        self._rng = rng
        for group_id, stored in state.groups.items():
            if stored.is_classic:
                group = self.groups[group_id] = ClassicGroup.of(stored)
                for member in group.members.values():
                    self._start_session(group, member, now_ms)
                if group.phase is GroupPhase.COMPLETING_REBALANCE:
                    self.steps.set((group_id, ""), now_ms + group.rebalance_timeout_ms)

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
                raise _unknown(request.group_id, request.member_id)
            member = self._find(group, request.member_id, request.instance_id) if known is not None else None
            self._check_protocols(group, request)
        else:
            member = group.holder_of(request.instance_id)
            check_room(group, request, self._settings, is_new=member is None)
            self._check_protocols(group, request, but="" if member is None else member.member_id)
        if group.group_id not in self.groups:
            check_new_group(group.group_id, self._state.groups.keys() | self.groups.keys(), self._settings)
        self.groups[group.group_id] = group
        if member is None:
            self._enter(group, request, ticket, decision, needs_known_id)
        elif request.member_id:
            self._rejoin(group, member, request, ticket, decision)
        else:
            self._replace_static(group, member, request, ticket, decision)

    def _group_to_join(self, request: JoinGroupRequest) -> ClassicGroup:
        group = self.groups.get(request.group_id)
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
            self.sessions.set((group.group_id, member_id), decision.now_ms + request.session_timeout_ms)
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
        self._rebalance(group, RebalanceCause.MEMBER_JOINED, member.record, request.reason, decision)

    def _rejoin(
        self, group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest, ticket: Ticket, decision: Decision
    ) -> None:
        """A member of this generation rejoins: it may retry its request, change its metadata, or follow a rebalance."""
        record = member_record(self._state, member.member_id, request, decision.client_host)
        is_same = record.classic_metadata == member.record.classic_metadata
        is_leader_again = group.phase is GroupPhase.STABLE and member.member_id == group.leader_id
        if group.phase is not GroupPhase.PREPARING_REBALANCE and is_same and not is_leader_again:
            self._start_session(group, member, decision.now_ms)
            decision.answers.append(Answer(ticket=ticket, value=group.join_answer(member.member_id)))
            return
        cause = cause_of_joining_again(member.record, record, is_leader=member.member_id == group.leader_id)
        group.change(member, record)
        self._let_go(group, member, let_go_by_joining(member, group.protocol_name), decision.now_ms)
        self._park_join(group, member, ticket, decision)
        if group.phase is GroupPhase.PREPARING_REBALANCE:
            self._complete_if_all_joined(group, decision)
        else:
            self._rebalance(group, cause, record, request.reason, decision)

    def _replace_static(
        self, group: ClassicGroup, old: ClassicMember, request: JoinGroupRequest, ticket: Ticket, decision: Decision
    ) -> None:
        """A static member returns with a new member id; a client that still uses the old id is fenced (KIP-345)."""
        member_id = f"{request.instance_id}-{self._rng.getrandbits(MEMBER_ID_BITS):032x}"
        record = member_record(self._state, member_id, request, decision.client_host)
        fenced = FencedInstanceIdError(f"instance id {request.instance_id} now belongs to member {member_id}")
        is_alive = old.join is not None or old.sync is not None
        cause = RebalanceCause.STATIC_MEMBER_FENCED if is_alive else RebalanceCause.STATIC_MEMBER_RETURNED
        lost_ms = decision.now_ms if is_alive else self._heard_ms(group, old, decision.now_ms)
        self._refuse_parked(group, old, fenced, decision)
        self.sessions.cancel((group.group_id, old.member_id))
        is_same = record.classic_metadata == old.record.classic_metadata
        was_leader = group.leader_id == old.member_id
        holds = old.holds
        self._let_go(group, old, holds, lost_ms)
        member = dataclasses.replace(old, record=record)
        group.swap(old, member)
        if was_leader:
            group.leader_id = member_id
        if group.phase is GroupPhase.STABLE and is_same:
            self._store_members(group, decision)
            decision.add(current_record(self._state, group, member))
            self._start_session(group, member, decision.now_ms)
            answer = group.join_answer(member_id, skip_assignment=was_leader)
            decision.answers.append(Answer(ticket=ticket, value=answer))
            self._note(group, cause, record, request.reason, decision)
            self._take(group, member, holds, decision.now_ms)
            return
        self._park_join(group, member, ticket, decision)
        self._rebalance(group, cause, record, request.reason, decision)

    def _park_join(self, group: ClassicGroup, member: ClassicMember, ticket: Ticket, decision: Decision) -> None:
        """The member waits for the others, so its session timer stops; a new member's parked join has a time limit."""
        superseded = RebalanceInProgressError("the same member has sent a newer join request: this one is obsolete")
        self._refuse_parked(group, member, superseded, decision)
        group.park_join(member, ticket)
        key = (group.group_id, member.member_id)
        if member.is_new and member.record.instance_id is None:
            self.sessions.set(key, decision.now_ms + self._settings.new_member_join_timeout_ms)
        else:
            self.sessions.cancel(key)

    def withdraw(self, group_id: str, ticket: Ticket, decision: Decision) -> None:
        """The client of a parked join has disconnected. A new member was in no generation and holds no partitions, so it is
        removed immediately: its client, if it is alive, joins as another member. A member of a generation stays until its
        session ends."""
        group = self.groups.get(group_id)
        member = None if group is None else group.joins.get(ticket)
        if group is None or member is None:
            return
        if member.is_new:
            group.take_join(member)
            self._forget(group, member, decision.now_ms)
            detail = "its connection closed before its first join was answered"
            self._rebalance(group, RebalanceCause.MEMBER_LEFT, member.record, detail, decision)
        else:
            self._start_session(group, member, decision.now_ms)

    # --- the two steps of a rebalance ---------------------------------------------------------------------------------

    def _rebalance(
        self, group: ClassicGroup, cause: RebalanceCause, member: MemberRecord, detail: str, decision: Decision
    ) -> None:
        self._note(group, cause, member, detail, decision)
        if group.phase is not GroupPhase.PREPARING_REBALANCE:
            self._prepare(group, decision)
        self._complete_if_all_joined(group, decision)

    def _prepare(self, group: ClassicGroup, decision: Decision) -> None:
        """Require all members to rejoin; a group without members waits a little for more of them (KIP-134)."""
        again = RebalanceInProgressError("the group is rebalancing: rejoin")
        for member in group.members.values():
            if member.sync is not None:
                decision.answers.append(Answer(ticket=member.sync, value=again))
                member.sync = None
                self._start_session(group, member, decision.now_ms)
            member.has_synced = False
        timeout_ms = group.rebalance_timeout_ms
        delay_ms = timeout_ms
        group.first_join_ends_ms = None
        if group.phase is GroupPhase.EMPTY and self._settings.initial_rebalance_delay_ms > 0:
            group.first_join_ends_ms = decision.now_ms + timeout_ms
            group.has_newcomers = False
            delay_ms = min(timeout_ms, self._settings.initial_rebalance_delay_ms)
        group.phase = GroupPhase.PREPARING_REBALANCE
        self.steps.set((group.group_id, ""), decision.now_ms + delay_ms)

    def _complete_if_all_joined(self, group: ClassicGroup, decision: Decision) -> None:
        is_joining = group.phase is GroupPhase.PREPARING_REBALANCE
        if is_joining and not group.members:
            self._become_empty(group, decision)
        elif is_joining and group.first_join_ends_ms is None and group.has_all_joined:
            self._complete_join(group, decision)

    def _complete_join(self, group: ClassicGroup, decision: Decision) -> None:
        """Remove members that have not rejoined, except static members: these keep their partitions until their session ends."""
        detail = f"it did not rejoin within {group.rebalance_timeout_ms} ms"
        for member in [m for m in group.members.values() if m.join is None and m.record.instance_id is None]:
            self._forget(group, member, decision.now_ms)
            self._note(group, RebalanceCause.REBALANCE_TIMEOUT, member.record, detail, decision)
        joined = {member_id: member for member_id, member in group.members.items() if member.join is not None}
        if not group.members:
            self._become_empty(group, decision)
            return
        if not joined:
            self.steps.set((group.group_id, ""), decision.now_ms + group.rebalance_timeout_ms)
            return
        if group.leader_id not in joined:
            group.leader_id = next(iter(joined))
        group.generation += 1
        before, group.protocol_name = group.protocol_name, group.vote()
        if before and before != group.protocol_name:
            self._note(
                group, RebalanceCause.ASSIGNOR_CHANGED, None, f"{before} before, {group.protocol_name} now", decision
            )
        group.phase = GroupPhase.COMPLETING_REBALANCE
        group.first_join_ends_ms = None
        self._store_members(group, decision)
        for member in group.members.values():
            member.assignment, member.has_synced = b"", False
        for member_id, member in joined.items():
            ticket = group.take_join(member)
            assert ticket is not None
            decision.answers.append(Answer(ticket=ticket, value=group.join_answer(member_id)))
            member.is_new = False
            self._start_session(group, member, decision.now_ms)
        self.steps.set((group.group_id, ""), decision.now_ms + group.rebalance_timeout_ms)

    def _become_empty(self, group: ClassicGroup, decision: Decision) -> None:
        self.steps.cancel((group.group_id, ""))
        group.phase = GroupPhase.EMPTY
        group.leader_id = group.protocol_name = ""
        group.first_join_ends_ms = None
        if group.group_id not in self._state.groups:
            if not group.pending:
                del self.groups[group.group_id]  # no member has received a generation of it
                self._log.forget(group.group_id)
            return
        group.generation += 1
        group.assigned_generation = group.generation
        self._store_members(group, decision)

    # --- syncing ------------------------------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, ticket: Ticket, decision: Decision) -> None:
        """Raises UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError, InconsistentGroupProtocolError."""
        group = self._existing(request.group_id, request.member_id)
        member = self._find(group, request.member_id, request.instance_id)
        check_sync(group, request)
        if group.phase is GroupPhase.STABLE:
            self._start_session(group, member, decision.now_ms)
            decision.answers.append(Answer(ticket=ticket, value=group.sync_answer(member)))
            return
        superseded = RebalanceInProgressError("the same member has sent a newer sync request: this one is obsolete")
        self._refuse_parked(group, member, superseded, decision)
        member.sync, member.has_synced = ticket, True
        self.sessions.cancel((group.group_id, member.member_id))
        if member.member_id == group.leader_id:
            self._assign(group, {item.member_id: item.assignment for item in request.assignments}, decision)

    def _assign(self, group: ClassicGroup, assignments: dict[str, bytes], decision: Decision) -> None:
        """Apply the leader's assignment: members that it does not name get no partitions."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            decision.add(current_record(self._state, group, member))
        self._hand_over(group, decision.now_ms)
        group.assigned_generation = group.generation
        group.phase = GroupPhase.STABLE
        decision.add(group_record(self._state, group))
        self.steps.cancel((group.group_id, ""))
        for member in group.members.values():
            if member.sync is not None:
                decision.answers.append(Answer(ticket=member.sync, value=group.sync_answer(member)))
                member.sync = None
                self._start_session(group, member, decision.now_ms)

    def _hand_over(self, group: ClassicGroup, now_ms: int) -> None:
        """Members read what the assignment says from now on; a cooperative member releases the rest when it receives it."""
        wanted = {member.member_id: group.told_by(member.assignment) for member in group.members.values()}
        for member in group.members.values():
            self._let_go(group, member, member.holds - wanted[member.member_id], now_ms)
        for member in group.members.values():
            self._take(group, member, wanted[member.member_id] - member.holds, now_ms)

    # --- staying and leaving ------------------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> None:
        """Raises UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError; RebalanceInProgressError: rejoin."""
        group = self._existing(request.group_id, request.member_id)
        member = self._find(group, request.member_id, request.instance_id)
        _check_generation(group, request.generation)
        if member.join is None and member.sync is None:
            self._start_session(group, member, now_ms)
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
        group = self.groups.get(group_id)
        if group is not None and leaving.member_id in group.pending:
            self._drop_pending(group, leaving.member_id, decision)
            return ErrorCode.NONE
        try:
            group = self._existing(group_id, leaving.member_id)
            if not leaving.member_id:
                member = group.holder_of(leaving.instance_id)
                if member is None:
                    return ErrorCode.UNKNOWN_MEMBER_ID
            else:
                member = self._find(group, leaving.member_id, leaving.instance_id)
        except BarnabasError as error:
            return error.code
        cause = cause_of_leaving(leaving.reason)
        self._remove(group, member, cause, "" if cause == leaving.reason else leaving.reason, decision)
        return ErrorCode.NONE

    def expire(self, decision: Decision) -> None:
        """Remove members that sent no heartbeat for a whole session; end the steps whose deadline has passed."""
        for (group_id, member_id), deadline_ms in self.sessions.take_expired_at(decision.now_ms):
            group = self.groups.get(group_id)
            if group is None:
                continue
            member = group.members.get(member_id)
            if member is not None:  # the removal of another member may have removed this one too
                timeout_ms = member.record.session_timeout_ms
                detail, heard_ms = f"no heartbeat for {timeout_ms} ms", deadline_ms - timeout_ms
                self._remove(group, member, RebalanceCause.MEMBER_EXPIRED, detail, decision, since_ms=heard_ms)
            elif member_id in group.pending:
                self._drop_pending(group, member_id, decision)
        for group_id, _ in self.steps.take_expired(decision.now_ms):
            self._end_step(self.groups[group_id], decision)

    def _end_step(self, group: ClassicGroup, decision: Decision) -> None:
        if group.phase is GroupPhase.COMPLETING_REBALANCE:
            for member in [m for m in group.members.values() if not m.has_synced]:
                detail = (
                    "it did not fetch its assignment in time"
                    if member.member_id != group.leader_id
                    else "it sent no assignment in time"
                )
                self._remove(group, member, RebalanceCause.REBALANCE_TIMEOUT, detail, decision)
            return
        ends_ms = group.first_join_ends_ms
        if ends_ms is not None and group.has_newcomers and decision.now_ms < ends_ms:
            group.has_newcomers = False
            at_ms = min(ends_ms, decision.now_ms + self._settings.initial_rebalance_delay_ms)
            self.steps.set((group.group_id, ""), at_ms)
            return
        self._complete_join(group, decision)

    def remove_all(self, group_id: str, cause: RebalanceCause, decision: Decision) -> None:
        """Remove all members, so that their later commits are refused: they rejoin and start from the offsets committed by then.
        This is how offsets of a running group are reset."""
        group = self.groups.get(group_id)
        if group is None or not group.members:
            return
        self._note(group, cause, None, "", decision)
        for member in list(group.members.values()):
            self._refuse_parked(group, member, _unknown(group_id, member.member_id), decision)
            self._forget(group, member, decision.now_ms)
        self._become_empty(group, decision)

    def _remove(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        cause: RebalanceCause,
        detail: str,
        decision: Decision,
        *,
        since_ms: int | None = None,
    ) -> None:
        self._refuse_parked(group, member, _unknown(group.group_id, member.member_id), decision)
        self._forget(group, member, decision.now_ms if since_ms is None else since_ms)
        self._rebalance(group, cause, member.record, detail, decision)

    def _drop_pending(self, group: ClassicGroup, member_id: str, decision: Decision) -> None:
        group.pending.discard(member_id)
        self.sessions.cancel((group.group_id, member_id))
        self._complete_if_all_joined(group, decision)
        if not group.members and not group.pending and group.group_id not in self._state.groups:
            self.groups.pop(group.group_id, None)

    def forget(self, group_id: str) -> None:
        """Drop a group without members: it is deleted, or changes to the consumer protocol."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            self.steps.cancel((group_id, ""))
            for member_id in group.pending:
                self.sessions.cancel((group_id, member_id))

    # --- queries ------------------------------------------------------------------------------------------------------

    def has_members(self, group_id: str) -> bool:
        return self.member_count(group_id) > 0

    def member_count(self, group_id: str) -> int:
        group = self.groups.get(group_id)
        return 0 if group is None else len(group.members)

    def check_committer(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> None:
        """Raises UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError. A commit renews the session, too."""
        group = self._existing(group_id, member_id)
        member = self._find(group, member_id, instance_id)
        _check_generation(group, generation)
        if group.phase is GroupPhase.COMPLETING_REBALANCE:
            raise RebalanceInProgressError(f"group {group_id} has no assignment yet: sync, then commit")
        if member.join is None:
            self._start_session(group, member, now_ms)

    # --- members and sessions -----------------------------------------------------------------------------------------

    def _existing(self, group_id: str, member_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None or not group.members:
            raise _unknown(group_id, member_id)
        return group

    def _find(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> ClassicMember:
        holder = group.holder_of(instance_id)
        if holder is not None and holder.member_id != member_id:
            raise FencedInstanceIdError(f"instance id {instance_id} now belongs to member {holder.member_id}")
        member = group.members.get(member_id)
        if member is None or (instance_id is not None and holder is None):
            raise _unknown(group.group_id, member_id)
        return member

    def _start_session(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> None:
        self.sessions.set((group.group_id, member.member_id), now_ms + member.record.session_timeout_ms)

    def _forget(self, group: ClassicGroup, member: ClassicMember, since_ms: int) -> None:
        """`since_ms`: when it read for the last time."""
        self._let_go(group, member, member.holds, since_ms)
        group.remove(member)
        self.sessions.cancel((group.group_id, member.member_id))

    def _refuse_parked(
        self, group: ClassicGroup, member: ClassicMember, error: BarnabasError, decision: Decision
    ) -> None:
        for ticket in (group.take_join(member), member.sync):
            if ticket is not None:
                decision.answers.append(Answer(ticket=ticket, value=error))
        member.sync = None

    # --- entries of the rebalance log ---------------------------------------------------------------------------------

    def _note(
        self,
        group: ClassicGroup,
        cause: RebalanceCause,
        member: MemberRecord | None,
        detail: str,
        decision: Decision,
    ) -> None:
        told = reason_of(cause, member, detail, at_ms=decision.now_ms, group_epoch=group.generation)
        self._log.note(group.group_id, told)

    def _let_go(self, group: ClassicGroup, member: ClassicMember, keys: PartitionSet, since_ms: int) -> None:
        member.holds -= keys
        self._log.let_go(group.group_id, member.member_id, keys, since_ms)

    def _take(self, group: ClassicGroup, member: ClassicMember, keys: PartitionSet, now_ms: int) -> None:
        member.holds |= keys
        self._log.taken(group.group_id, member.member_id, keys, now_ms)

    def _heard_ms(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> int:
        """When its last heartbeat arrived."""
        deadline_ms = self.sessions.deadline_of((group.group_id, member.member_id))
        return now_ms if deadline_ms is None else min(now_ms, deadline_ms - member.record.session_timeout_ms)

    # --- records ------------------------------------------------------------------------------------------------------

    def _store_members(self, group: ClassicGroup, decision: Decision) -> None:
        """Store the group with its generation, and the changes of its members since it was last stored."""
        decision.add(group_record(self._state, group))
        stored = self._state.groups[group.group_id]
        for member_id in [name for name in stored.members if name not in group.members]:
            decision.add(
                RemoveMemberRecord(
                    slot=self._state.slot,
                    coordinator_epoch=self._state.coordinator_epoch,
                    group_id=group.group_id,
                    member_id=member_id,
                )
            )
        for member_id, member in group.members.items():
            before = stored.members.get(member_id)
            record = replace(member.record, coordinator_epoch=self._state.coordinator_epoch)
            if before is None or replace(before, coordinator_epoch=record.coordinator_epoch) != record:
                decision.add(record)


def _unknown(group_id: str, member_id: str) -> UnknownMemberIdError:
    return UnknownMemberIdError(f"no member {member_id!r} in group {group_id}: rejoin without a member id")


def _check_generation(group: ClassicGroup, generation: int) -> None:
    if generation != group.generation:
        raise IllegalGenerationError(
            f"generation {generation}, but group {group.group_id} is at generation {group.generation}: rejoin"
        )

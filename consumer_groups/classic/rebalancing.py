"""The two steps of a rebalance of a classic group: all members join, then all sync; and the removal of members, which begins one
(KIP-62, KIP-134).

A generation is stored when its join phase ends, before any member receives it, so that no later coordinator gives its number
to other members. The assignment is stored when the leader has sent it. A new coordinator continues from the last of these.
"""

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import SlotState
from barnabas.kraft.metadata.records import MemberRecord, RemoveMemberRecord
from barnabas.log.vocabulary.errors import RebalanceInProgressError

from ..model.classic_messages import Answer
from ..model.deadlines import Deadlines
from ..model.decision import Decision
from ..model.rebalance_causes import RebalanceCause
from ..model.rebalance_log import RebalanceLog
from ..model.settings import GroupSettings
from ..model.states import GroupPhase
from .group import ClassicGroup, ClassicMember
from .members import ClassicMembers, unknown_member
from .records import current_record, group_record


class ClassicRebalancing:
    def __init__(
        self, *, state: SlotState, settings: GroupSettings, members: ClassicMembers, log: RebalanceLog, now_ms: int
    ) -> None:
        self.steps = Deadlines()  # the end of a group's join phase or sync phase
        self._state = state
        self._settings = settings
        self._members = members
        self._log = log
        for group_id, group in members.groups.items():
            if group.phase is GroupPhase.COMPLETING_REBALANCE:
                self.steps.set((group_id, ""), now_ms + group.rebalance_timeout_ms)

    def remove(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        cause: RebalanceCause,
        detail: str,
        decision: Decision,
        *,
        since_ms: int | None = None,
    ) -> None:
        """Remove the member, and rebalance without it. `since_ms`: when it read for the last time; None: now."""
        self._members.refuse_parked(group, member, unknown_member(group.group_id, member.member_id), decision)
        self._members.remove(group, member, decision.now_ms if since_ms is None else since_ms)
        self.begin(group, cause, member.record, detail, decision)

    def begin(
        self, group: ClassicGroup, cause: RebalanceCause, member: MemberRecord, detail: str, decision: Decision
    ) -> None:
        self._members.note(group, cause, member, detail, decision)
        if group.phase is not GroupPhase.PREPARING_REBALANCE:
            self._prepare(group, decision)
        self.complete_if_all_joined(group, decision)

    # --- joining ------------------------------------------------------------------------------------------------------

    def _prepare(self, group: ClassicGroup, decision: Decision) -> None:
        """Require all members to rejoin; a group without members waits a little for more of them (KIP-134)."""
        again = RebalanceInProgressError("the group is rebalancing: rejoin")
        for member in group.members.values():
            if member.sync is not None:
                decision.answers.append(Answer(ticket=member.sync, value=again))
                member.sync = None
                self._members.start_session(group, member, decision.now_ms)
        timeout_ms = group.rebalance_timeout_ms
        delay_ms = timeout_ms
        group.first_join_ends_ms = None
        if group.phase is GroupPhase.EMPTY and self._settings.initial_rebalance_delay_ms > 0:
            group.first_join_ends_ms = decision.now_ms + timeout_ms
            group.has_newcomers = False
            delay_ms = min(timeout_ms, self._settings.initial_rebalance_delay_ms)
        group.phase = GroupPhase.PREPARING_REBALANCE
        self.steps.set((group.group_id, ""), decision.now_ms + delay_ms)

    def complete_if_all_joined(self, group: ClassicGroup, decision: Decision) -> None:
        is_joining = group.phase is GroupPhase.PREPARING_REBALANCE
        if is_joining and not group.members:
            self.become_empty(group, decision)
        elif is_joining and group.first_join_ends_ms is None and group.has_all_joined:
            self._complete_join(group, decision)

    def _complete_join(self, group: ClassicGroup, decision: Decision) -> None:
        """Remove members that have not rejoined, except static members: these keep their partitions until their session ends."""
        detail = f"it did not rejoin within {group.rebalance_timeout_ms} ms"
        for member in [m for m in group.members.values() if m.join is None and m.record.instance_id is None]:
            self._members.remove(group, member, decision.now_ms)
            self._members.note(group, RebalanceCause.REBALANCE_TIMEOUT, member.record, detail, decision)
        joined = {member_id: member for member_id, member in group.members.items() if member.join is not None}
        if not group.members:
            self.become_empty(group, decision)
            return
        if not joined:
            self.steps.set((group.group_id, ""), decision.now_ms + group.rebalance_timeout_ms)
            return
        if group.leader_id not in joined:
            group.leader_id = next(iter(joined))
        group.generation += 1
        before, group.protocol_name = group.protocol_name, group.vote()
        if before and before != group.protocol_name:
            self._members.note(
                group, RebalanceCause.ASSIGNOR_CHANGED, None, f"{before} before, {group.protocol_name} now", decision
            )
        group.phase = GroupPhase.COMPLETING_REBALANCE
        group.first_join_ends_ms = None
        self.store_members(group, decision)
        for member in group.members.values():
            member.assignment, member.has_synced = b"", False
        for member_id, member in joined.items():
            ticket = group.take_join(member)
            assert ticket is not None
            decision.answers.append(Answer(ticket=ticket, value=group.join_answer(member_id)))
            member.is_new = False
            self._members.start_session(group, member, decision.now_ms)
        self.steps.set((group.group_id, ""), decision.now_ms + group.rebalance_timeout_ms)

    def become_empty(self, group: ClassicGroup, decision: Decision) -> None:
        self.steps.cancel((group.group_id, ""))
        group.phase = GroupPhase.EMPTY
        group.leader_id = group.protocol_name = ""
        group.first_join_ends_ms = None
        if group.group_id not in self._state.groups:
            if not group.pending:
                del self._members.groups[group.group_id]  # no member has received a generation of it
                self._log.forget(group.group_id)
            return
        group.generation += 1
        group.assigned_generation = group.generation
        self.store_members(group, decision)

    # --- syncing ------------------------------------------------------------------------------------------------------

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes], decision: Decision) -> None:
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
                self._members.start_session(group, member, decision.now_ms)

    def _hand_over(self, group: ClassicGroup, now_ms: int) -> None:
        """Members read what the assignment says from now on; a cooperative member releases the rest when it receives it."""
        wanted = {member.member_id: group.told_by(member.assignment) for member in group.members.values()}
        for member in group.members.values():
            self._members.let_go(group, member, member.holds - wanted[member.member_id], now_ms)
        for member in group.members.values():
            self._members.take(group, member, wanted[member.member_id] - member.holds, now_ms)

    # --- time and records ---------------------------------------------------------------------------------------------

    def expire(self, decision: Decision) -> None:
        """End the steps whose deadline has passed."""
        for group_id, _ in self.steps.take_expired(decision.now_ms):
            self._end_step(self._members.groups[group_id], decision)

    def _end_step(self, group: ClassicGroup, decision: Decision) -> None:
        if group.phase is GroupPhase.COMPLETING_REBALANCE:
            for member in [m for m in group.members.values() if not m.has_synced]:
                detail = (
                    "it did not fetch its assignment in time"
                    if member.member_id != group.leader_id
                    else "it sent no assignment in time"
                )
                self.remove(group, member, RebalanceCause.REBALANCE_TIMEOUT, detail, decision)
            return
        ends_ms = group.first_join_ends_ms
        if ends_ms is not None and group.has_newcomers and decision.now_ms < ends_ms:
            group.has_newcomers = False
            at_ms = min(ends_ms, decision.now_ms + self._settings.initial_rebalance_delay_ms)
            self.steps.set((group.group_id, ""), at_ms)
            return
        self._complete_join(group, decision)

    def store_members(self, group: ClassicGroup, decision: Decision) -> None:
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

"""The members of classic groups: who is in which group, when each was last heard, and what each holds for explanations.

A member is changed here and by `rebalancing`; `membership` answers its requests.
"""

from barnabas.kraft.group_state.group_slots import SlotState
from barnabas.kraft.metadata.records import MemberRecord
from barnabas.log.vocabulary.errors import BarnabasError, FencedInstanceIdError, UnknownMemberIdError

from ..model.classic_messages import Answer
from ..model.deadlines import Deadlines
from ..model.decision import Decision
from ..model.partitions import PartitionSet
from ..model.rebalance_causes import RebalanceCause
from ..model.rebalance_log import RebalanceLog
from ..model.rebalance_record import reason_of
from .group import ClassicGroup, ClassicMember


class ClassicMembers:
    """The groups of a slot with their members, also those that the quorum does not store yet."""

    def __init__(self, *, state: SlotState, log: RebalanceLog, now_ms: int) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.sessions = Deadlines()  # of members, and of ids that were issued
        self._log = log
        for group_id, stored in state.groups.items():
            if stored.is_classic:
                group = self.groups[group_id] = ClassicGroup.of(stored)
                for member in group.members.values():
                    self.start_session(group, member, now_ms)

    def existing(self, group_id: str, member_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None or not group.members:
            raise unknown_member(group_id, member_id)
        return group

    def find(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> ClassicMember:
        holder = group.holder_of(instance_id)
        if holder is not None and holder.member_id != member_id:
            raise FencedInstanceIdError(f"instance id {instance_id} now belongs to member {holder.member_id}")
        member = group.members.get(member_id)
        if member is None or (instance_id is not None and holder is None):
            raise unknown_member(group.group_id, member_id)
        return member

    def drop_group(self, group_id: str) -> ClassicGroup | None:
        """Drop a group without members; its issued ids become invalid."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            for member_id in group.pending:
                self.sessions.cancel((group_id, member_id))
        return group

    def start_session(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> None:
        self.sessions.set((group.group_id, member.member_id), now_ms + member.record.session_timeout_ms)

    def remove(self, group: ClassicGroup, member: ClassicMember, since_ms: int) -> None:
        """`since_ms`: when it read for the last time."""
        self.let_go(group, member, member.holds, since_ms)
        group.remove(member)
        self.sessions.cancel((group.group_id, member.member_id))

    def refuse_parked(
        self, group: ClassicGroup, member: ClassicMember, error: BarnabasError, decision: Decision
    ) -> None:
        for ticket in (group.take_join(member), member.sync):
            if ticket is not None:
                decision.answers.append(Answer(ticket=ticket, value=error))
        member.sync = None

    def heard_ms(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> int:
        """When its last heartbeat arrived."""
        deadline_ms = self.sessions.deadline_of((group.group_id, member.member_id))
        return now_ms if deadline_ms is None else min(now_ms, deadline_ms - member.record.session_timeout_ms)

    # --- entries of the rebalance log ---------------------------------------------------------------------------------

    def note(
        self,
        group: ClassicGroup,
        cause: RebalanceCause,
        member: MemberRecord | None,
        detail: str,
        decision: Decision,
    ) -> None:
        told = reason_of(cause, member, detail, at_ms=decision.now_ms, group_epoch=group.generation)
        self._log.note(group.group_id, told)

    def let_go(self, group: ClassicGroup, member: ClassicMember, keys: PartitionSet, since_ms: int) -> None:
        member.holds -= keys
        self._log.let_go(group.group_id, member.member_id, keys, since_ms)

    def take(self, group: ClassicGroup, member: ClassicMember, keys: PartitionSet, now_ms: int) -> None:
        member.holds |= keys
        self._log.taken(group.group_id, member.member_id, keys, now_ms)


def unknown_member(group_id: str, member_id: str) -> UnknownMemberIdError:
    return UnknownMemberIdError(f"no member {member_id!r} in group {group_id}: rejoin without a member id")

"""The timers of members: sessions, rebalance timeouts, and since when a member is slow to apply its assignment.

They exist only in the coordinator's memory. A new coordinator restarts them.
"""

from barnabas.kraft.group_state.group_slots import GroupState
from barnabas.kraft.metadata.records import MemberRecord

from ..model.deadlines import Deadlines, TimerKey
from ..model.states import MemberState


class MemberTimers:
    def __init__(self) -> None:
        self.sessions = Deadlines()
        self.revocations = Deadlines()  # exactly the members that are UNREVOKED_PARTITIONS
        self.told_ms: dict[TimerKey, int] = {}  # since when a member has not applied the assignment that it received

    def start(self, group: GroupState, member: MemberRecord, now_ms: int) -> None:
        """Restart the session; a rebalance timeout runs exactly while the member has partitions to release."""
        self.sessions.set((member.group_id, member.member_id), now_ms + member.session_timeout_ms)
        self.time_revocation(group, member, now_ms)

    def time_revocation(self, group: GroupState, member: MemberRecord, now_ms: int) -> None:
        key = (member.group_id, member.member_id)
        if group.currents[member.member_id].state != MemberState.UNREVOKED_PARTITIONS:
            self.revocations.cancel(key)
        elif key not in self.revocations:
            self.revocations.set(key, now_ms + member.rebalance_timeout_ms)

    def told(self, group_id: str, member_id: str, now_ms: int) -> None:
        """Its assignment differs from what it reads."""
        self.told_ms.setdefault((group_id, member_id), now_ms)

    def obeyed(self, group_id: str, member_id: str) -> None:
        """It reads what its assignment says."""
        self.told_ms.pop((group_id, member_id), None)

    def cancel(self, group_id: str, member_id: str) -> None:
        self.sessions.cancel((group_id, member_id))
        self.revocations.cancel((group_id, member_id))
        self.told_ms.pop((group_id, member_id), None)

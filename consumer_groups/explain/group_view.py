"""A read-only view of all that a coordinator knows about its groups, for explanations and for the watch."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from barnabas.kraft.group_state.group_slots import GroupState, PartitionKey, SlotState

from ..classic.group import ClassicGroup
from ..classic.membership import ClassicMembership
from ..members.membership import Membership
from ..members.targets import Targets
from ..model.partitions import NO_PARTITIONS, PartitionSet
from ..model.rebalance_log import RebalanceLog
from ..model.settings import GroupSettings
from ..model.states import AWAY_EPOCH, GroupPhase, phase_of

SILENT_MS: Final = 10_000  # shorter silences are not reported: a garbage collection pause, a congested network
HEARTBEATS_MISSED: Final = 2  # the coordinator sets the heartbeat interval of its members
CLASSIC_SILENT_SHARE: Final = (
    0.5  # of its session; only the client knows a classic member's heartbeat interval, usually a third of the session
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """A member's state as its heartbeats show it. `slow_since_ms`: since when it has not applied its assignment; None: it has."""

    member_id: str
    heard_ms: int  # the last heartbeat, or the coordinator's start if none has arrived since
    session_ends_ms: int
    silent_after_ms: int  # silence after which it has probably failed, although its session has not ended
    is_away: bool = False
    slow_since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    state: SlotState
    settings: GroupSettings
    log: RebalanceLog
    targets: Targets
    membership: Membership
    classic: ClassicMembership

    def group_of(self, group_id: str) -> GroupState | None:
        """A group of the consumer protocol, or one without members."""
        return None if group_id in self.classic.members.groups else self.state.groups.get(group_id)

    def phase_of(self, group_id: str) -> GroupPhase:
        live = self.classic.members.groups.get(group_id)
        return phase_of(self.state.groups.get(group_id)) if live is None else live.phase

    def epoch_of(self, group_id: str) -> int:
        """The group epoch; of a classic group, its generation."""
        live = self.classic.members.groups.get(group_id)
        if live is not None:
            return live.generation
        stored = self.state.groups.get(group_id)
        return 0 if stored is None else stored.group.group_epoch

    def wanted(self, group_id: str) -> Collection[PartitionKey]:
        """The partitions that a member should read but none does."""
        gaps = self.log.gaps_of(group_id)
        live = self.classic.members.groups.get(group_id)
        if live is not None:
            return self._wanted_of_classic(live)
        group = self.state.groups.get(group_id)
        if group is None or not gaps:
            return NO_PARTITIONS
        return self.targets.targeted(group) & gaps.keys()

    def _wanted_of_classic(self, live: ClassicGroup) -> PartitionSet:
        topics = self.targets.topics
        subscribed = {name for member in live.members.values() for name in member.record.subscribed_topics}
        return frozenset(
            (name, number)
            for name, number in self.log.gaps_of(live.group_id)
            if name in subscribed and number < topics.get(name, 0)
        )

    def subscribed(self, group_id: str) -> PartitionSet:
        """Every partition of every topic that a member subscribes to."""
        topics = self.targets.topics
        live = self.classic.members.groups.get(group_id)
        group = self.state.groups.get(group_id)
        names = frozenset[str]()
        if live is not None:
            names = names.union(*(member.record.subscribed_topics for member in live.members.values()))
        elif group is not None:
            names = self.targets.subscriptions.wanted(group)
        return frozenset((name, number) for name in names.intersection(topics) for number in range(topics[name]))

    def presence(self, group_id: str) -> dict[str, Presence]:
        live = self.classic.members.groups.get(group_id)
        if live is not None:
            return self._presence_in_classic(live)
        group = self.state.groups.get(group_id)
        silent_after_ms = max(SILENT_MS, HEARTBEATS_MISSED * self.settings.heartbeat_interval_ms)
        found = {}
        for member_id, member in () if group is None else group.members.items():
            assert group is not None
            ends_ms = self.membership.timers.sessions.deadline_of((group_id, member_id))
            assert ends_ms is not None, "every member has a session"
            found[member_id] = Presence(
                member_id=member_id,
                heard_ms=ends_ms - member.session_timeout_ms,
                session_ends_ms=ends_ms,
                silent_after_ms=silent_after_ms,
                is_away=group.currents[member_id].member_epoch == AWAY_EPOCH,
                slow_since_ms=self.membership.timers.told_ms.get((group_id, member_id)),
            )
        return found

    def _presence_in_classic(self, live: ClassicGroup) -> dict[str, Presence]:
        """A member with a parked request has no session timer: it is present."""
        found = {}
        for member_id, member in live.members.items():
            ends_ms = self.classic.members.sessions.deadline_of((live.group_id, member_id))
            if ends_ms is None or member.join is not None:
                continue
            session_ms = member.record.session_timeout_ms
            found[member_id] = Presence(
                member_id=member_id,
                heard_ms=ends_ms - session_ms,
                session_ends_ms=ends_ms,
                silent_after_ms=max(SILENT_MS, int(session_ms * CLASSIC_SILENT_SHARE)),
            )
        return found

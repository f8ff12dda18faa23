"""Target assignments: what each member will own after all others have released it. Group epochs are raised only here."""

from collections import Counter
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import GroupState, SlotState
from barnabas.kraft.metadata.records import (
    ALL_PARTITIONS,
    GroupRecord,
    MemberRecord,
    RemoveOffsetRecord,
    TargetAssignmentRecord,
)
from barnabas.log.vocabulary.group_assignors import Subscriber

from ..model.assignors import ASSIGNORS
from ..model.deadlines import Deadlines
from ..model.decision import Decision
from ..model.partitions import NO_PARTITIONS, PartitionSet, from_set, to_set
from ..model.rebalance_causes import RebalanceCause
from ..model.rebalance_log import RebalanceLog
from ..model.rebalance_record import reason_of
from ..model.settings import GroupSettings
from ..subscriptions.match_budget import MatchBudget
from ..subscriptions.subscriptions import GroupSubscriptions, Subscriptions, TopicsView
from ..subscriptions.topic_changes import listed_names, topic_changes


class Targets:
    """Holds the coordinator's only view of the topics: assignments and topic changes are derived from it."""

    def __init__(
        self,
        *,
        state: SlotState,
        settings: GroupSettings,
        topics: TopicsView,
        log: RebalanceLog,
        budget: MatchBudget,
        now_ms: int,
    ) -> None:
        self.subscriptions = Subscriptions(topics, budget)
        self.due = Deadlines()  # groups whose target must be checked: delayed assignments, and all groups after a move
        self._state = state
        self._settings = settings
        self._log = log
        self._assigned_at_ms: dict[str, int] = {}
        for group_id, group in state.groups.items():
            if group.members and not group.is_classic:
                self.due.set((group_id, ""), now_ms)
                self.subscriptions.presume(group)

    @property
    def topics(self) -> TopicsView:
        return self.subscriptions.topics

    def target_of(self, group: GroupState, member_id: str) -> PartitionSet:
        target = group.targets.get(member_id)
        return NO_PARTITIONS if target is None else to_set(target.partitions)

    def is_put_off(self, group: GroupState) -> bool:
        """Whether the group's next assignment is delayed."""
        return group.group.assignment_epoch < group.group.group_epoch

    def settle(self, decision: Decision, *, at_once: bool = False) -> None:
        """Raise the epoch of every changed group, and assign again: now, or when the assignment interval has passed."""
        self._match(decision)
        changes, decision.changes = decision.changes, {}
        for group_id, causes in changes.items():
            group = self._state.groups[group_id]
            bumped = replace(
                group.group,
                coordinator_epoch=self._state.coordinator_epoch,
                group_epoch=group.group.group_epoch + 1,
            )
            due_ms = self._assigned_at_ms.get(group_id, -self._settings.assignment_interval_ms)
            due_ms += self._settings.interval_ms(len(group.members))
            if at_once or due_ms <= decision.now_ms or not group.members or group.group.assignment_epoch == 0:
                self._assign(group, bumped, decision)
            else:
                decision.add(bumped)
                if (group_id, "") not in self.due:
                    self.due.set((group_id, ""), due_ms)  # later changes of a growing group do not delay it further
            for change in causes:
                self.note(group_id, change.cause, change.member, change.detail, decision.now_ms)

    def note(self, group_id: str, cause: RebalanceCause, member: MemberRecord | None, detail: str, now_ms: int) -> None:
        epoch = self._state.groups[group_id].group.group_epoch
        self._log.note(group_id, reason_of(cause, member, detail, at_ms=now_ms, group_epoch=epoch))

    def assign_due(self, decision: Decision) -> None:
        """Compute delayed assignments; after a move, also those that the previous coordinator did not complete."""
        for group_id, _ in self.due.take_expired(decision.now_ms):
            group = self._state.groups.get(group_id)
            if group is None or not group.members or group.is_classic:
                continue
            if self.is_put_off(group):
                self._assign(group, replace(group.group, coordinator_epoch=self._state.coordinator_epoch), decision)
            else:
                self._catch_up(group, decision)
        self.settle(decision)

    def topics_changed(
        self, topics: TopicsView, recreated: AbstractSet[str], changed: AbstractSet[str] | None, decision: Decision
    ) -> None:
        """`changed`: topics that may have changed; None: any topic."""
        before = self.topics
        looked_at = before.keys() | topics.keys() if changed is None else changed
        changed = frozenset(name for name in looked_at if before.get(name) != topics.get(name)) | recreated
        if not changed:
            return
        for name in sorted(name for name in changed if name not in topics or name in recreated):
            self._drop_offsets(name, decision)
        concerned = self.subscriptions.topics_changed(topics, changed)
        self._match(decision)
        for group_id, group in self._state.groups.items():
            if group.is_classic:
                continue  # its leader watches the topics and rejoins
            touched = concerned.of(group)
            if group_id in decision.changes:
                touched &= recreated  # all others were found when its patterns became complete
            if touched:
                for change in topic_changes(group.members.values(), touched, before, topics, recreated):
                    decision.change(group_id, change.cause, detail=change.detail)
        self.settle(decision)

    def _match(self, decision: Decision) -> None:
        """Continue matching patterns against topics, and note the groups whose subscribed topics changed."""
        for change in (change for changes in decision.changes.values() for change in changes):
            if change.member is not None and change.member.subscribed_pattern:
                self.subscriptions.expect(change.member.subscribed_pattern)
        changed, refused = self.subscriptions.match(decision.now_ms)
        for found in refused:
            group_id = found.group.group.group_id
            if self._state.groups.get(group_id) is found.group:
                for member, reason in self.subscriptions.refusals(found.group):
                    self.note(group_id, RebalanceCause.PATTERN_REFUSED, member, reason, decision.now_ms)
                decision.noted.add(group_id)
        for found in changed:
            self._matches_changed(found, decision)

    def _matches_changed(self, found: GroupSubscriptions, decision: Decision) -> None:
        """A group with a delayed assignment needs nothing: the assignment takes the change into account."""
        group = found.group
        group_id = group.group.group_id
        is_due = self.is_put_off(group) or group_id in decision.changes
        if self._state.groups.get(group_id) is group and group.members and not group.is_classic and not is_due:
            self._catch_up(group, decision)

    def forget(self, group_id: str) -> None:
        self.due.cancel((group_id, ""))
        self._assigned_at_ms.pop(group_id, None)
        self.subscriptions.forget(group_id)
        self._log.forget(group_id)

    def _assign(self, group: GroupState, record: GroupRecord, decision: Decision) -> None:
        """Compute the target for the record's group epoch. Only changed targets are written."""
        record = replace(record, protocol_name=self._assignor_of(group))
        assignment = ASSIGNORS[record.protocol_name](self._subscribers(group), self.topics)
        for member_id, keys in assignment.items():
            if member_id not in group.targets or keys != self.target_of(group, member_id):
                decision.add(
                    TargetAssignmentRecord(
                        slot=self._state.slot,
                        coordinator_epoch=self._state.coordinator_epoch,
                        group_id=record.group_id,
                        member_id=member_id,
                        partitions=from_set(keys),
                    )
                )
        decision.add(replace(record, assignment_epoch=record.group_epoch))
        self._assigned_at_ms[record.group_id] = decision.now_ms
        self.due.cancel((record.group_id, ""))

    def _subscribers(self, group: GroupState) -> list[Subscriber]:
        wanted = self.subscriptions.wanted_by_member(group)
        return [
            Subscriber(
                member_id=member_id,
                topics=wanted[member_id],
                instance_id=member.instance_id,
                owned=self.target_of(group, member_id),
            )
            for member_id, member in group.members.items()
        ]

    def _assignor_of(self, group: GroupState) -> str:
        """The assignor that most members request; the default if no member requests one."""
        votes = Counter(
            member.assignor for member in group.members.values() if member.assignor in self._settings.assignors
        )
        if not votes:
            return self._settings.default_assignor
        return min(votes, key=lambda name: (-votes[name], name))

    def _catch_up(self, group: GroupState, decision: Decision) -> None:
        """Assign again unless the target consists of exactly the partitions of all subscribed topics.

        The partition counts that a target was computed for are not stored, so a new coordinator compares the target instead.
        """
        members = group.members.values()
        wanted = self.subscriptions.wanted(group)
        counts = {name: self.topics[name] for name in wanted}
        found = Counter(name for name, _ in self.targeted(group))
        touched = frozenset(name for name in wanted | found.keys() if counts.get(name, 0) != found[name])
        left = frozenset(name for name in touched if name not in counts and name in self.topics)
        for change in topic_changes(members, touched - left, found, counts, frozenset()):
            decision.change(group.group.group_id, change.cause, detail=change.detail)
        if left:
            detail = f"no member subscribes to {listed_names(sorted(left))} any more"
            decision.change(group.group.group_id, RebalanceCause.SUBSCRIPTION_CHANGED, detail=detail)

    def targeted(self, group: GroupState) -> PartitionSet:
        """All partitions that the target assigns to any member."""
        return NO_PARTITIONS.union(*(self.target_of(group, member_id) for member_id in group.members))

    def _drop_offsets(self, topic: str, decision: Decision) -> None:
        """The quorum removes them when it deletes the topic; this removes commits that were in flight at that time."""
        for group_id, key in self._state.offsets_of_topic(topic):
            decision.add(
                RemoveOffsetRecord(
                    slot=self._state.slot,
                    coordinator_epoch=self._state.coordinator_epoch,
                    group_id=group_id,
                    topic=key[0],
                    partition=key[1],
                )
            )
        for group_id in self._state.groups_with_resets_of(topic):
            decision.add(
                RemoveOffsetRecord(
                    slot=self._state.slot,
                    coordinator_epoch=self._state.coordinator_epoch,
                    group_id=group_id,
                    topic=topic,
                    partition=ALL_PARTITIONS,
                )
            )

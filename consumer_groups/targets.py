"""Target assignments: what every member shall own once all others have let go. Group epochs grow only here."""

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import replace

from barnabas.kraft.group_slots import GroupState, SlotState
from barnabas.kraft.records import (
    ALL_PARTITIONS,
    GroupRecord,
    MemberRecord,
    RemoveOffsetRecord,
    TargetAssignmentRecord,
)
from barnabas.log.group_assignors import Subscriber

from .assignors import ASSIGNORS
from .deadlines import Deadlines
from .decision import Decision
from .partitions import NO_PARTITIONS, PartitionSet, from_set, to_set
from .rebalance_causes import RebalanceCause
from .rebalance_log import RebalanceLog
from .rebalance_record import Cause
from .settings import GroupSettings
from .subscriptions import TopicsView, wanted_among
from .topic_changes import topic_changes


class Targets:
    """Holds the coordinator's only view of the topics: assignments and changes of topics are found from it."""

    def __init__(
        self, *, state: SlotState, settings: GroupSettings, topics: TopicsView, log: RebalanceLog, now_ms: int
    ) -> None:
        self.topics = topics
        self.due = Deadlines()  # groups whose target must be looked at: assignments put off, and all after a move
        self._state = state
        self._settings = settings
        self._log = log
        self._assigned_at_ms: dict[str, int] = {}
        for group_id, group in state.groups.items():
            if group.members and not group.is_classic:
                self.due.set((group_id, ""), now_ms)

    def target_of(self, group: GroupState, member_id: str) -> PartitionSet:
        target = group.targets.get(member_id)
        return NO_PARTITIONS if target is None else to_set(target.partitions)

    def settle(self, decision: Decision, *, at_once: bool = False) -> None:
        """Raise the epoch of every group that has changed, and assign anew: now, or when the interval has passed."""
        changes, decision.changes = decision.changes, {}
        for group_id, causes in changes.items():
            group = self._state.groups[group_id]
            bumped = replace(
                group.group,
                coordinator_epoch=self._state.coordinator_epoch,
                group_epoch=group.group.group_epoch + 1,
                protocol_name=self._assignor_of(group),
            )
            due_ms = self._assigned_at_ms.get(group_id, -self._settings.assignment_interval_ms)
            due_ms += self._settings.assignment_interval_ms
            if at_once or due_ms <= decision.now_ms or not group.members or group.group.assignment_epoch == 0:
                self._assign(group, bumped, decision)
            else:
                decision.add(bumped)
                self.due.set((group_id, ""), due_ms)
            for change in causes:
                self.note(group_id, change.cause, change.member, change.detail, decision.now_ms)

    def note(self, group_id: str, cause: RebalanceCause, member: MemberRecord | None, detail: str, now_ms: int) -> None:
        epoch = self._state.groups[group_id].group.group_epoch
        self._log.note(group_id, Cause.of(cause, member, detail, at_ms=now_ms, group_epoch=epoch))

    def assign_due(self, decision: Decision) -> None:
        """Assign what was put off; after a move also what the last coordinator did not get round to."""
        for group_id, _ in self.due.take_expired(decision.now_ms):
            group = self._state.groups.get(group_id)
            if group is None or not group.members or group.is_classic:
                continue
            if group.group.assignment_epoch < group.group.group_epoch:
                self._assign(group, replace(group.group, coordinator_epoch=self._state.coordinator_epoch), decision)
            else:
                self._catch_up(group, decision)
        self.settle(decision)

    def topics_changed(self, topics: TopicsView, recreated: AbstractSet[str], decision: Decision) -> None:
        before, self.topics = self.topics, topics
        deleted = (before.keys() - topics.keys()) | recreated
        changed = deleted | {name for name, count in topics.items() if before.get(name) != count}
        if not changed:
            return
        for name in sorted(deleted):
            self._drop_offsets(name, decision)
        for group_id, group in self._state.groups.items():
            if group.is_classic:
                continue  # its leader watches the topics and joins again
            members = group.members.values()
            touched = frozenset[str]().union(*(wanted_among(member, changed) for member in members))
            for change in topic_changes(members, touched, before, topics, recreated):
                decision.change(group_id, change.cause, detail=change.detail)
        self.settle(decision)

    def forget(self, group_id: str) -> None:
        self.due.cancel((group_id, ""))
        self._assigned_at_ms.pop(group_id, None)
        self._log.forget(group_id)

    def _assign(self, group: GroupState, record: GroupRecord, decision: Decision) -> None:
        """Compute the target for the record's group epoch. Only targets that differ are written."""
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
        return [
            Subscriber(
                member_id=member_id,
                topics=wanted_among(member, self.topics),
                instance_id=member.instance_id,
                owned=self.target_of(group, member_id),
            )
            for member_id, member in group.members.items()
        ]

    def _assignor_of(self, group: GroupState) -> str:
        """The one that most members ask for; the default when none asks for any."""
        votes = Counter(member.assignor for member in group.members.values() if member.assignor in ASSIGNORS)
        if not votes:
            return self._settings.default_assignor
        return min(votes, key=lambda name: (-votes[name], name))

    def _catch_up(self, group: GroupState, decision: Decision) -> None:
        """Assign anew unless every partition of every subscribed topic is in the target, and nothing else.

        Nobody wrote down which partition counts a target was made for, so a new coordinator finds out in this way.
        """
        members = group.members.values()
        wanted = frozenset[str]().union(*(wanted_among(member, self.topics) for member in members))
        counts = {name: self.topics[name] for name in wanted}
        found = Counter(name for name, _ in self.targeted(group))
        touched = frozenset(name for name in wanted | found.keys() if counts.get(name, 0) != found[name])
        for change in topic_changes(members, touched, found, counts, frozenset()):
            decision.change(group.group.group_id, change.cause, detail=change.detail)

    def targeted(self, group: GroupState) -> PartitionSet:
        """All partitions that the target gives to anybody."""
        return NO_PARTITIONS.union(*(self.target_of(group, member_id) for member_id in group.members))

    def _drop_offsets(self, topic: str, decision: Decision) -> None:
        """The quorum drops them itself when it deletes the topic; this catches commits that were then on their way."""
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

"""A decision in progress: each record is replayed into the working state immediately, so that the next one builds on it.

Changes of partition ownership are reported to the rebalance log at the same time.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import SlotState, SlotStateRecord, partition_keys
from barnabas.kraft.metadata.records import (
    CurrentAssignmentRecord,
    GroupRecord,
    MemberRecord,
    RemoveGroupRecord,
    RemoveMemberRecord,
    StagedDecisionRecord,
    TargetAssignmentRecord,
)

from .classic_messages import Answer
from .partitions import NO_PARTITIONS, PartitionSet, to_set
from .rebalance_causes import RebalanceCause
from .rebalance_log import RebalanceLog
from .states import AWAY_EPOCH, GROUP_TRANSITIONS, GroupPhase, phase_of

# Records that may change the phase of a group.
GroupChange = (
    GroupRecord
    | RemoveGroupRecord
    | MemberRecord
    | RemoveMemberRecord
    | TargetAssignmentRecord
    | CurrentAssignmentRecord
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Why the target assignment of a group must be computed again."""

    cause: RebalanceCause
    member: MemberRecord | None = None  # as it was then: it may have been removed since
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Decision:
    """A request must be refused before the first `add`: a replayed record cannot be taken back."""

    state: SlotState
    now_ms: int
    log: RebalanceLog = field(default_factory=RebalanceLog)  # of groups; decisions about transactions need none
    client_host: str = ""  # of the client; "": a tick, or not relevant
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # topic -> its id, in the current view
    records: list[SlotStateRecord] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  # to parked requests
    changes: dict[str, list[Change]] = field(default_factory=dict)  # by group, until they are settled
    noted: set[str] = field(default_factory=set)  # groups with new entries in the log, but without a change
    _phase_before: dict[str, GroupPhase] = field(default_factory=dict)
    _empty_since_before: dict[str, int] = field(default_factory=dict)

    @property
    def touched(self) -> AbstractSet[str]:
        """Groups with records in this decision, not counting offset commits."""
        return self._phase_before.keys()

    def add(self, record: SlotStateRecord, *, since_ms: int | None = None) -> None:
        """`since_ms`: since when the partitions that the member loses are not read; None: now."""
        assert not isinstance(record, StagedDecisionRecord), "how a decision is appended is the shell's business"
        if isinstance(record, GroupChange):
            self._check(record.group_id)
        if isinstance(record, CurrentAssignmentRecord):
            # The invariant of the whole package: at most one owner, assigned or pending revocation, at any time.
            owners = self.state.groups[record.group_id].owners
            assert all(owners.get(key, record.member_id) == record.member_id for key in partition_keys(record))
        read_before = self._read_by(record)
        applied = self.state.replay(record)
        assert applied, "a coordinator decides with its own epoch, and nothing in its state can have a later one"
        self.records.append(record)
        self._observe(record, read_before, self.now_ms if since_ms is None else since_ms)

    def change(
        self, group_id: str, cause: RebalanceCause, member: MemberRecord | None = None, detail: str = ""
    ) -> None:
        self.changes.setdefault(group_id, []).append(Change(cause=cause, member=member, detail=detail))

    def touches(self, group_id: str) -> bool:
        """Whether this decision has changed the group or its members."""
        return group_id in self._phase_before

    def finish(self) -> tuple[SlotStateRecord, ...]:
        assert not self.changes, "a change was not settled"
        for group_id in list(self._phase_before):
            self._note_emptiness(group_id)
        for group_id, before in self._phase_before.items():
            assert phase_of(self.state.groups.get(group_id)) in GROUP_TRANSITIONS[before]
        return tuple(self.records)

    def _read_by(self, record: SlotStateRecord) -> PartitionSet:
        """The partitions that the record's member may be reading now."""
        if not isinstance(record, CurrentAssignmentRecord | RemoveMemberRecord):
            return NO_PARTITIONS
        group = self.state.groups.get(record.group_id)
        return read_by(None if group is None else group.currents.get(record.member_id))

    def _observe(self, record: SlotStateRecord, before: PartitionSet, since_ms: int) -> None:
        if isinstance(record, TargetAssignmentRecord):
            owners = self.state.groups[record.group_id].owners
            unread = [key for key in to_set(record.partitions) if key not in owners]
            self.log.wanted(record.group_id, unread, self.now_ms)
        elif isinstance(record, CurrentAssignmentRecord | RemoveMemberRecord):
            after = read_by(record) if isinstance(record, CurrentAssignmentRecord) else NO_PARTITIONS
            self.log.let_go(record.group_id, record.member_id, before - after, since_ms)
            self.log.taken(record.group_id, record.member_id, after - before, self.now_ms)

    def _check(self, group_id: str) -> None:
        if group_id not in self._phase_before:
            group = self.state.groups.get(group_id)
            self._phase_before[group_id] = phase_of(group)
            self._empty_since_before[group_id] = -1 if group is None else group.group.empty_since_ms

    def _note_emptiness(self, group_id: str) -> None:
        """Record when the last member left: the retention time of the offsets begins then."""
        group = self.state.groups.get(group_id)
        if group is None:
            return
        if group.members:
            since_ms = -1
        elif self._phase_before[group_id] in (GroupPhase.EMPTY, GroupPhase.DEAD):
            since_ms = self._empty_since_before[group_id]
        else:
            since_ms = self.now_ms
        if group.group.empty_since_ms != since_ms:
            epoch = self.state.coordinator_epoch
            self.add(replace(group.group, coordinator_epoch=epoch, empty_since_ms=since_ms))


def read_by(current: CurrentAssignmentRecord | None) -> PartitionSet:
    """The partitions that a member may be reading: none while it is away, although they stay reserved for it."""
    if current is None or current.member_epoch == AWAY_EPOCH:
        return NO_PARTITIONS
    return frozenset(partition_keys(current))

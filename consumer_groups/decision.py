"""A decision under way: each record is replayed into the working state at once, so that the next one stands on it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from barnabas.kraft.group_slots import SlotState, SlotStateRecord, partition_keys
from barnabas.kraft.records import CurrentAssignmentRecord, OffsetCommitRecord, RemoveOffsetRecord

from .classic_messages import Answer
from .rebalance_log import RebalanceCause
from .states import GROUP_TRANSITIONS, GroupPhase, phase_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Why the target assignment of a group must be computed anew."""

    cause: RebalanceCause
    member_id: str = ""


@dataclass(slots=True, kw_only=True)
class Decision:
    """Whatever can be refused must be refused before the first `add`: there is no way back from a replayed record."""

    state: SlotState
    now_ms: int
    records: list[SlotStateRecord] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  # to parked requests
    changes: dict[str, list[Change]] = field(default_factory=dict)  # by group, until they are settled
    _phase_before: dict[str, GroupPhase] = field(default_factory=dict)

    def add(self, record: SlotStateRecord) -> None:
        if not isinstance(record, OffsetCommitRecord | RemoveOffsetRecord):
            self._check(record.group_id)
        if isinstance(record, CurrentAssignmentRecord):
            # The invariant of the whole package: at most one owner, assigned or pending revocation, at any time.
            owners = self.state.groups[record.group_id].owners
            assert all(owners.get(key, record.member_id) == record.member_id for key in partition_keys(record))
        applied = self.state.replay(record)
        assert applied, "a coordinator decides with its own epoch, which nothing in its state can be ahead of"
        self.records.append(record)

    def change(self, group_id: str, cause: RebalanceCause, member_id: str = "") -> None:
        self.changes.setdefault(group_id, []).append(Change(cause=cause, member_id=member_id))

    @property
    def touched(self) -> Iterable[str]:
        """Groups that the records change in more than their offsets."""
        return self._phase_before.keys()

    def finish(self) -> tuple[SlotStateRecord, ...]:
        assert not self.changes, "a change was not settled"
        for group_id, before in self._phase_before.items():
            assert phase_of(self.state.groups.get(group_id)) in GROUP_TRANSITIONS[before]
        return tuple(self.records)

    def _check(self, group_id: str) -> None:
        if group_id not in self._phase_before:
            self._phase_before[group_id] = phase_of(self.state.groups.get(group_id))

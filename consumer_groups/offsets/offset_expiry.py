"""Expiry of unused committed offsets, and of groups without members and offsets (`offsets.retention.minutes`).

Kafka's rule (KIP-211): the offsets of a group without members expire the retention time after the last member left, or
from their last commit if that is later (for a group that never had members, from their last commit); those of a group with
members only if no member subscribes to their topic, from their last commit. A group without members and offsets goes too.
"""

from collections import deque

from barnabas.kraft.group_state.group_slots import GroupState, OffsetValue, PartitionKey, SlotState
from barnabas.kraft.metadata.records import RemoveGroupRecord

from ..classic.membership import ClassicMembership
from ..members.targets import Targets
from ..model.decision import Decision
from ..model.settings import GroupSettings
from .offsets import Offsets

MAX_SCANNED_PER_TICK = 5_000  # offsets per scan: some milliseconds
MAX_EXPIRED_PER_TICK = 500  # records of one decision: expiry leaves room for the commits of clients
PORTION_PAUSE_MS = 20  # between two portions of one pass


class OffsetExpiry:
    """Scans the slot once per check interval, in portions."""

    def __init__(
        self,
        *,
        state: SlotState,
        settings: GroupSettings,
        targets: Targets,
        classic: ClassicMembership,
        offsets: Offsets,
        now_ms: int,
    ) -> None:
        self._state = state
        self._settings = settings
        self._targets = targets
        self._classic = classic
        self._offsets = offsets
        self._next_ms = now_ms + settings.offsets_retention_check_interval_ms
        self._groups: deque[str] = deque()  # of the pass under way
        self._keys: deque[PartitionKey] = deque()  # of the first of them

    def next_deadline_ms(self) -> int | None:
        """None: there is nothing that could expire."""
        return self._next_ms if self._state.groups or self._state.offsets else None

    def expire(self, decision: Decision) -> None:
        if decision.now_ms < self._next_ms:
            return
        if not self._groups:
            self._groups.extend(dict.fromkeys((*self._state.groups, *self._state.offsets)))
            self._begin_group()
        scanned = 0
        removed_before = len(decision.records)
        while self._groups and scanned < MAX_SCANNED_PER_TICK:
            if len(decision.records) - removed_before >= MAX_EXPIRED_PER_TICK:
                break
            scanned += 1
            if self._keys:
                self._expire_offset(self._groups[0], self._keys.popleft(), decision)
            else:
                self._expire_group(self._groups.popleft(), decision)
                self._begin_group()
        pause_ms = PORTION_PAUSE_MS if self._groups else self._settings.offsets_retention_check_interval_ms
        self._next_ms = decision.now_ms + pause_ms

    def _begin_group(self) -> None:
        self._keys = deque(self._state.offsets.get(self._groups[0], ()) if self._groups else ())

    def _expire_offset(self, group_id: str, key: PartitionKey, decision: Decision) -> None:
        value = self._state.offset(group_id, key)
        if value is None or decision.touches(group_id) or self._state.pending.is_pending(group_id, key):
            return  # deleted since this pass reached its group, pending, or its last member leaves in this decision
        base_ms = self._base_ms(group_id, key, value)
        if base_ms is not None and decision.now_ms - base_ms >= self._settings.offsets_retention_ms:
            decision.add(self._offsets.remove_record(group_id, key))

    def _base_ms(self, group_id: str, key: PartitionKey, value: OffsetValue) -> int | None:
        """When the retention time of this offset began; None: it is in use."""
        commit_timestamp_ms = value[3]
        group = self._state.groups.get(group_id)
        if group is None:
            return commit_timestamp_ms
        if group.members:
            return None if self._is_wanted(group, key[0]) else commit_timestamp_ms
        if self._classic.has_members(group_id):
            return None  # members are joining; their subscriptions are not known yet
        return max(commit_timestamp_ms, group.group.empty_since_ms)

    def _is_wanted(self, group: GroupState, topic: str) -> bool:
        """The topics of classic members of a protocol type other than "consumer" are unknown: they may want any topic."""
        if group.is_classic and not any(member.subscribed_topics for member in group.members.values()):
            return True
        return self._targets.subscriptions.may_want(group, topic)

    def _expire_group(self, group_id: str, decision: Decision) -> None:
        group = self._state.groups.get(group_id)
        if group is None or group.members or decision.touches(group_id):
            return
        if self._classic.has_members(group_id) or group_id in self._state.offsets or group_id in self._state.pending:
            return
        epoch = self._state.coordinator_epoch
        decision.add(RemoveGroupRecord(slot=self._state.slot, coordinator_epoch=epoch, group_id=group_id))
        self._targets.forget(group_id)
        self._classic.forget(group_id)

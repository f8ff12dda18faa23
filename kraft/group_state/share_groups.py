"""The share groups of one slot (KIP-932): members, and what each group has done with the records of its partitions.

They stand beside the other groups of the slot, because they share nothing with them but the coordinator: their members own no
partition, and their positions are ranges of records with states, not offsets. Replaying decides nothing and raises nothing, as in
`group_slots`.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from ..metadata.records import (
    RemoveShareGroupRecord,
    RemoveShareMemberRecord,
    RemoveShareStatesRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    ShareStateRecord,
)
from .group_state import AnyShareRecord
from .pending_offsets import PartitionKey

_STRIPPED = 0  # the coordinator epoch of a record that is kept as state


@dataclass(slots=True, kw_only=True)
class ShareGroup:
    group_epoch: int
    members: dict[str, ShareMemberRecord] = field(default_factory=dict)
    states: dict[PartitionKey, ShareStateRecord] = field(default_factory=dict)

    def copy(self) -> "ShareGroup":
        return ShareGroup(group_epoch=self.group_epoch, members=self.members.copy(), states=self.states.copy())


@dataclass(slots=True, kw_only=True)
class ShareGroups:
    groups: dict[str, ShareGroup] = field(default_factory=dict)

    def replay(self, record: AnyShareRecord) -> None:
        """A member or a state of a group that does not exist is ignored."""
        if isinstance(record, ShareGroupRecord):
            group = self.groups.setdefault(record.group_id, ShareGroup(group_epoch=record.group_epoch))
            group.group_epoch = record.group_epoch
            return
        found = self.groups.get(record.group_id)
        if found is None:
            return
        match record:
            case RemoveShareGroupRecord():
                del self.groups[record.group_id]
            case ShareMemberRecord():
                found.members[record.member_id] = replace(record, coordinator_epoch=_STRIPPED)
            case RemoveShareMemberRecord():
                found.members.pop(record.member_id, None)
            case ShareStateRecord():
                kept = replace(record, coordinator_epoch=_STRIPPED)
                found.states[(sys.intern(record.topic), record.partition)] = kept
            case RemoveShareStatesRecord():
                _remove_states(found, record.topic)

    def records(self, *, slot: int, coordinator_epoch: int) -> Iterator[AnyShareRecord]:
        """The records that rebuild the share groups of the slot."""
        for group_id, group in self.groups.items():
            yield ShareGroupRecord(
                slot=slot, coordinator_epoch=coordinator_epoch, group_id=group_id, group_epoch=group.group_epoch
            )
            for member in group.members.values():
                yield replace(member, coordinator_epoch=coordinator_epoch)
            for state in group.states.values():
                yield replace(state, coordinator_epoch=coordinator_epoch)

    def copy(self) -> "ShareGroups":
        return ShareGroups(groups={group_id: group.copy() for group_id, group in self.groups.items()})

    def has_states_of(self, topic: str) -> bool:
        return any(key[0] == topic for group in self.groups.values() for key in group.states)

    def delete_topic(self, topic: str) -> None:
        """A later topic of the same name starts without states."""
        for group in self.groups.values():
            _remove_states(group, topic)


def _remove_states(group: ShareGroup, topic: str) -> None:
    for key in [key for key in group.states if key[0] == topic]:
        del group.states[key]

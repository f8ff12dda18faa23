"""The state of consumer groups, their offsets and transactions, by coordinator slot: what `__consumer_offsets` and
`__transaction_state` are to Kafka.

It is separate from the metadata image, because it changes with every commit. `SlotState` is one slot and replays records; the
quorum's state (`GroupSlots`, on every voter) and a coordinator's own working copy use the same class, so that they cannot differ.
Decisions are made in `consumer_groups`; nothing here decides, and nothing here raises: invalid records (a member of a group that
does not exist) are ignored in the same way everywhere.

Groups, members and assignments are kept as the frozen records that made them, with the coordinator epoch stripped, so
that a slot that was rebuilt from a snapshot equals one that was replayed from the beginning. Offsets are plain tuples
of atoms: there may be a million of them, and the garbage collector leaves such tuples alone.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from barnabas.log.vocabulary.murmur2 import murmur2_positive
from barnabas.log.vocabulary.transaction_messages import STORED_STATES

from ..metadata.image import SLOT_COUNT
from ..metadata.records import (
    ALL_PARTITIONS,
    CurrentAssignmentRecord,
    GroupRecord,
    MemberRecord,
    OffsetCommitRecord,
    OffsetResetRecord,
    PendingOffsetsEndedRecord,
    PendingOffsetsRecord,
    Record,
    RecordBatch,
    RemoveGroupRecord,
    RemoveMemberRecord,
    RemoveOffsetRecord,
    RemoveTransactionRecord,
    SlotRecord,
    StagedDecisionRecord,
    TargetAssignmentRecord,
    TransactionRecord,
    decode_batch,
    encode_batch,
)
from .group_state import AnyGroupRecord, AnyShareRecord
from .offsets_log import NO_LOG_OFFSET, POSITION_BITS, SHOWN_RECORDS, SlotLog, SlotTail, first_log_offset, read_log
from .pending_offsets import PartitionKey as PartitionKey
from .pending_offsets import PendingOffsets
from .share_groups import ShareGroups

# A `PartitionKey` is a plain tuple, never a TopicPartition: gc stops tracking only exact tuples of atoms.
# Offset, leader epoch (-1: not known), metadata, commit timestamp in ms, place in __consumer_offsets (-1: not known).
OffsetValue = tuple[int, int, str, int, int]

SlotStateRecord = AnyGroupRecord

CLASSIC_PROTOCOL = "classic"
MAX_KEPT_RESETS = 10  # of a group: those that `group seek --undo` can undo
MAX_KEPT_RESET_OFFSETS = 20_000  # of a group, in all its kept resets; the newest one is always kept
MAX_STAGED_PARTS = 32  # of one decision: 28 MiB
# Of one decision in parts. They are applied together: this takes the quorum's thread, which must not miss a heartbeat, 0.3 s.
MAX_STAGED_RECORDS = 100_000
MAX_OFFSET_BATCH_BYTES = 32 * 1024  # of a snapshot: well below a chunk
_OFFSET_BYTES = 64  # of an offset without its texts
_STRIPPED = 0  # the coordinator epoch of a record that is kept as state


def slot_of(group_id: str) -> int:
    """The slot of a group, or of a transactional id: murmur2 of the id, which never changes.

    Kafka uses Java's `String.hashCode` (`Utils.abs(groupId.hashCode()) % partitions`), so a tool that computes the partition of
    `__consumer_offsets` itself gets another one. Clients and tools use FindCoordinator, and read a group's offsets by
    OffsetFetch; both give the correct result. Another hash would move the groups of every existing folder.
    """
    return murmur2_positive(group_id.encode()) % SLOT_COUNT


def partition_keys(record: CurrentAssignmentRecord) -> Iterator[PartitionKey]:
    """Every partition that no other member may own while this assignment holds: assigned, or not released yet."""
    for owned in (record.assigned, record.pending_revocation):
        for item in owned:
            for partition in item.partitions:
                yield (item.topic, partition)


@dataclass(slots=True, kw_only=True)
class GroupState:
    """One group. `targets` and `currents` have no key that `members` lacks."""

    group: GroupRecord
    members: dict[str, MemberRecord] = field(default_factory=dict)
    targets: dict[str, TargetAssignmentRecord] = field(default_factory=dict)
    currents: dict[str, CurrentAssignmentRecord] = field(default_factory=dict)
    # Derived from `currents`: who owns a partition, assigned or pending revocation. At most one member does (the
    # coordinator asserts it before it decides); a dict cannot represent anything else.
    owners: dict[PartitionKey, str] = field(default_factory=dict, compare=False)
    log_offset: int = field(default=NO_LOG_OFFSET, compare=False)  # of the newest group record
    members_version: int = field(default=0, compare=False)  # grows whenever a member comes, goes or changes
    holders: dict[str, str] = field(default_factory=dict, compare=False)  # derived from `members`: by instance id
    # Derived from `currents`: the number of each (member epoch, state); no count is 0.
    steps: Counter[tuple[int, str]] = field(default_factory=Counter, compare=False)

    @property
    def is_classic(self) -> bool:
        """Its members assign partitions themselves; no target is computed here."""
        return self.group.protocol == CLASSIC_PROTOCOL

    def copy(self) -> "GroupState":
        return GroupState(
            group=self.group,
            members=self.members.copy(),
            targets=self.targets.copy(),
            currents=self.currents.copy(),
            owners=self.owners.copy(),
            log_offset=self.log_offset,
            members_version=self.members_version,
            holders=self.holders.copy(),
            steps=self.steps.copy(),
        )

    def put_member(self, record: MemberRecord) -> None:
        self._vacate(record.member_id)
        self.members[record.member_id] = record
        if record.instance_id is not None:
            self.holders[record.instance_id] = record.member_id
        self.members_version += 1

    def replace_current(self, record: CurrentAssignmentRecord) -> None:
        self._release(record.member_id)
        self.currents[record.member_id] = record
        self.steps[record.member_epoch, record.state] += 1
        for key in partition_keys(record):
            self.owners[key] = record.member_id

    def remove_member(self, member_id: str) -> None:
        self._release(member_id)
        self._vacate(member_id)
        self.members_version += 1
        self.members.pop(member_id, None)
        self.targets.pop(member_id, None)
        self.currents.pop(member_id, None)

    def _release(self, member_id: str) -> None:
        before = self.currents.get(member_id)
        if before is None:
            return
        step = (before.member_epoch, before.state)
        self.steps[step] -= 1
        if not self.steps[step]:
            del self.steps[step]
        for key in partition_keys(before):
            if self.owners.get(key) == member_id:
                del self.owners[key]

    def _vacate(self, member_id: str) -> None:
        before = self.members.get(member_id)
        if before is not None and before.instance_id is not None and self.holders.get(before.instance_id) == member_id:
            del self.holders[before.instance_id]


@dataclass(slots=True, kw_only=True, eq=False)
class SlotState:
    """All groups and offsets of one slot, and the newest coordinator epoch that is known for it."""

    slot: int
    coordinator_epoch: int = 0  # never decreases; a record of an older epoch is void
    groups: dict[str, GroupState] = field(default_factory=dict)
    offsets: dict[str, dict[PartitionKey, OffsetValue]] = field(default_factory=dict)  # by group, none of them empty
    resets: dict[str, tuple[OffsetResetRecord, ...]] = field(default_factory=dict)  # by group, the oldest first
    staged: tuple[StagedDecisionRecord, ...] = ()  # parts 0, 1, ... of a decision whose last part has not arrived yet
    transactions: dict[str, TransactionRecord] = field(default_factory=dict)  # by transactional id
    pending: PendingOffsets = field(
        default_factory=PendingOffsets
    )  # offsets of open transactions, of the slot's groups
    shares: ShareGroups = field(default_factory=ShareGroups)

    def __eq__(self, other: object) -> bool:
        """Compares the state for decisions only: a coordinator's own copy does not know the log offsets of its records."""
        if not isinstance(other, SlotState):
            return NotImplemented
        return self._exact() == other._exact() and _without_places(self.offsets) == _without_places(other.offsets)

    def _exact(self) -> tuple[object, ...]:
        return (
            self.slot,
            self.coordinator_epoch,
            self.groups,
            self.resets,
            self.staged,
            self.transactions,
            self.pending,
            self.shares,
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def replay(self, record: Record, log_offset: int = NO_LOG_OFFSET) -> bool:
        """Apply a record; False: it is void, because its coordinator has been replaced."""
        assert isinstance(record, AnyGroupRecord)
        assert record.slot == self.slot
        if record.coordinator_epoch != self.coordinator_epoch and not self.moved(record.coordinator_epoch):
            return False
        if not isinstance(record, StagedDecisionRecord):
            self.apply(record, log_offset)
        return True

    def stage(self, record: StagedDecisionRecord) -> tuple[SlotStateRecord, ...]:
        """Keep a part of a decision; with the last one return all its records, to be replayed one by one.

        A part that does not continue the staged parts is ignored: its decision is void as a whole. Raises UnknownRecordError,
        like any command of a newer version.
        """
        if record.part == 0:
            self.staged = ()
        elif record.part != len(self.staged):
            return ()
        self.staged = (*self.staged, replace(record, coordinator_epoch=_STRIPPED))
        if record.part + 1 < record.part_count:
            return ()
        parts, self.staged = self.staged, ()
        return tuple(
            item
            for item in decode_batch(b"".join(part.batch for part in parts)).records
            if isinstance(item, AnyGroupRecord)
            and not isinstance(item, StagedDecisionRecord)
            and (item.slot, item.coordinator_epoch) == (self.slot, record.coordinator_epoch)
        )

    def moved(self, coordinator_epoch: int) -> bool:
        """The slot has a new coordinator: from now on the records of older epochs are void."""
        if coordinator_epoch < self.coordinator_epoch:
            return False
        if coordinator_epoch > self.coordinator_epoch:
            self.staged = ()  # its last part would be void
        self.coordinator_epoch = coordinator_epoch
        return True

    def records(self, *, with_offsets: bool = True) -> Iterator[SlotStateRecord]:
        """The records that rebuild this slot, all of the newest coordinator epoch."""
        epoch = self.coordinator_epoch
        for state in self.groups.values():
            yield replace(state.group, coordinator_epoch=epoch, log_offset=state.log_offset)
            for member in state.members.values():
                yield replace(member, coordinator_epoch=epoch)
            for target in state.targets.values():
                yield replace(target, coordinator_epoch=epoch)
            for current in state.currents.values():
                yield replace(current, coordinator_epoch=epoch)
        for group_id, offsets in self.offsets.items() if with_offsets else ():
            for key, value in offsets.items():
                yield self._offset_record(group_id, key, value)
        for resets in self.resets.values():
            for reset in resets:
                yield replace(reset, coordinator_epoch=epoch)
        yield from self._transaction_records()  # after the offsets, which overrule pending ones
        yield from self.shares.records(slot=self.slot, coordinator_epoch=epoch)
        for part in self.staged:
            yield replace(part, coordinator_epoch=epoch)

    def _transaction_records(self) -> Iterator[SlotStateRecord]:
        for transaction in self.transactions.values():
            yield replace(transaction, coordinator_epoch=self.coordinator_epoch)
        yield from self.pending.records(slot=self.slot, coordinator_epoch=self.coordinator_epoch)

    def __iter__(self) -> Iterator[SlotStateRecord]:
        return self.records()

    def batches(self) -> Iterator[bytes]:
        """`records` as encoded batches of limited size: offsets are written in the order of the dict, since they are most of the
        data."""
        for group_id, offsets in self.offsets.items():
            yield from self._offset_batches(group_id, offsets)
        for record in self.records(with_offsets=False):
            yield encode_batch(RecordBatch(controller_epoch=0, records=(record,)))

    def _offset_batches(self, group_id: str, offsets: dict[PartitionKey, OffsetValue]) -> Iterator[bytes]:
        records: list[OffsetCommitRecord] = []
        size_bytes = 0
        for key, value in offsets.items():
            records.append(self._offset_record(group_id, key, value))
            size_bytes += _OFFSET_BYTES + len(group_id) + len(key[0]) + 4 * len(value[2])
            if size_bytes > MAX_OFFSET_BATCH_BYTES:
                yield encode_batch(RecordBatch(controller_epoch=0, records=tuple(records)))
                records, size_bytes = [], 0
        if records:
            yield encode_batch(RecordBatch(controller_epoch=0, records=tuple(records)))

    def copy(self) -> "SlotState":
        return SlotState(
            slot=self.slot,
            coordinator_epoch=self.coordinator_epoch,
            groups={group_id: state.copy() for group_id, state in self.groups.items()},
            offsets={group_id: offsets.copy() for group_id, offsets in self.offsets.items()},
            resets=self.resets.copy(),
            staged=self.staged,
            transactions=self.transactions.copy(),
            pending=self.pending.copy(),
            shares=self.shares.copy(),
        )

    def offset(self, group_id: str, key: PartitionKey) -> OffsetValue | None:
        offsets = self.offsets.get(group_id)
        return None if offsets is None else offsets.get(key)

    def offsets_of_topic(self, name: str) -> list[tuple[str, PartitionKey]]:
        """(group, partition) of every offset that is committed for a topic."""
        return [(group_id, key) for group_id, offsets in self.offsets.items() for key in offsets if key[0] == name]

    def remove_offset(self, group_id: str, key: PartitionKey) -> None:
        offsets = self.offsets.get(group_id)
        if offsets is None:
            return
        offsets.pop(key, None)
        if not offsets:
            del self.offsets[group_id]

    def forget_resets_of_topic(self, group_id: str, name: str) -> None:
        """Offsets of a deleted topic have no meaning in a later topic of the same name."""
        resets = (
            replace(reset, before=tuple(item for item in reset.before if item.topic != name))
            for reset in self.resets.pop(group_id, ())
        )
        left = tuple(reset for reset in resets if reset.before)
        if left:
            self.resets[group_id] = left

    def groups_with_resets_of(self, name: str) -> list[str]:
        """Groups with a stored reset of this topic."""
        return [
            group_id
            for group_id, resets in self.resets.items()
            if any(item.topic == name for reset in resets for item in reset.before)
        ]

    def settle(self, record: PendingOffsetsEndedRecord) -> list[OffsetCommitRecord]:
        """The transaction has ended: remove its pending offsets, and return those that it commits, for `put_offset`."""
        ended = (record.producer_id, record.producer_epoch)
        return [
            self._offset_record(record.group_id, key, (*value, NO_LOG_OFFSET))
            for key, value in self.pending.end(record.group_id, ended, is_commit=record.is_commit)
        ]

    def groups_pending_for(self, name: str) -> list[str]:
        """Groups with pending offsets of this topic."""
        return self.pending.groups_with(name)

    def apply(self, record: SlotStateRecord, log_offset: int = NO_LOG_OFFSET) -> None:
        match record:
            case OffsetCommitRecord():
                self.pending.overruled(record.group_id, (record.topic, record.partition))
                self.put_offset(record, log_offset)
            case RemoveOffsetRecord():
                self._remove_offsets(record)
            case GroupRecord():
                self._put_group(record, log_offset)
            case RemoveGroupRecord():
                self.groups.pop(record.group_id, None)
                self.resets.pop(record.group_id, None)
                self.pending.forget_group(record.group_id)
            case OffsetResetRecord():
                self._keep_reset(replace(record, coordinator_epoch=_STRIPPED))
            case StagedDecisionRecord():
                raise AssertionError("parts are staged, not applied")
            case TransactionRecord() | RemoveTransactionRecord() | PendingOffsetsRecord() | PendingOffsetsEndedRecord():
                self._apply_to_transaction(record)
            case _:
                if isinstance(record, AnyShareRecord):
                    self.shares.replay(record)
                else:
                    self._apply_to_member(record)

    def _apply_to_transaction(
        self,
        record: TransactionRecord | RemoveTransactionRecord | PendingOffsetsRecord | PendingOffsetsEndedRecord,
    ) -> None:
        match record:
            case TransactionRecord():
                if record.state in STORED_STATES:
                    self.transactions[record.transactional_id] = replace(record, coordinator_epoch=_STRIPPED)
            case RemoveTransactionRecord():
                self.transactions.pop(record.transactional_id, None)
            case PendingOffsetsRecord():
                self.pending.put(record)
            case PendingOffsetsEndedRecord():
                for commit in self.settle(record):
                    self.put_offset(commit, NO_LOG_OFFSET)

    def put_offset(self, record: OffsetCommitRecord, log_offset: int) -> None:
        """Without a look at pending offsets."""
        place = record.log_offset if record.log_offset >= 0 else log_offset
        value = (record.offset, record.leader_epoch, record.metadata, record.commit_timestamp_ms, place)
        offsets = self.offsets.get(record.group_id)
        if offsets is None:
            offsets = self.offsets[record.group_id] = {}
        # A million keys share the few names of their topics.
        offsets[(sys.intern(record.topic), record.partition)] = value

    def _remove_offsets(self, record: RemoveOffsetRecord) -> None:
        if record.partition != ALL_PARTITIONS:
            self.pending.overruled(record.group_id, (record.topic, record.partition))
            self.remove_offset(record.group_id, (record.topic, record.partition))
            return
        self.pending.forget_topic(record.group_id, record.topic)
        for key in [key for key in self.offsets.get(record.group_id, ()) if key[0] == record.topic]:
            self.remove_offset(record.group_id, key)
        self.forget_resets_of_topic(record.group_id, record.topic)

    def _keep_reset(self, record: OffsetResetRecord) -> None:
        kept = [*self.resets.get(record.group_id, ()), record][-MAX_KEPT_RESETS:]
        while len(kept) > 1 and sum(len(reset.before) for reset in kept) > MAX_KEPT_RESET_OFFSETS:
            del kept[0]
        self.resets[record.group_id] = tuple(kept)

    def _put_group(self, record: GroupRecord, log_offset: int) -> None:
        kept = replace(record, coordinator_epoch=_STRIPPED, log_offset=NO_LOG_OFFSET)
        state = self.groups.get(record.group_id)
        if state is None:
            state = self.groups[record.group_id] = GroupState(group=kept)
        else:
            state.group = kept
        state.log_offset = record.log_offset if record.log_offset >= 0 else log_offset

    def _apply_to_member(
        self, record: MemberRecord | RemoveMemberRecord | TargetAssignmentRecord | CurrentAssignmentRecord
    ) -> None:
        state = self.groups.get(record.group_id)
        if state is None:
            return
        if isinstance(record, MemberRecord):
            state.put_member(replace(record, coordinator_epoch=_STRIPPED))
        elif record.member_id not in state.members:
            return
        elif isinstance(record, RemoveMemberRecord):
            state.remove_member(record.member_id)
        elif isinstance(record, TargetAssignmentRecord):
            state.targets[record.member_id] = replace(record, coordinator_epoch=_STRIPPED)
        else:
            state.replace_current(replace(record, coordinator_epoch=_STRIPPED))

    def _offset_record(self, group_id: str, key: PartitionKey, value: OffsetValue) -> OffsetCommitRecord:
        offset, leader_epoch, metadata, commit_timestamp_ms, log_offset = value
        return OffsetCommitRecord(
            slot=self.slot,
            coordinator_epoch=self.coordinator_epoch,
            group_id=group_id,
            topic=key[0],
            partition=key[1],
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_timestamp_ms=commit_timestamp_ms,
            log_offset=log_offset,
        )


def _without_places(
    offsets: dict[str, dict[PartitionKey, OffsetValue]],
) -> dict[str, dict[PartitionKey, tuple[object, ...]]]:
    return {group_id: {key: value[:4] for key, value in some.items()} for group_id, some in offsets.items()}


class GroupSlots:
    """All slots: the part of the quorum's state that belongs to consumer groups.

    Copies share their slots until one of them is written: `copy` costs a copy of a list of 50 items, and the first write to a
    slot after it copies that slot's dicts. So a snapshot can be packed in another thread, and no write ever costs more than a
    fiftieth of the state.
    """

    def __init__(self) -> None:
        self._slots = [SlotState(slot=slot) for slot in range(SLOT_COUNT)]
        self._shared: set[int] = set()  # slots whose SlotState another GroupSlots may be reading
        self._tails = [SlotTail() for _ in range(SLOT_COUNT)]
        self._next_log_offset = 0  # of the next record that is applied
        self.index = 0  # the quorum index of the newest record that was replayed

    def slot(self, slot: int) -> SlotState:
        """The slot, to read only."""
        return self._slots[slot]

    def tail(self, slot: int) -> SlotTail:
        """The newest records of the slot, to read only."""
        return self._tails[slot]

    def read_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        """The records of the slot in `__consumer_offsets` from that offset on; limit 0: only its start and end."""
        tail = self._tails[slot]
        if limit and log_offset < tail.start_offset:
            return SlotLog(start_offset=tail.start_offset, end_offset=tail.end_offset, head=self.view(slot))
        entries = read_log(tail, self._slots[slot], log_offset, limit) if limit else ()
        return SlotLog(start_offset=tail.start_offset, end_offset=tail.end_offset, entries=entries)

    def replay(self, record: Record, index: int) -> bool:
        """Apply a committed record; False: its coordinator epoch is older than the slot's newest one, so it is void."""
        assert index >= self.index
        self.index = index
        if isinstance(record, SlotRecord):
            return self._writable(record.slot).moved(record.coordinator_epoch)
        assert isinstance(record, AnyGroupRecord)
        slot = self._slots[record.slot]
        if record.coordinator_epoch < slot.coordinator_epoch:
            return False
        if record.slot in self._shared:
            slot = self._writable(record.slot)
        if record.coordinator_epoch != slot.coordinator_epoch:
            slot.moved(record.coordinator_epoch)
        if not isinstance(record, StagedDecisionRecord):
            self._replay_one(slot, record, index)
            return True
        staged = slot.stage(record)
        assert len(staged) < 1 << POSITION_BITS, "more records than a command has log offsets: none of them is applied"
        for item in staged:
            self._replay_one(slot, item, index)
        return True

    def _replay_one(self, slot: SlotState, record: SlotStateRecord, index: int) -> None:
        of_snapshot = getattr(record, "log_offset", NO_LOG_OFFSET)
        if isinstance(record, PendingOffsetsEndedRecord):
            for commit in slot.settle(record):  # shown like any other commit
                log_offset = self._next_place(index)
                slot.put_offset(commit, log_offset)
                self._tails[slot.slot].append(log_offset, commit)
        elif of_snapshot >= 0 or not isinstance(record, SHOWN_RECORDS):
            slot.apply(record)
            if of_snapshot >= 0:
                self._tails[slot.slot].restart(of_snapshot)
        else:
            log_offset = self._next_place(index)
            slot.apply(record, log_offset)
            self._tails[slot.slot].append(log_offset, record)

    def _next_place(self, index: int) -> int:
        """The log offset of the next shown record of the command at that quorum index."""
        log_offset = max(self._next_log_offset, first_log_offset(index))
        assert log_offset >> POSITION_BITS == index
        self._next_log_offset = log_offset + 1
        return log_offset

    def on_slot_moved(self, slot: int, coordinator_epoch: int) -> None:
        """From now on, records of older epochs are void. An older epoch than the newest known one changes nothing."""
        self._writable(slot).moved(coordinator_epoch)

    def delete_topic(self, name: str) -> None:
        """Drop the offsets of a deleted topic: a later topic of the same name starts without offsets."""
        for slot in range(SLOT_COUNT):
            doomed = self._slots[slot].offsets_of_topic(name)
            if doomed:
                writable = self._writable(slot)
                for group_id, key in doomed:
                    writable.remove_offset(group_id, key)
            remembering = self._slots[slot].groups_with_resets_of(name)
            for group_id in remembering:
                self._writable(slot).forget_resets_of_topic(group_id, name)
            if self._slots[slot].shares.has_states_of(name):
                self._writable(slot).shares.delete_topic(name)
            for group_id in self._slots[slot].groups_pending_for(name):
                self._writable(slot).pending.forget_topic(group_id, name)

    def records_of(self, slot: int) -> list[Record]:
        """The records that rebuild the slot exactly, after `on_slot_moved(slot, its coordinator epoch)`."""
        return list(self._slots[slot].records())

    def batches_of(self, slot: int) -> Iterator[bytes]:
        """The same as encoded batches."""
        return self._slots[slot].batches()

    def view(self, slot: int) -> SlotState:
        """The current slot, unaffected by later records, for readers in another thread."""
        self._shared.add(slot)
        return self._slots[slot]

    def copy(self) -> "GroupSlots":
        """A consistent view of the current state that later records do not change."""
        other = GroupSlots()
        other._slots = self._slots.copy()
        other.index = self.index
        everything = set(range(SLOT_COUNT))
        self._shared, other._shared = everything, everything.copy()
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupSlots) and self._slots == other._slots

    __hash__ = None  # type: ignore[assignment]  # it changes

    def _writable(self, slot: int) -> SlotState:
        if slot in self._shared:
            self._slots[slot] = self._slots[slot].copy()
            self._shared.discard(slot)
        return self._slots[slot]

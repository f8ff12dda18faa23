"""`MetadataState`: what the quorum's log has made of a node, the image and the group slots at one offset.

It is equal on all nodes at the same offset. It decides nothing: `metadata_node` says when it changes, and publishes it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from barnabas.log.vocabulary.quorum import CommittedCommand

from ..group_state.group_state import GROUP_RECORDS, GroupState
from ..group_state.offsets_log import SlotLog
from ..metadata.delta import MetadataDelta
from ..metadata.image import SLOT_COUNT, MetadataChanges, MetadataImage, differences
from ..metadata.records import (
    ControllerRecord,
    Record,
    RecoveryRecord,
    RemoveTopicRecord,
    SlotRecord,
    UnknownRecordError,
    decode_batch,
)
from ..metadata.replay import replay
from .quarantine import Quarantine
from .snapshot import decode_snapshot, encode_snapshot


@dataclass(slots=True, kw_only=True)
class Replayed:
    """The effect of a run of commands. Each record is listed with the index of its command; void records are not listed."""

    changes: MetadataChanges = field(default_factory=MetadataChanges)
    records: list[tuple[int, Record]] = field(default_factory=list)  # of the image
    group_records: list[tuple[int, Record]] = field(default_factory=list)
    is_of_groups: bool = True  # no record was about the image, not even a void one; proofs of controllers may be there


class MetadataState:
    def __init__(self, *, node_id: int, new_groups: Callable[[], GroupState]) -> None:
        self.image = MetadataImage()
        self.groups = new_groups()
        self.occupied_slots: set[int] = set()  # that ever held a group, as far as this node has seen
        self.quarantine = Quarantine(node_id)
        self._new_groups = new_groups

    def apply(self, commands: list[CommittedCommand]) -> Replayed:
        """Replay committed commands. Raises UnknownRecordError if this version cannot apply a command: the process must stop."""
        delta = MetadataDelta(self.image)
        replayed = Replayed()
        for command in commands:
            try:
                self._apply_command(delta, command, replayed)
            except UnknownRecordError as error:
                message = f"the command at index {command.index} cannot be applied: {error}"
                raise UnknownRecordError(message) from error
        offset = commands[-1].index
        if replayed.is_of_groups:  # most commands of a busy cluster: commits of offsets, and steps of transactions
            self.image = replace(self.image, offset=offset)
        else:
            self.image = delta.apply(offset)
            replayed.changes = delta.changes
        return replayed

    def _apply_command(self, delta: MetadataDelta, command: CommittedCommand, replayed: Replayed) -> None:
        batch = decode_batch(command.command)
        if batch.controller_epoch != command.term:
            return  # of a deposed controller: void on every broker
        for record in batch.records:
            apply = partial(self._apply_record, delta, record, command.index, replayed)
            self.quarantine.guard(apply, record, command.index)

    def _apply_record(self, delta: MetadataDelta, record: Record, index: int, replayed: Replayed) -> None:
        if isinstance(record, GROUP_RECORDS):
            if self.groups.replay(record, index):
                self.occupied_slots.add(record.slot)
                replayed.group_records.append((index, record))
            return
        if isinstance(record, ControllerRecord) and (record.controller_id, record.controller_epoch) == (
            delta.controller_id,
            delta.controller_epoch,
        ):
            return  # the proof of a controller that is not deposed: nothing has changed
        replayed.is_of_groups = False
        removed_topic = delta.topic_name(record.topic_id) if isinstance(record, RemoveTopicRecord) else None
        if not replay(delta, record, index):
            return
        replayed.records.append((index, record))
        if isinstance(record, SlotRecord):
            self.groups.on_slot_moved(record.slot, record.coordinator_epoch)
        elif isinstance(record, RecoveryRecord):
            for number in range(SLOT_COUNT):
                self.groups.on_slot_moved(number, delta.slot(number).coordinator_epoch)
        elif removed_topic is not None:
            self.groups.delete_topic(removed_topic)

    def restore(self, index: int, chunks: Iterable[bytes]) -> MetadataChanges:
        """Replace everything by a snapshot. Raises SnapshotError, and then has changed nothing."""
        image, records = decode_snapshot(chunks)
        changes = differences(self.image, image)
        self.image = replace(image, offset=max(index, image.offset))
        self.groups = self._new_groups()
        self.occupied_slots = set()
        for record in records:
            assert isinstance(record, GROUP_RECORDS)
            self.groups.replay(record, index)
            self.occupied_slots.add(record.slot)
        for number, slot in enumerate(image.slots):
            self.groups.on_slot_moved(number, slot.coordinator_epoch)
        return changes

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """A consistent view of the current state, packed when and where the caller chooses."""
        image, groups = self.image, self.groups.copy()
        return lambda: encode_snapshot(image, groups)

    def slot_snapshot(self, slot: int) -> tuple[int, Iterable[Record]]:
        """For a new coordinator: the records that rebuild the slot as it is at that offset of the log."""
        return self.image.offset, self.groups.view(slot)

    def slot_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        """The records of the slot in `__consumer_offsets` from that offset on."""
        return self.groups.read_log(slot, log_offset, limit)

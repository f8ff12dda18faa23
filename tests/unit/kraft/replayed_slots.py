"""Group slots as a voter has them: replayed from records, and rebuilt from the records of a snapshot."""

from barnabas.kraft.group_state.group_slots import GroupSlots, SlotStateRecord
from barnabas.kraft.metadata.image import SLOT_COUNT


def replayed(*records: SlotStateRecord) -> GroupSlots:
    slots = GroupSlots()
    for index, record in enumerate(records, start=1):
        slots.replay(record, index)
    return slots


def rebuilt(slots: GroupSlots) -> GroupSlots:
    fresh = GroupSlots()
    for slot in range(SLOT_COUNT):
        fresh.on_slot_moved(slot, slots.slot(slot).coordinator_epoch)
        for record in slots.records_of(slot):
            assert fresh.replay(record, 1)
    return fresh

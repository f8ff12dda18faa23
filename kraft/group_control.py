"""Coordinator slots: who coordinates the groups of a slot, and whose group records are taken.

A slot with groups moves only when its coordinator is fenced, drained, restarted or removed, so other brokers coming and
going move no group. A slot that never held a group moves freely, which is how the slots of a young cluster spread.
"""

from collections import Counter
from collections.abc import Container

from barnabas.log.errors import InvalidRequestError, NotCoordinatorError

from .controller_result import ControllerResult
from .delta import MetadataDelta
from .group_state import GROUP_RECORDS
from .image import NO_COORDINATOR, SLOT_COUNT
from .records import Record, SlotRecord, UnknownRecordError
from .requests import AppendGroupRecords, RenewSlot

MAX_GROUP_RECORDS_PER_REQUEST = 10_000  # one append of one slot: far more than a few milliseconds of commits


def slot_moves(view: MetadataDelta, *, active: frozenset[int]) -> tuple[SlotRecord, ...]:
    """Give every slot whose coordinator is not active, or is leaving, to the active broker with the fewest slots.

    With nobody active the slot is orphaned by a record too: its coordinator epoch must end with its coordinator, because a
    broker that comes back does not know what its former process had in flight.
    """
    eligible = _eligible(view, active)
    counts = _slot_counts(view, eligible)
    moves = []
    for number in range(SLOT_COUNT):
        slot = view.slot(number)
        if slot.coordinator in eligible:
            continue
        heir = min(counts, key=lambda node_id: (counts[node_id], node_id), default=NO_COORDINATOR)
        if heir != slot.coordinator:
            counts[heir] += 1
            moves.append(_move(view, number, heir))
    return tuple(moves)


def balancing_moves(view: MetadataDelta, *, occupied: Container[int]) -> tuple[SlotRecord, ...]:
    """Move slots that never held a group from brokers with the most slots to those with the fewest."""
    counts = _slot_counts(view, _eligible(view, view.active_brokers()))
    moves = []
    for number in range(SLOT_COUNT):
        slot = view.slot(number)
        if number in occupied or slot.coordinator not in counts:
            continue
        heir = min(counts, key=lambda node_id: (counts[node_id], node_id))
        if counts[slot.coordinator] - counts[heir] >= 2:
            counts[slot.coordinator] -= 1
            counts[heir] += 1
            moves.append(_move(view, number, heir))
    return tuple(moves)


def append_records(view: MetadataDelta, request: AppendGroupRecords) -> ControllerResult:
    """Take a coordinator's records as they are, if it is the coordinator still."""
    if not 0 <= request.slot < SLOT_COUNT:
        raise InvalidRequestError(f"there is no slot {request.slot}; slots are 0 to {SLOT_COUNT - 1}")
    slot = view.slot(request.slot)
    if slot.coordinator != request.node_id or slot.coordinator_epoch != request.coordinator_epoch:
        raise NotCoordinatorError(
            f"slot {request.slot} belongs to broker {slot.coordinator} in coordinator epoch {slot.coordinator_epoch}, "
            f"not to broker {request.node_id} in epoch {request.coordinator_epoch}"
        )
    return ControllerResult(records=_checked_records(request))


def renew_slot(view: MetadataDelta, request: RenewSlot) -> ControllerResult:
    """Give the same coordinator a newer epoch; nothing to do when it has one already."""
    if not 0 <= request.slot < SLOT_COUNT:
        raise InvalidRequestError(f"there is no slot {request.slot}; slots are 0 to {SLOT_COUNT - 1}")
    slot = view.slot(request.slot)
    if slot.coordinator != request.node_id:
        raise NotCoordinatorError(f"slot {request.slot} belongs to broker {slot.coordinator} now")
    if slot.coordinator_epoch > request.coordinator_epoch:
        return ControllerResult(records=())
    return ControllerResult(records=(_move(view, request.slot, request.node_id),))


def _checked_records(request: AppendGroupRecords) -> tuple[Record, ...]:
    try:
        records = request.records()
    except UnknownRecordError as error:
        raise InvalidRequestError(str(error)) from error
    if len(records) > MAX_GROUP_RECORDS_PER_REQUEST:
        raise InvalidRequestError(f"{len(records)} group records at a time; {MAX_GROUP_RECORDS_PER_REQUEST} at most")
    for record in records:
        if not isinstance(record, GROUP_RECORDS):
            raise InvalidRequestError(f"{type(record).__name__} is no record of a group")
        if record.slot != request.slot or record.coordinator_epoch != request.coordinator_epoch:
            raise InvalidRequestError(
                f"a record of slot {record.slot} in epoch {record.coordinator_epoch} came with a request for slot "
                f"{request.slot} in epoch {request.coordinator_epoch}"
            )
    return records


def _eligible(view: MetadataDelta, active: frozenset[int]) -> frozenset[int]:
    """Who may coordinate: a broker that is leaving only while there is nobody else."""
    staying = frozenset(node_id for node_id in active if not view.is_decommissioning(node_id))
    return staying or active


def _slot_counts(view: MetadataDelta, active: frozenset[int]) -> "Counter[int]":
    counts = Counter(dict.fromkeys(sorted(active), 0))
    for number in range(SLOT_COUNT):
        coordinator = view.slot(number).coordinator
        if coordinator in active:
            counts[coordinator] += 1
    return counts


def _move(view: MetadataDelta, number: int, coordinator: int) -> SlotRecord:
    epoch = view.slot(number).coordinator_epoch + 1
    return SlotRecord(slot=number, coordinator=coordinator, coordinator_epoch=epoch)

"""Coordinator slots: which broker coordinates the groups of a slot, and whose group records are accepted.

A slot with groups moves only if its coordinator is fenced, drained, restarted or removed, so other brokers that join or leave
move no group. A slot that never had a group moves freely, so the slots of a new cluster spread.
"""

from collections import Counter
from collections.abc import Container, Sequence

from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, NotCoordinatorError
from barnabas.log.vocabulary.transaction_messages import TransactionState

from ..group_state.group_slots import MAX_STAGED_PARTS, MAX_STAGED_RECORDS
from ..group_state.group_state import GROUP_RECORDS, SHARE_RECORDS, TRANSACTION_RECORDS
from ..metadata.controller_result import ControllerResult
from ..metadata.delta import MetadataDelta
from ..metadata.feature_levels import (
    FIRST_LEVEL,
    PREPARED_LEVEL,
    SHARE_GROUPS_LEVEL,
    TRANSACTIONS_LEVEL,
    raised_level,
)
from ..metadata.image import NO_COORDINATOR, SLOT_COUNT
from ..metadata.records import (
    Record,
    SlotRecord,
    StagedDecisionRecord,
    TransactionRecord,
    UnknownRecordError,
    announced_records,
)
from ..metadata.requests import AppendGroupRecords, GroupRecordsAppended, RenewSlot, SlotAppend, SlotRefusal
from ..quorum.config import MAX_COMMAND_BYTES

MAX_GROUP_RECORDS_PER_REQUEST = 10_000  # of all slots of a broker: far more than the commits of a few milliseconds
_LATER_RECORDS = (*SHARE_RECORDS, *TRANSACTION_RECORDS)  # of higher feature levels than the first one


def slot_moves(view: MetadataDelta, *, active: frozenset[int]) -> tuple[SlotRecord, ...]:
    """Give every slot whose coordinator is not active, or is leaving, to the active broker with the fewest slots.

    If no broker is active, the slot is also orphaned by a record: its coordinator epoch must end with its coordinator, because a
    broker that comes back does not know what its former process had in flight.
    """
    eligible = _eligible(view, active)
    counts = _slot_counts(view, eligible)
    moves = []
    for number, slot in enumerate(view.slots()):
        if slot.coordinator in eligible:
            continue
        heir = min(counts, key=lambda node_id: (counts[node_id], node_id), default=NO_COORDINATOR)
        if heir != slot.coordinator:
            counts[heir] += 1
            moves.append(_move(view, number, heir))
    return tuple(moves)


def balancing_moves(view: MetadataDelta, *, occupied: Container[int]) -> tuple[SlotRecord, ...]:
    """Move slots that never had a group from brokers with the most slots to those with the fewest."""
    counts = _slot_counts(view, _eligible(view, view.active_brokers()))
    moves = []
    for number, slot in enumerate(view.slots()):
        if number in occupied or slot.coordinator not in counts:
            continue
        heir = min(counts, key=lambda node_id: (counts[node_id], node_id))
        if counts[slot.coordinator] - counts[heir] >= 2:
            counts[slot.coordinator] -= 1
            counts[heir] += 1
            moves.append(_move(view, number, heir))
    return tuple(moves)


def append_records(view: MetadataDelta, request: AppendGroupRecords) -> ControllerResult:
    """Accept the records of every slot unchanged, if the broker is still its coordinator. Slots are independent. No records of a
    slot ask whether that is still so: a response relies on it."""
    size_bytes = sum(len(item.batch) for item in request.slots)
    if size_bytes > MAX_COMMAND_BYTES:  # before they are decoded: 7 MB of records held the quorum's thread for 224 ms
        raise InvalidRequestError(
            f"{size_bytes} bytes of group records in one request; at most {MAX_COMMAND_BYTES} are allowed"
        )
    if len({item.slot for item in request.slots}) != len(request.slots):
        raise InvalidRequestError("a slot is given twice in one append of group records")
    records: list[Record] = []
    refused: list[SlotRefusal] = []
    for item in request.slots:
        try:
            records.extend(_records_of_slot(view, request.node_id, item))
        except BarnabasError as error:
            refused.append(SlotRefusal(slot=item.slot, error=int(error.code), message=error.message))
    if len(records) > MAX_GROUP_RECORDS_PER_REQUEST:
        raise InvalidRequestError(
            f"{len(records)} group records in one request; at most {MAX_GROUP_RECORDS_PER_REQUEST} are allowed"
        )
    told = tuple(refused)
    return ControllerResult(
        records=(*_raised_level(view, records), *records),
        respond=lambda index, image: GroupRecordsAppended(refused=told, offset=index),
        must_confirm=True,
    )


def _records_of_slot(view: MetadataDelta, node_id: int, item: SlotAppend) -> tuple[Record, ...]:
    if not 0 <= item.slot < SLOT_COUNT:
        raise InvalidRequestError(f"there is no slot {item.slot}; slots are 0 to {SLOT_COUNT - 1}")
    slot = view.slot(item.slot)
    if slot.coordinator != node_id or slot.coordinator_epoch != item.coordinator_epoch:
        raise NotCoordinatorError(
            f"slot {item.slot} belongs to broker {slot.coordinator} in coordinator epoch {slot.coordinator_epoch}, "
            f"not to broker {node_id} in epoch {item.coordinator_epoch}"
        )
    records = _checked_records(item)
    _raised_level(view, records)  # refuses the slot, if a broker does not know its records
    return records


def _raised_level(view: MetadataDelta, records: Sequence[Record]) -> tuple[Record, ...]:
    """The first record of transactions, of share groups, or of a prepared transaction raises the feature level of the cluster."""
    level, what = FIRST_LEVEL, ""
    for item in records:
        if isinstance(item, _LATER_RECORDS):
            level, what = max((level, what), _level_of(item))
    return raised_level(view, level, what) if level > FIRST_LEVEL else ()


def _level_of(record: Record) -> tuple[int, str]:
    if isinstance(record, SHARE_RECORDS):
        return SHARE_GROUPS_LEVEL, "share groups"
    if isinstance(record, TransactionRecord) and record.state == TransactionState.PREPARED:
        return PREPARED_LEVEL, "prepared transactions"
    return TRANSACTIONS_LEVEL, "transactions"


def renew_slot(view: MetadataDelta, request: RenewSlot) -> ControllerResult:
    """Give the same coordinator a newer epoch; no records if it has one already."""
    if not 0 <= request.slot < SLOT_COUNT:
        raise InvalidRequestError(f"there is no slot {request.slot}; slots are 0 to {SLOT_COUNT - 1}")
    slot = view.slot(request.slot)
    if slot.coordinator != request.node_id:
        raise NotCoordinatorError(f"slot {request.slot} belongs to broker {slot.coordinator} now")
    if slot.coordinator_epoch > request.coordinator_epoch:
        return ControllerResult(records=())
    return ControllerResult(records=(_move(view, request.slot, request.node_id),))


def _checked_records(item: SlotAppend) -> tuple[Record, ...]:
    try:
        records = item.records()
    except UnknownRecordError as error:
        raise InvalidRequestError(str(error)) from error
    for record in records:
        if not isinstance(record, GROUP_RECORDS):
            raise InvalidRequestError(f"{type(record).__name__} is not a record of a group")
        if record.slot != item.slot or record.coordinator_epoch != item.coordinator_epoch:
            raise InvalidRequestError(
                f"a record of slot {record.slot} in epoch {record.coordinator_epoch} came with a request for slot "
                f"{item.slot} in epoch {item.coordinator_epoch}"
            )
        if isinstance(record, StagedDecisionRecord):
            _check_part(record)
    return records


def _check_part(record: StagedDecisionRecord) -> None:
    """The first part says how many records all parts have."""
    if not 0 <= record.part < record.part_count <= MAX_STAGED_PARTS:
        raise InvalidRequestError(
            f"part {record.part} of {record.part_count} of a decision; at most {MAX_STAGED_PARTS} are allowed"
        )
    if record.part == 0 and not 0 <= (count := announced_records(record.batch)) <= MAX_STAGED_RECORDS:
        raise InvalidRequestError(
            f"a decision in parts that begins with {count} records; at most {MAX_STAGED_RECORDS} are allowed, because all of "
            "them are applied at once"
        )


def _eligible(view: MetadataDelta, active: frozenset[int]) -> frozenset[int]:
    """Brokers that may coordinate: a leaving broker only if there is no other."""
    staying = frozenset(node_id for node_id in active if not view.is_decommissioning(node_id))
    return staying or active


def _slot_counts(view: MetadataDelta, active: frozenset[int]) -> "Counter[int]":
    counts = Counter(dict.fromkeys(sorted(active), 0))
    for slot in view.slots():
        if slot.coordinator in active:
            counts[slot.coordinator] += 1
    return counts


def _move(view: MetadataDelta, number: int, coordinator: int) -> SlotRecord:
    epoch = view.slot(number).coordinator_epoch + 1
    return SlotRecord(slot=number, coordinator=coordinator, coordinator_epoch=epoch)

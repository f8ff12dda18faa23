"""Transactions and pending offsets of a slot: replay, the order of commits, snapshots, deleted topics."""

from hypothesis import given
from hypothesis import strategies as st
from unit.kraft.replayed_slots import rebuilt, replayed

from barnabas.kraft.group_state.group_slots import GroupSlots, SlotState, SlotStateRecord
from barnabas.kraft.group_state.offsets_log import first_log_offset
from barnabas.kraft.group_state.pending_offsets import PendingOffsets
from barnabas.kraft.metadata.records import (
    ALL_PARTITIONS,
    GroupRecord,
    OffsetCommitRecord,
    PendingOffsetsEndedRecord,
    PendingOffsetsRecord,
    RecordBatch,
    RemoveGroupRecord,
    RemoveOffsetRecord,
    RemoveTransactionRecord,
    StagedDecisionRecord,
    TransactionRecord,
    encode_batch,
)
from barnabas.log.vocabulary.group_messages import PartitionOffset
from barnabas.log.vocabulary.transaction_messages import TransactionTopic

SLOT = 7


def transaction(
    state: str = "Ongoing", *, name: str = "tx", epoch: int = 1, producer_epoch: int = 0
) -> TransactionRecord:
    return TransactionRecord(
        slot=SLOT,
        coordinator_epoch=epoch,
        transactional_id=name,
        producer_id=5,
        producer_epoch=producer_epoch,
        last_producer_epoch=-1,
        previous_producer_id=-1,
        next_producer_id=-1,
        timeout_ms=60_000,
        state=state,
        partitions=(TransactionTopic(topic="t", topic_id="id", partitions=(0, 1)),),
        offset_groups=("g",),
        started_ms=3,
        updated_ms=4,
    )


def pending(
    producer_id: int = 5, *, offset: int = 10, partition: int = 0, topic: str = "t", group: str = "g", epoch: int = 0
) -> PendingOffsetsRecord:
    return PendingOffsetsRecord(
        slot=SLOT,
        coordinator_epoch=1,
        group_id=group,
        transactional_id=f"tx-{producer_id}",
        producer_id=producer_id,
        producer_epoch=epoch,
        commit_timestamp_ms=1000,
        offsets=(PartitionOffset(topic=topic, partition=partition, offset=offset, leader_epoch=2, metadata="m"),),
    )


def ended(
    producer_id: int = 5, *, is_commit: bool = True, epoch: int = 0, group: str = "g"
) -> PendingOffsetsEndedRecord:
    return PendingOffsetsEndedRecord(
        slot=SLOT, coordinator_epoch=1, group_id=group, producer_id=producer_id, producer_epoch=epoch, is_commit=is_commit
    )  # fmt: skip


def plain(offset: int, *, partition: int = 0, topic: str = "t") -> OffsetCommitRecord:
    return OffsetCommitRecord(
        slot=SLOT,
        coordinator_epoch=1,
        group_id="g",
        topic=topic,
        partition=partition,
        offset=offset,
        leader_epoch=-1,
        metadata="",
        commit_timestamp_ms=5,
    )


def offset_of(slots: GroupSlots, partition: int = 0) -> int | None:
    value = slots.slot(SLOT).offset("g", ("t", partition))
    return None if value is None else value[0]


def test_the_newest_record_of_a_transactional_id_counts_until_it_is_removed() -> None:
    slots = replayed(transaction(), transaction("PrepareCommit"))
    assert slots.slot(SLOT).transactions["tx"].state == "PrepareCommit"
    slots.replay(RemoveTransactionRecord(slot=SLOT, coordinator_epoch=1, transactional_id="tx"), 3)
    assert slots.slot(SLOT).transactions == {}


def test_a_transaction_in_an_unknown_state_is_passed_over() -> None:
    assert replayed(transaction(), transaction("Someday")).slot(SLOT).transactions["tx"].state == "Ongoing"


def test_pending_offsets_have_no_effect_before_their_transaction_is_committed() -> None:
    slots = replayed(pending(offset=10))
    assert offset_of(slots) is None and slots.slot(SLOT).pending.is_pending("g", ("t", 0))
    slots.replay(ended(), 2)
    assert slots.slot(SLOT).offset("g", ("t", 0)) == (10, 2, "m", 1000, first_log_offset(2))
    assert not slots.slot(SLOT).pending
    assert [entry.log_offset for entry in slots.tail(SLOT).after(0, 9)] == [first_log_offset(2)], "shown as a commit"


def test_pending_offsets_of_an_aborted_transaction_are_dropped() -> None:
    slots = replayed(plain(4), pending(offset=10), ended(is_commit=False))
    assert offset_of(slots) == 4 and not slots.slot(SLOT).pending


def test_an_end_covers_the_epochs_up_to_its_own_and_may_be_repeated() -> None:
    slots = replayed(pending(offset=10, epoch=3), ended(epoch=2))
    assert offset_of(slots) is None, "the end of an older transaction"
    slots.replay(ended(epoch=4), 3)  # a second version of the protocol ends a transaction with the next epoch
    assert offset_of(slots) == 10
    slots.replay(plain(11), 4)
    slots.replay(ended(epoch=4), 5)
    assert offset_of(slots) == 11


def test_of_two_transactions_the_later_commit_wins_in_whichever_order_they_end() -> None:
    assert offset_of(replayed(pending(5, offset=10), pending(6, offset=20), ended(5), ended(6))) == 20
    assert offset_of(replayed(pending(5, offset=10), pending(6, offset=20), ended(6), ended(5))) == 20
    aborted = replayed(pending(5, offset=10), pending(6, offset=20), ended(6, is_commit=False), ended(5))
    assert offset_of(aborted) == 10
    again = replayed(pending(5, offset=10), pending(6, offset=20), pending(5, offset=30), ended(5), ended(6))
    assert offset_of(again) == 30, "the second commit of a transaction counts from when it came"


def test_what_an_ordinary_commit_or_a_removal_overrules_stays_so() -> None:
    assert offset_of(replayed(pending(offset=10), plain(3), ended())) == 3
    removal = RemoveOffsetRecord(slot=SLOT, coordinator_epoch=1, group_id="g", topic="t", partition=0)
    assert offset_of(replayed(plain(2), pending(offset=10), removal, ended())) is None


def test_an_older_epoch_that_committed_an_offset_later_wins() -> None:
    slots = replayed(pending(epoch=1, offset=10), pending(epoch=0, offset=20), ended(epoch=1))
    assert offset_of(slots) == 20 and not slots.slot(SLOT).pending


def test_the_end_of_one_transaction_does_not_walk_over_the_offsets_of_the_others() -> None:
    """Every voter replays it. With a walk, this takes minutes."""
    offsets = PendingOffsets()
    count = 20_000
    for producer_id in range(count):
        offsets.put(pending(producer_id, partition=producer_id))
        offsets.put(pending(producer_id, partition=count + producer_id))
    for producer_id in range(count):
        assert offsets.end("g", (producer_id, 0), is_commit=False) == []
        offsets.overruled("g", ("t", count + producer_id))
    assert not offsets


def test_ended_transactions_and_overruled_offsets_leave_room_for_others() -> None:
    """The number of pending offsets of a group has a limit."""
    offsets = PendingOffsets()
    for producer_id in range(3):
        for partition in range(2):
            offsets.put(pending(producer_id, partition=partition))
    assert offsets.count("g") == 6
    offsets.put(pending(0, partition=1))
    assert offsets.count("g") == 6, "the same offset again"
    offsets.end("g", (0, 0), is_commit=False)
    assert offsets.count("g") == 4
    offsets.overruled("g", ("t", 1))
    assert offsets.count("g") == 2
    offsets.end("g", (1, 0), is_commit=True)
    assert offsets.count("g") == 1


def test_pending_offsets_go_with_their_group_and_their_topic() -> None:
    gone = RemoveGroupRecord(slot=SLOT, coordinator_epoch=1, group_id="g")
    assert offset_of(replayed(pending(), gone, ended())) is None
    slots = replayed(pending(topic="t"), pending(topic="other", offset=1))
    slots.delete_topic("t")
    slots.replay(ended(), 3)
    assert slots.slot(SLOT).offsets["g"].keys() == {("other", 0)}
    every = RemoveOffsetRecord(slot=SLOT, coordinator_epoch=1, group_id="g", topic="t", partition=ALL_PARTITIONS)
    assert offset_of(replayed(pending(), every, ended())) is None


def test_the_end_of_a_transaction_in_a_decision_of_parts_is_shown_too() -> None:
    whole = encode_batch(RecordBatch(controller_epoch=0, records=(pending(), ended())))
    parts = [
        StagedDecisionRecord(slot=SLOT, coordinator_epoch=1, part=number, part_count=2, batch=chunk)
        for number, chunk in enumerate((whole[:20], whole[20:]))
    ]
    slots = replayed(*parts)
    assert offset_of(slots) == 10
    assert [entry.log_offset for entry in slots.tail(SLOT).after(0, 9)] == [first_log_offset(2)]


@st.composite
def records(draw: st.DrawFn) -> SlotStateRecord:
    producer_id = draw(st.sampled_from((5, 6, 7)))
    partition = draw(st.integers(0, 1))
    number = draw(st.integers(0, 9))
    group = draw(st.sampled_from(("g", "h")))
    epoch = draw(st.integers(0, 2))
    made: list[SlotStateRecord] = [
        transaction(draw(st.sampled_from(("Empty", "Ongoing", "PrepareAbort"))), name=group, producer_epoch=epoch),
        RemoveTransactionRecord(slot=SLOT, coordinator_epoch=1, transactional_id=group),
        pending(producer_id, partition=partition, offset=number, group=group, epoch=epoch),
        pending(producer_id, partition=partition, offset=number, group=group, epoch=epoch),
        ended(producer_id, is_commit=draw(st.booleans()), epoch=epoch, group=group),
        plain(number, partition=partition),
        GroupRecord(slot=SLOT, coordinator_epoch=1, group_id=group, group_epoch=number, assignment_epoch=0),
        RemoveGroupRecord(slot=SLOT, coordinator_epoch=1, group_id=group),
    ]
    return draw(st.sampled_from(made))


@given(st.lists(records(), max_size=30), st.lists(records(), max_size=8))
def test_a_rebuilt_slot_is_the_same_and_stays_the_same(
    before: list[SlotStateRecord], after: list[SlotStateRecord]
) -> None:
    slots = replayed(*before)
    restored = rebuilt(slots)
    assert restored == slots
    frozen = slots.copy()
    for index, record in enumerate(after, start=len(before) + 1):
        slots.replay(record, index)
        restored.replay(record, index)
    assert restored == slots
    assert frozen == replayed(*before), "a copy is not changed"


@given(st.lists(records(), max_size=30))
def test_a_coordinators_own_copy_replays_to_the_same_state(made: list[SlotStateRecord]) -> None:
    own = SlotState(slot=SLOT)
    for record in made:
        own.replay(record)
    assert own == replayed(*made).slot(SLOT)

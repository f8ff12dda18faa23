"""The state of groups per slot: replay, fencing by coordinator epoch, rebuilding from records, isolation of copies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from unit.kraft.replayed_slots import rebuilt, replayed

from barnabas.kraft.group_state.group_slots import (
    MAX_KEPT_RESETS,
    MAX_OFFSET_BATCH_BYTES,
    GroupSlots,
    SlotState,
    SlotStateRecord,
    slot_of,
)
from barnabas.kraft.group_state.group_state import GroupState
from barnabas.kraft.group_state.offsets_log import (
    MAX_TAIL_RECORDS,
    MAX_TAIL_TEXT_BYTES,
    POSITION_BITS,
    first_log_offset,
)
from barnabas.kraft.metadata.image import SLOT_COUNT
from barnabas.kraft.metadata.records import (
    ALL_PARTITIONS,
    CurrentAssignmentRecord,
    GroupRecord,
    MemberRecord,
    OffsetCommitRecord,
    OffsetResetRecord,
    RecordBatch,
    RemoveGroupRecord,
    RemoveMemberRecord,
    RemoveOffsetRecord,
    SlotRecord,
    StagedDecisionRecord,
    TargetAssignmentRecord,
    decode_batch,
    encode_batch,
)
from barnabas.log.vocabulary.group_messages import PartitionOffset, TopicPartitions

GROUPS = ("g1", "g2")
MEMBERS = ("m1", "m2", "m3")
TOPICS = ("t1", "t2")


def commit(
    *,
    slot: int = 7,
    epoch: int = 1,
    group: str = "g1",
    topic: str = "t1",
    partition: int = 0,
    offset: int = 5,
    metadata: str = "note",
) -> OffsetCommitRecord:
    return OffsetCommitRecord(
        slot=slot,
        coordinator_epoch=epoch,
        group_id=group,
        topic=topic,
        partition=partition,
        offset=offset,
        leader_epoch=3,
        metadata=metadata,
        commit_timestamp_ms=1000,
    )


def group_record(*, slot: int = 7, epoch: int = 1, group: str = "g1", group_epoch: int = 1) -> GroupRecord:
    return GroupRecord(slot=slot, coordinator_epoch=epoch, group_id=group, group_epoch=group_epoch, assignment_epoch=0)


def member_record(*, slot: int = 7, epoch: int = 1, group: str = "g1", member: str = "m1") -> MemberRecord:
    return MemberRecord(
        slot=slot,
        coordinator_epoch=epoch,
        group_id=group,
        member_id=member,
        instance_id=None,
        client_id="c",
        client_host="h",
        rack=None,
        subscribed_topics=TOPICS,
        subscribed_pattern=None,
        rebalance_timeout_ms=60_000,
        session_timeout_ms=45_000,
    )


def current_record(
    *,
    slot: int = 7,
    epoch: int = 1,
    group: str = "g1",
    member: str = "m1",
    assigned: tuple[int, ...] = (0,),
    pending: tuple[int, ...] = (),
) -> CurrentAssignmentRecord:
    return CurrentAssignmentRecord(
        slot=slot,
        coordinator_epoch=epoch,
        group_id=group,
        member_id=member,
        member_epoch=1,
        previous_member_epoch=0,
        state="stable",
        assigned=(TopicPartitions(topic="t1", partitions=assigned),),
        pending_revocation=(TopicPartitions(topic="t1", partitions=pending),) if pending else (),
    )


@st.composite
def slot_records(draw: st.DrawFn) -> SlotStateRecord:
    slot = draw(st.sampled_from((3, 4)))
    epoch = draw(st.integers(min_value=0, max_value=3))
    group = draw(st.sampled_from(GROUPS))
    member = draw(st.sampled_from(MEMBERS))
    topic = draw(st.sampled_from(TOPICS))
    partition = draw(st.integers(min_value=0, max_value=2))
    number = draw(st.integers(min_value=0, max_value=9))
    owned = (TopicPartitions(topic=topic, partitions=(partition,)),)
    makers: list[SlotStateRecord] = [
        group_record(slot=slot, epoch=epoch, group=group, group_epoch=number),
        RemoveGroupRecord(slot=slot, coordinator_epoch=epoch, group_id=group),
        member_record(slot=slot, epoch=epoch, group=group, member=member),
        RemoveMemberRecord(slot=slot, coordinator_epoch=epoch, group_id=group, member_id=member),
        TargetAssignmentRecord(slot=slot, coordinator_epoch=epoch, group_id=group, member_id=member, partitions=owned),
        current_record(slot=slot, epoch=epoch, group=group, member=member, assigned=(partition,)),
        commit(slot=slot, epoch=epoch, group=group, topic=topic, partition=partition, offset=number),
        RemoveOffsetRecord(slot=slot, coordinator_epoch=epoch, group_id=group, topic=topic, partition=partition),
    ]
    return draw(st.sampled_from(makers))


def test_slot_of_a_group_is_that_of_kafka_and_within_range() -> None:
    assert slot_of("abc") == 479470107 % 50
    assert slot_of("foobar") == (-790332482 & 0x7FFFFFFF) % 50
    assert all(0 <= slot_of(f"group-{number}") < SLOT_COUNT for number in range(500))


def test_a_commit_replaces_the_one_before_it() -> None:
    slots = replayed(commit(offset=5), commit(offset=4))
    assert slots.slot(7).offset("g1", ("t1", 0)) == (4, 3, "note", 1000, first_log_offset(2))
    assert slots.index == 2


def test_a_record_of_a_replaced_coordinator_is_void() -> None:
    slots = replayed(commit(offset=5, epoch=1))
    assert slots.replay(SlotRecord(slot=7, coordinator=2, coordinator_epoch=2), 2)
    assert not slots.replay(commit(offset=6, epoch=1), 3)
    assert slots.replay(commit(slot=8, offset=6, epoch=1), 4), "other slots have their own epochs"
    assert slots.slot(7).offset("g1", ("t1", 0)) == (5, 3, "note", 1000, first_log_offset(1))
    slots.on_slot_moved(7, 1)
    assert slots.slot(7).coordinator_epoch == 2, "the epoch never goes back"


def test_members_of_unknown_groups_and_assignments_of_unknown_members_are_passed_over() -> None:
    slots = replayed(member_record(), current_record())
    assert slots.slot(7).groups == {}
    slots = replayed(group_record(), current_record())
    assert slots.slot(7).groups["g1"].currents == {}


def test_removing_a_member_releases_its_partitions() -> None:
    slots = replayed(group_record(), member_record(), current_record(assigned=(0, 1), pending=(2,)))
    assert slots.slot(7).groups["g1"].owners == {("t1", 0): "m1", ("t1", 1): "m1", ("t1", 2): "m1"}
    slots.replay(RemoveMemberRecord(slot=7, coordinator_epoch=1, group_id="g1", member_id="m1"), 9)
    state = slots.slot(7).groups["g1"]
    assert not (state.owners or state.members or state.currents)


def test_who_knows_the_members_sees_that_they_have_changed() -> None:
    """What is derived from all members is computed anew for another version only."""
    records = (member_record(), member_record(member="m2"), member_record())
    gone = RemoveMemberRecord(slot=7, coordinator_epoch=1, group_id="g1", member_id="m1")
    slots, versions = replayed(group_record()), [0]
    for record in (*records, gone):
        slots.replay(record, 9)
        versions.append(slots.slot(7).groups["g1"].members_version)
    assert len(set(versions)) == 5 and versions == sorted(versions)


def test_the_end_of_a_replaced_static_member_leaves_the_instance_to_its_successor() -> None:
    old, new = (replace(member_record(member=name), instance_id="i") for name in ("m1", "m2"))
    slots = replayed(group_record(), old, new)
    slots.replay(RemoveMemberRecord(slot=7, coordinator_epoch=1, group_id="g1", member_id="m1"), 9)
    assert slots.slot(7).groups["g1"].holders == {"i": "m2"}
    slots.replay(RemoveMemberRecord(slot=7, coordinator_epoch=1, group_id="g1", member_id="m2"), 10)
    assert slots.slot(7).groups["g1"].holders == {}


def test_a_new_assignment_of_a_member_replaces_what_it_owned() -> None:
    slots = replayed(group_record(), member_record(), current_record(assigned=(0, 1)), current_record(assigned=(1,)))
    assert slots.slot(7).groups["g1"].owners == {("t1", 1): "m1"}


def test_deleting_a_topic_drops_its_offsets_only() -> None:
    slots = replayed(commit(topic="t1"), commit(topic="t2"), commit(slot=8, group="g2", topic="t1"))
    slots.delete_topic("t1")
    assert slots.slot(7).offsets == {"g1": {("t2", 0): (5, 3, "note", 1000, first_log_offset(2))}}
    assert slots.slot(8).offsets == {}


def test_deleting_a_topic_leaves_a_copy_alone() -> None:
    slots = replayed(commit(topic="t1"))
    copied = slots.copy()
    slots.delete_topic("t1")
    assert copied.slot(7).offset("g1", ("t1", 0)) is not None


def test_a_copy_shares_what_nobody_writes_to() -> None:
    slots = replayed(commit(slot=7), commit(slot=8))
    copied = slots.copy()
    slots.replay(commit(slot=7, offset=9), 3)
    assert copied.slot(8) is slots.slot(8)
    assert copied.slot(7) is not slots.slot(7)


@given(st.lists(slot_records(), max_size=40))
def test_records_of_rebuild_the_slots_exactly(records: list[SlotStateRecord]) -> None:
    slots = replayed(*records)
    assert rebuilt(slots) == slots


@given(st.lists(slot_records(), max_size=40))
def test_stale_records_change_nothing(records: list[SlotStateRecord]) -> None:
    slots = GroupSlots()
    newest: dict[int, int] = {}
    for record in records:
        before = slots.copy()
        applied = slots.replay(record, 1)
        assert applied == (record.coordinator_epoch >= newest.get(record.slot, 0))
        newest[record.slot] = max(newest.get(record.slot, 0), record.coordinator_epoch)
        if not applied:
            assert slots == before


@given(
    st.lists(slot_records(), max_size=25), st.lists(slot_records(), max_size=25), st.lists(slot_records(), max_size=9)
)
def test_a_copy_and_its_origin_do_not_see_each_other_s_writes(
    before: list[SlotStateRecord], after: list[SlotStateRecord], elsewhere: list[SlotStateRecord]
) -> None:
    slots = replayed(*before)
    copied = slots.copy()
    for record in after:
        slots.replay(record, len(before) + 1)
    assert copied == replayed(*before)
    for record in elsewhere:
        copied.replay(record, len(before) + 1)
    assert slots == replayed(*before, *after)


@given(st.lists(slot_records(), max_size=40))
def test_a_coordinator_s_own_copy_replays_to_the_same_state(records: list[SlotStateRecord]) -> None:
    slots = replayed(*records)
    own = SlotState(slot=3)
    for record in records:
        if record.slot == 3:
            own.replay(record)
    assert own == slots.slot(3)


def test_it_is_the_group_state_that_the_metadata_node_asks_for() -> None:
    port: GroupState = GroupSlots()
    assert port.copy() == port


# --- decisions in parts -----------------------------------------------------------------------------------------------


def staged(*records: SlotStateRecord, epoch: int = 1, part_bytes: int = 40) -> list[StagedDecisionRecord]:
    whole = encode_batch(RecordBatch(controller_epoch=0, records=records))
    chunks = [whole[start : start + part_bytes] for start in range(0, len(whole), part_bytes)]
    return [
        StagedDecisionRecord(slot=7, coordinator_epoch=epoch, part=number, part_count=len(chunks), batch=chunk)
        for number, chunk in enumerate(chunks)
    ]


def test_a_decision_in_parts_is_applied_with_its_last_part_also_across_a_snapshot() -> None:
    parts = staged(group_record(), commit(offset=8))
    assert len(parts) > 1
    slots = replayed(*parts[:-1])
    assert not slots.slot(7).groups and not slots.slot(7).offsets
    rebuilt = GroupSlots()
    for record in slots.records_of(7):
        rebuilt.replay(record, slots.index)
    rebuilt.on_slot_moved(7, 1)
    for each in (slots, rebuilt):
        each.replay(parts[-1], slots.index + 1 if each is slots else rebuilt.index + 1)
        value = each.slot(7).offset("g1", ("t1", 0))
        assert value is not None and value[0] == 8 and "g1" in each.slot(7).groups
    assert rebuilt == slots


def test_a_decision_of_more_records_than_a_command_has_places_for_is_not_applied_in_part() -> None:
    """It was applied up to the place where the log offsets of a command end, and put into quarantine then."""
    count = 1 << POSITION_BITS
    one = encode_batch(RecordBatch(controller_epoch=0, records=(commit(offset=8),)))
    whole = one[:3] + b"\xdd" + count.to_bytes(4, "big") + one[4:] * count
    slots = replayed(commit(offset=7))
    part = StagedDecisionRecord(slot=7, coordinator_epoch=1, part=0, part_count=1, batch=whole)
    with pytest.raises(AssertionError, match="none of them is applied"):
        slots.replay(part, slots.index + 1)
    value = slots.slot(7).offset("g1", ("t1", 0))
    assert value is not None and value[0] == 7 and slots.slot(7).staged == ()


def test_a_decision_whose_coordinator_is_replaced_before_its_last_part_is_void_as_a_whole() -> None:
    parts = staged(commit(offset=8), part_bytes=10)
    slots = replayed(*parts[:-1])
    slots.on_slot_moved(7, 2)
    assert not slots.replay(parts[-1], slots.index + 1)
    later = staged(commit(offset=9, epoch=2), epoch=2, part_bytes=10)
    slots.replay(later[-1], slots.index + 1)  # its first parts never came
    assert slots.slot(7).offsets == {} and slots.slot(7).staged == ()


# --- __consumer_offsets: where records stand --------------------------------------------------------------------------


def test_log_offsets_follow_the_quorum_index_and_survive_a_snapshot() -> None:
    slots = GroupSlots()
    slots.replay(commit(offset=1), 5)
    slots.replay(commit(offset=2, partition=1), 5)
    slots.replay(member_record(), 6)  # it has no form in the topic
    slots.replay(RemoveOffsetRecord(slot=7, coordinator_epoch=1, group_id="g1", topic="t1", partition=0), 7)
    tail = slots.tail(7)
    assert [entry.log_offset for entry in tail.after(0, 9)] == [first_log_offset(5), first_log_offset(5) + 1, 7 << 20]
    assert tail.after(first_log_offset(6), 9) == tail.after(0, 9)[2:] and len(tail.after(0, 1)) == 1
    rebuilt = GroupSlots()
    for record in slots.records_of(7):
        rebuilt.replay(record, 7)
    value = rebuilt.slot(7).offset("g1", ("t1", 1))
    assert value is not None and value[4] == first_log_offset(5) + 1
    assert rebuilt.tail(7).after(0, 9) == () and rebuilt.tail(7).start_offset == first_log_offset(5) + 2


def test_the_tail_is_bounded() -> None:
    slots = replayed(*(commit(offset=number) for number in range(MAX_TAIL_RECORDS + 3)))
    entries = slots.tail(7).after(0, 10_000)
    assert len(entries) == MAX_TAIL_RECORDS and entries[0].log_offset >= slots.tail(7).start_offset
    assert slots.tail(7).start_offset == first_log_offset(3) + 1


def test_the_tail_is_bounded_in_bytes_too() -> None:
    """With metadata of 4 KiB in each commit, the tails of all slots once held 200 MB."""
    slots = replayed(*(commit(offset=number, metadata="m" * 4_096) for number in range(MAX_TAIL_RECORDS)))
    entries = slots.tail(7).after(0, 10_000)
    assert 0 < sum(4_096 for _ in entries) <= MAX_TAIL_TEXT_BYTES
    assert slots.tail(7).start_offset == entries[0].log_offset - (1 << POSITION_BITS) + 1
    assert entries[-1].record == commit(offset=MAX_TAIL_RECORDS - 1, metadata="m" * 4_096)


# --- resets -----------------------------------------------------------------------------------------------------------


def reset_record(reset_id: int, *topics: str) -> OffsetResetRecord:
    before = tuple(PartitionOffset(topic=topic, partition=0, offset=3) for topic in topics)
    return OffsetResetRecord(
        slot=7, coordinator_epoch=1, group_id="g1", reset_id=reset_id, at_ms=0, by="me", before=before
    )


def test_the_newest_resets_are_kept_and_those_of_a_deleted_topic_are_not() -> None:
    slots = replayed(*(reset_record(number, "t1", "t2") for number in range(MAX_KEPT_RESETS + 2)))
    assert [reset.reset_id for reset in slots.slot(7).resets["g1"]] == list(range(2, MAX_KEPT_RESETS + 2))
    slots.delete_topic("t1")
    assert {item.topic for reset in slots.slot(7).resets["g1"] for item in reset.before} == {"t2"}
    slots.replay(
        RemoveOffsetRecord(slot=7, coordinator_epoch=1, group_id="g1", topic="t2", partition=ALL_PARTITIONS), 99
    )
    assert slots.slot(7).resets == {}


def test_a_snapshot_in_batches_holds_what_the_records_hold() -> None:
    slots = replayed(
        group_record(), member_record(), current_record(assigned=(0,)),
        *(commit(topic=f"t{number}") for number in range(2_000)), reset_record(1, "t1"), *staged(commit())[:1],
    )  # fmt: skip
    batches = list(slots.batches_of(7))
    assert max(map(len, batches)) < 2 * MAX_OFFSET_BATCH_BYTES and len(batches) > 4
    found = [record for batch in batches for record in decode_batch(batch).records]
    assert sorted(map(repr, found)) == sorted(map(repr, slots.records_of(7)))
    rebuilt = GroupSlots()
    for record in found:
        rebuilt.replay(record, slots.index)
    assert rebuilt.slot(7) == slots.slot(7)


def test_a_view_stays_as_it_is() -> None:
    slots = replayed(commit(offset=1))
    view = slots.view(7)
    slots.replay(commit(offset=2), 2)
    value = view.offset("g1", ("t1", 0))
    assert value is not None and value[0] == 1
    assert [record.offset for record in view if isinstance(record, OffsetCommitRecord)] == [1]
